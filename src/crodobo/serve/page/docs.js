// Shows the OpenAPI document of the service.

import { element } from "./charts.js";

const ORDER = ["Plain", "Open Inference Protocol", "Operating"];
const FILES = {
  "application/json": "@request.json",
  "application/octet-stream": "@images.bin",
  "application/x-npy": "@images.npy",
  "image/png": "@image.png",
};

// A schema in a few words: its type or its allowed values.
function kind(schema = {}) {
  const some = schema.anyOf?.filter((one) => one.type !== "null");
  if (some) return some.map(kind).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.join(" or ");
  if (schema.format === "binary") return "bytes";
  return schema.type ?? "anything";
}

function table(heads, rows) {
  const cells = (tag, row) => element("tr", {}, ...row.map((cell) => element(tag, {}, cell)));
  const body = element("tbody", {}, ...rows.map((row) => cells("td", row)));
  const whole = element("table", { class: "words" }, element("thead", {}, cells("th", heads)), body);
  return element("div", { class: "wide", tabindex: "0" }, whole);
}

function parameters(list) {
  const rows = list.map(({ name, in: place, required, schema, description }) => [
    element("code", {}, name),
    `${place}${required ? ", required" : ""}`,
    [kind(schema), schema?.default === undefined ? "" : `, default ${schema.default}`].join(""),
    description ?? "",
  ]);
  return [element("h4", {}, "Parameters"), table(["Name", "In", "Type", "Meaning"], rows)];
}

// The fields of a JSON body. Nested fields are named by their path.
function fields(schema, path = "") {
  const inner = schema.type === "array" ? schema.items ?? {} : schema;
  return Object.entries(inner.properties ?? {}).flatMap(([name, one]) => {
    const whole = path + name + (one.type === "array" ? "[]" : "");
    const needed = (inner.required ?? []).includes(name) ? "required" : "";
    return [[element("code", {}, whole), kind(one), needed], ...fields(one, `${whole}.`)];
  });
}

function body({ content }) {
  const types = Object.keys(content).map((type) => element("li", {}, element("code", {}, type)));
  const found = [element("h4", {}, "Body"), element("p", {}, "One of these types:")];
  found.push(element("ul", { class: "types" }, ...types));
  const rows = fields(content["application/json"]?.schema ?? {});
  if (rows.length) found.push(table(["JSON field", "Type", ""], rows));
  return found;
}

function statuses(responses) {
  const rows = Object.entries(responses).map(([status, { description }]) => [element("code", {}, status), description]);
  return [element("h4", {}, "Responses"), table(["Status", "When"], rows)];
}

function example(method, path, { requestBody }) {
  const type = requestBody && Object.keys(requestBody.content).find((one) => FILES[one]);
  const open = /^\/v2($|\/health)|\/ready$/.test(path);
  const parts = ["curl"];
  if (method === "post" && !requestBody) parts.push("-X POST");
  if (!open) parts.push('-H "Authorization: Bearer $KEY"');
  if (type) parts.push(`-H "Content-Type: ${type}" --data-binary ${FILES[type]}`);
  const filled = path.replace("{name}", "crodobo").replace("{version}", "1").replace("{action}", "pause");
  parts.push(new URL(filled.slice(1), document.baseURI));
  return element("pre", { tabindex: "0", "aria-label": "Example" }, parts.join(" "));
}

function operation(path, method, described) {
  const known = (described.parameters ?? []).filter((one) => one.in !== "query" || one.name !== "version");
  return element(
    "details",
    { class: "panel", id: described.operationId },
    element(
      "summary",
      {},
      element("b", { class: `method ${method}` }, method.toUpperCase()),
      element("code", {}, path),
      element("span", { class: "soft" }, (described.description ?? described.summary).split("\n")[0]),
    ),
    ...(known.length ? parameters(known) : []),
    ...(described.requestBody ? body(described.requestBody) : []),
    ...statuses(described.responses),
    element("h4", {}, "Example"),
    example(method, path, described),
  );
}

function render(api) {
  document.getElementById("about").textContent = `${api.info.description} Version ${api.info.version}.`;
  const all = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, described]) => ({ path, method, described })),
  );
  const tag = (one) => one.described.tags?.[0] ?? "Others";
  const tags = [...new Set([...ORDER, ...all.map(tag)])].filter((name) => all.some((one) => tag(one) === name));
  const sections = tags.map((name) =>
    element(
      "section",
      {},
      element("h2", {}, name),
      ...all.filter((one) => tag(one) === name).map((one) => operation(one.path, one.method, one.described)),
    ),
  );
  sections[0].querySelector("details").open = true;
  const key = "If the service uses keys, set $KEY to yours before you run an example.";
  document.getElementById("docs").replaceChildren(element("p", { class: "soft" }, key), ...sections);
}

try {
  render(await (await fetch("openapi.json")).json());
} catch {
  const sentence = "openapi.json could not be loaded. Reload the page.";
  document.getElementById("docs").replaceChildren(element("p", { class: "notice bad" }, sentence));
}
