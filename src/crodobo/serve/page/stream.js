// Server-sent events, read with fetch: an EventSource cannot send the key in a header.

const SILENCE = 6000; // milliseconds; the service says something every second
const SOON = 500; // before the next attempt
const LONGEST = 15000;

export const authorization = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

// The events of an answer, each parsed. Ends when the service ends it, and when nothing comes any more.
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

// Watches the service for as long as the page is open, or until the key is refused.
// heard(event, first): what it says, and whether that is the first after a connection was made.
// lost(): the connection is gone, and there will be another attempt.
// locked(): it wants a key, or another one.
export class Stream {
  constructor(told) {
    this.told = told;
  }

  // Begin, or begin anew with another key.
  async open(key) {
    this.controller?.abort();
    const controller = (this.controller = new AbortController());
    for (let pause = SOON; controller === this.controller; pause = Math.min(2 * pause, LONGEST)) {
      try {
        const asked = { headers: authorization(key), signal: controller.signal, cache: "no-store" };
        const response = await fetch("events", asked);
        if (response.status === 401) return this.told.locked();
        if (!response.ok) throw new Error(response.statusText);
        let first = true;
        for await (const event of events(response)) {
          this.told.heard(event, first);
          first = false;
          pause = SOON;
        }
      } catch {
        // as with a connection that ends: another attempt
      }
      if (controller !== this.controller) return;
      this.told.lost();
      await new Promise((done) => setTimeout(done, pause));
    }
  }
}
