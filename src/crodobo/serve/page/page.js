// The status page: shows the events of the service, and has the buttons for administrators.

import { Actions } from "./actions.js";
import { LineChart, MixChart, element } from "./charts.js";
import { at, put, say } from "./dom.js";
import * as format from "./format.js";
import { Stream, authorization } from "./stream.js";

const KEPT = 240; // queries shown

// The sentence for each state, the colour of its light, and whether a progress bar is shown.
const STATES = {
  loading: ["The service is reading the source.", "warn", true],
  "warming up": ["The learners are learning the source.", "warn", true],
  proving: ["The service burns a test query, then another process searches all memory for traces.", "warn", true],
  ready: ["Each query is answered and burned, and learned where that is safe.", "good"],
  paused: ["Queries are answered and burned, but not learned.", "warn"],
  draining: ["The service is shutting down after it answers the requests it has admitted.", "warn", true],
  failed: ["The service has failed. Its log says why.", "bad"],
};
const OPEN = ["ready", "paused"]; // states in which queries are answered
const LEVELS = {
  strict: "Queries are kept in locked memory that is overwritten. Another process searches it for a test query.",
  standard: "The memory of queries is overwritten. Only the level strict searches memory for traces.",
  off: "Nothing is overwritten. Images may stay in memory until it is reused.",
};
const shares = { show: format.percent, tick: () => "100 %", most: 1 };
const nats = { show: format.nats, tick: format.round };
const deviations = { show: format.deviations, tick: format.round };
const times = {
  show: format.seconds,
  tick: (value) => (value < 1 ? `${format.round(1000 * value)} ms` : `${format.round(value)} s`),
};
const LINES = [
  { title: "Confidence", help: "Mean probability of the predicted class", of: (query) => query.confidence, ...shares },
  { title: "Entropy", help: "Mean uncertainty of a prediction (0 is certain)", of: (query) => query.entropy, ...nats },
  { title: "Agreement", help: "Samples on which all learners agree", of: (query) => query.agreement, ...shares },
  { title: "Kept", help: "Pseudo-labels that were learned", of: (query) => query.kept, ...shares },
  { title: "Drift", help: "Distance from the source", of: (query) => query.drift, ...deviations },
  { title: "Time per query", help: "To adapt, predict and burn", of: (query) => query.seconds, ...times },
];

let latest = null; // the last event
let heard = null; // when it arrived
let connected = false;
let points = [];
let pointed = null; // position of the pointer over the charts, from 0 to 1
let drawn = false; // whether a frame is scheduled

// The key is stored for this tab only. Local storage would outlive it, and a cookie would be sent with requests that
// other sites trigger.
const key = {
  get: () => sessionStorage.getItem("key"),
  set: (value) => (value ? sessionStorage.setItem("key", value) : sessionStorage.removeItem("key")),
};

const point = (share) => {
  pointed = share;
  draw();
};
const actions = new Actions({ key: key.get, changed: draw });
const charts = LINES.map((line) => new LineChart(line, point));
const mix = new MixChart(at("mix"), point);
at("lines").append(...charts.map((chart) => chart.figure));

const stream = new Stream({
  heard(event, first) {
    [latest, heard, connected] = [event, new Date(), true];
    points = [...(first ? [] : points), ...event.points].slice(-KEPT);
    say("connection", "");
    if (first) ask(false);
    draw();
  },
  lost() {
    connected = false;
    const since = heard ? ` The page shows the state of ${format.clock(heard)}.` : "";
    say("connection", `Connection lost. Trying again.${since}`, "warn");
    draw();
  },
  locked() {
    const refused = Boolean(key.get());
    key.set("");
    [latest, connected] = [null, false];
    say("connection", "");
    ask(true);
    if (refused) say("key-answer", "This service no longer knows that key.", "bad");
    show({ state: "locked", sentence: "Enter a key to see the status of the service.", light: "" });
    at("controls").hidden = at("live").hidden = true;
  },
});
stream.open(key.get());

// Sentences

function unit(id, value, name) {
  if (at(id).textContent !== `${value} ${name}`) at(id).replaceChildren(`${value} `, element("small", {}, name));
}

function show({ state, sentence, light, busy }) {
  put("state", state);
  put("sentence", sentence);
  at("light").className = light && `is-${light}`;
  at("busy").hidden = !busy;
}

// Drawing

function draw() {
  if (drawn || !latest) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    if (!latest) return;
    status(latest);
    tiles(latest);
    estimate();
    figures(latest);
    proof(latest);
    receipts(latest.receipts);
  });
}

function status(now) {
  const [sentence, light, busy] = STATES[now.state] ?? ["", "warn"];
  show({ state: now.state, sentence: now.failure ?? sentence, light: connected ? light : "", busy: connected && busy });
  document.title = `${now.state} · ${now.name}`;
  put("name", now.name);
  put("about", `Method ${now.method}, burning ${now.burn}, up for ${format.duration(now.uptime)}`);
  const own = now.role !== "admin";
  const whose = own ? "This key shows figures of its own images only." : "This key shows the queries of all clients.";
  put("foot", `crodobo ${now.version}. ${whose} The page has numbers about queries, nothing of any image.`);
  document.body.classList.toggle("own", own);
  put("charts-title", own ? "Your last queries" : "The last queries");
  at("live").hidden = at("controls").hidden = false;
  actions.show(now, connected && OPEN.includes(now.state));
  at("key-change").hidden = !key.get();
}

