// The buttons for administrators.

import { element } from "./charts.js";
import { at, put, say } from "./dom.js";
import * as format from "./format.js";
import { authorization } from "./stream.js";

const BUTTONS = ["pause", "checkpoint", "rollback", "reset"];
const DONE = {
  pause: "Adaptation is paused.",
  resume: "Adaptation is resumed.",
  rollback: "The learners are rolled back.",
  reset: "The learners are reset.",
  checkpoint: "The checkpoint is written.",
};

// key(): the key in use; changed(): called when an action begins and when it ends.
export class Actions {
  constructor({ key, changed }) {
    Object.assign(this, { key, changed, working: false, now: null });
    at("pause").addEventListener("click", () => this.act(this.now.adapting ? "pause" : "resume"));
    at("checkpoint").addEventListener("click", () => this.act("checkpoint"));
    this.ask("reset", () => put("sure-met", format.some(this.now.met, "query", "queries")), "sure", () => "");
    this.ask("rollback", () => this.list(), "back", () => `?to=${at("moment").value}`);
  }

  // Show the buttons for an event of the service. They are disabled if the service is not open for actions.
  show(now, open) {
    this.now = now;
    if (now.role !== "admin") return; // the buttons are hidden
    for (const id of BUTTONS) at(id).disabled = this.working || !open;
    at("rollback").disabled ||= !this.earlier().length;
    put("pause", now.adapting ? "Pause adaptation" : "Resume adaptation");
    const { to, time } = now.rollback ?? {};
    at("rolled").hidden = !now.rollback;
    if (now.rollback) put("rolled", `Rolled back at ${format.clock(time)} to the state ${moment(to)}.`);
  }

  // A button whose dialog asks first.
  ask(action, prepare, dialog, parameters) {
    at(action).addEventListener("click", () => {
      prepare();
      at(dialog).showModal();
    });
    at(`${dialog}-no`).addEventListener("click", () => at(dialog).close());
    at(`${dialog}-yes`).addEventListener("click", () => {
      at(dialog).close();
      this.act(action, parameters());
    });
  }

  // The kept states since which something was learned, the newest first.
  earlier() {
    return this.now.kept_states.filter(({ learned }) => learned < this.now.met).reverse();
  }

  list() {
    const options = this.earlier().map(({ query, time }) => {
      const ago = format.some(this.now.last_query - query, "query", "queries");
      return element("option", { value: query }, `${format.clock(time)}, ${moment(query)} (${ago} ago)`);
    });
    at("moment").replaceChildren(...options);
  }

  async act(action, parameters = "") {
    this.working = true;
    this.changed();
    try {
      const asked = { method: "POST", headers: authorization(this.key()) };
      const response = await fetch(`admin/${action}${parameters}`, asked);
      say("done", ...(response.ok ? [DONE[action]] : [await refusal(response), "bad"]));
    } catch {
      say("done", "The service cannot be reached. Nothing was changed.", "bad");
    }
    this.working = false;
    this.changed();
  }
}

const moment = (query) => (query ? `after query ${format.count(query)}` : "before the first query");

async function refusal(response) {
  if (response.status === 401) return "This service no longer knows your key. Nothing was changed.";
  if (response.status === 403) return "This needs an administrator's key. Nothing was changed.";
  const { error } = await response.json().catch(() => ({}));
  return `The service refused: ${error ?? `HTTP ${response.status}.`} Nothing was changed.`;
}
