// Server-sent events, read with fetch, because an EventSource cannot send the key in a header.

const SILENCE = 6000; // milliseconds; the service sends an event every second
const SOON = 500; // milliseconds before the next attempt
const LONGEST = 15000;

export const authorization = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

// The parsed events of a response. Ends when the service closes it, or when no event arrives any more.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const timer = setTimeout(() => reader.cancel(), SILENCE);
    const { value, done } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) yield JSON.parse(part.replace(/^data: /, ""));
  }
}

// Watches the service while the page is open, or until the key is refused. It calls these handlers:
// heard(event, first): an event arrived; `first` says that it is the first of a connection.
// lost(): the connection was lost and will be tried again.
// locked(): the service needs a key, or another one.
export class Stream {
  constructor(handlers) {
    this.handlers = handlers;
  }

  // Start, or start again with another key.
  async open(key) {
    this.controller?.abort();
    const controller = (this.controller = new AbortController());
    for (let pause = SOON; controller === this.controller; pause = Math.min(2 * pause, LONGEST)) {
      try {
        const asked = { headers: authorization(key), signal: controller.signal, cache: "no-store" };
        const response = await fetch("events", asked);
        if (response.status === 401) return this.handlers.locked();
        if (!response.ok) throw new Error(response.statusText);
        let first = true;
        for await (const event of events(response)) {
          this.handlers.heard(event, first);
          first = false;
          pause = SOON;
        }
      } catch {
        // try again, as after a connection that ends
      }
      if (controller !== this.controller) return;
      this.handlers.lost();
      await new Promise((done) => setTimeout(done, pause));
    }
  }
}