function tiles({ role, totals, predicted_only: reasons, last_query: last, queue }) {
  put("queries", format.count(totals.queries));
  put("met", last > totals.queries ? `since the start, ${format.count(last)} in all` : "since the start");
  put("samples", format.count(totals.samples));
  put("mean", totals.queries ? `${format.decimals(totals.samples / totals.queries)} per query` : "no queries yet");
  unit("burned", ...format.bytes(totals.burned_bytes));
  put("predicted_only", format.count(totals.predicted_only));
  const why = Object.entries(reasons).map(([reason, number]) => `${reason}: ${format.count(number)}`);
  put("reasons", why.join(", ") || "queries not learned");
  if (role !== "admin") return; // the other tiles are hidden
  unit("queue", queue.requests, `of ${format.count(queue.limit)}`);
  at("queue-bar").style.width = `${Math.min(100, (100 * queue.requests) / queue.limit)}%`;
  for (const name of ["restores", "skipped"]) put(name, format.count(totals[name]));
}

function estimate() {
  const { estimated_accuracy: share, estimated_accuracy_low: low, estimated_accuracy_high: high } = points.at(-1) ?? {};
  const known = typeof share === "number";
  put("estimate", known ? `${format.count(100 * share)} %` : "unknown");
  const range = known ? `${format.count(100 * low)}–${format.count(100 * high)} %, ` : "";
  put("estimate-range", `${range}without labels, on the last samples`);
}

function figures({ state, classes }) {
  const none = points.length === 0;
  at("empty").hidden = !none;
  at("charts").hidden = none;
  if (none) {
    const open = OPEN.includes(state);
    const how = open ? "This sends an image:" : "Images can be sent when the service is ready.";
    put("empty-text", `The charts appear after the first query. ${how}`);
    at("example").hidden = !open;
    const header = key.get() ? ' -H "Authorization: Bearer $KEY"' : "";
    const address = new URL("v1/predict", location);
    put("example", `curl${header} -H "Content-Type: image/png" --data-binary @image.png ${address}`);
    return;
  }
  const last = points.length - 1;
  const place = pointed === null ? null : Math.min(last, Math.max(0, Math.floor(pointed * points.length)));
  const one = points[place ?? last];
  const which = place === null ? "the last" : "under the pointer";
  const size = format.some(one.samples, "sample");
  const unlearned = one.predicted_only ? `, predicted only: ${one.predicted_only}` : "";
  put("range", `Values of query ${one.query} (${which}), ${format.clock(one.time)}, ${size}${unlearned}`);
  for (const chart of charts) chart.draw(points, place);
  at("unlearned").hidden = !points.some((query) => query.predicted_only);
  at("restored").hidden = !points.some((query) => query.restored || query.rolled_back);
  if (classes.length) mix.draw(points, classes, format.percent, place);
}

function proof({ burn, proof: found, state }) {
  const bad = found && found.found > 0;
  let said = "no proof at this level";
  if (found) said = bad ? "traces found" : "no traces of a test query";
  else if (burn === "strict") said = state === "failed" ? "no proof" : "not done yet";
  put("proof-state", said);
  at("proof-light").className = found ? `is-${bad ? "bad" : "good"}` : "is-warn";
  put("proof-text", LEVELS[burn]);
  const facts = [["Level", burn]];
  if (found) {
    facts.push(
      ["Proved at", format.clock(found.time)],
      ["Searched", `${format.bytes(found.scanned).join(" ")} in ${format.some(found.regions, "region")}`],
      ["Found", format.some(found.found, "byte")],
      ["Unreadable", format.some(found.unreadable, "region")],
    );
  }
  if (at("proof-facts").textContent === facts.flat().join("")) return;
  at("proof-facts").replaceChildren(
    ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
  );
}

function receipts(list) {
  at("no-receipts").hidden = list.length > 0;
  at("receipts-box").hidden = !list.length;
  if (at("receipts").dataset.first === list[0]?.id) return;
  at("receipts").dataset.first = list[0]?.id;
  at("receipts").replaceChildren(
    ...list.map(({ id, query, time, samples }) =>
      element(
        "tr",
        {},
        element("td", {}, format.count(query)),
        element("td", { title: id }, element("code", {}, id)),
        element("td", {}, element("time", { datetime: time }, format.clock(time))),
        element("td", {}, format.count(samples)),
      ),
    ),
  );
}

// Keys

function ask(wanted, title = "This service needs a key") {
  at("key-form").hidden = !wanted;
  at("key-cancel").hidden = !key.get();
  put("key-title", title);
  say("key-answer", "");
  at("key").value = "";
  if (wanted) at("key").focus();
}

at("key-change").addEventListener("click", () => ask(true, "Use another key"));
at("key-cancel").addEventListener("click", () => ask(false));
at("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const tried = at("key").value.trim();
  try {
    const { status: answer } = await fetch("metrics", { headers: authorization(tried), cache: "no-store" });
    if (answer === 401) return say("key-answer", "This service does not know that key.", "bad");
    if (answer === 429) return say("key-answer", "Too many attempts. Wait a moment and try again.", "bad");
  } catch {
    return say("key-answer", "The service cannot be reached.", "bad");
  }
  key.set(tried);
  say("done", "");
  stream.open(tried);
});
