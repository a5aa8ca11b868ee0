// Charts of the last queries, drawn as SVG in a space of 100 × 100 that is stretched to its box.

const WORLD = "http://www.w3.org/2000/svg";
const COLOURS = 10;

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function path(kind, d) {
  const made = document.createElementNS(WORLD, "path");
  made.setAttribute("class", kind);
  made.setAttribute("d", d);
  return made;
}

// A box with a scale on its left and query numbers below it. `pointed` receives the position of the pointer.
function plot(pointed) {
  const svg = document.createElementNS(WORLD, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const top = element("span"), bottom = element("span"), from = element("span"), to = element("span");
  const box = element("div", { class: "plot" });
  box.append(
    element("div", { class: "scale soft", "aria-hidden": "true" }, top, bottom),
    svg,
    element("div", { class: "under soft", "aria-hidden": "true" }, from, to),
  );
  const point = (event) => {
    const { left, width } = svg.getBoundingClientRect();
    pointed((event.clientX - left) / width);
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", () => pointed(null));
  return { box, svg, top, bottom, from, to };
}

// Each query has its own column.
const middle = (index, points) => (100 * (index + 0.5)) / points.length;

function column(index, points, top = 0, bottom = 100) {
  const [left, right] = [index, index + 1].map((place) => (100 * place) / points.length);
  return `M${left} ${top}H${right}V${bottom}H${left}Z`;
}

function columns(points, wanted) {
  return points.map((point, index) => (wanted(point) ? column(index, points) : "")).join("");
}

function ends(parts, points) {
  parts.from.textContent = `query ${points[0].query}`;
  parts.to.textContent = points.length > 1 ? `query ${points.at(-1).query}` : "";
}

// A round number that is at least the value.
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((round) => round >= value * 0.999);
}

export class LineChart {
  // of(point): its value or null; show(value): as text; tick(value): as a label of the scale; most: the maximum, if fixed.
  constructor({ title, help, of, show, tick, most }, pointed) {
    Object.assign(this, { title, of, show, tick, most });
    this.value = element("output");
    this.parts = plot(pointed);
    const caption = element("figcaption", {}, element("b", {}, title), this.value);
    caption.append(element("span", { class: "soft" }, help));
    this.figure = element("figure", { class: "panel" }, caption, this.parts.box);
  }

  draw(points, at) {
    const { svg, top, bottom } = this.parts;
    const values = points.map(this.of);
    const known = values.filter((value) => value !== null);
    this.figure.hidden = !known.length; // not every method has this value
    const most = this.most ?? ceiling(Math.max(...known));
    const height = (value) => 100 - (100 * Math.min(value, most)) / most;
    const places = values.map((value, index) => value !== null && [middle(index, points), height(value)]);
    const pieces = split(places);
    const line = pieces.map((piece) => `M${piece.join("L")}`).join("");
    const area = pieces.map((piece) => `M${piece[0][0]} 100L${piece.join("L")}L${piece.at(-1)[0]} 100Z`).join("");
    const marked = places[at ?? places.length - 1];
    svg.replaceChildren(
      path("unlearned", columns(points, (point) => point.predicted_only)),
      path("grid", "M0 0H100M0 50H100M0 100H100"),
      path("area", area),
      path("line", line),
      path("restored", points.map((point, i) => (went_back(point) ? `M${middle(i, points)} 0V100` : "")).join("")),
      ...(at === null ? [] : [path("cross", `M${middle(at, points)} 0V100`)]),
      ...(marked ? [path("dot", `M${marked}h0`)] : []),
    );
    const shown = values[at ?? values.length - 1];
    this.value.textContent = shown === null ? "none" : this.show(shown);
    top.textContent = this.tick(most);
    bottom.textContent = "0";
    ends(this.parts, points);
    const spread = known.length ? `, from ${this.show(Math.min(...known))} to ${this.show(Math.max(...known))}` : "";
    svg.setAttribute("aria-label", `${this.title} of the last ${points.length} queries${spread}`);
  }
}

const went_back = (point) => point.restored || point.rolled_back;

// Splits places into runs without gaps.
function split(places) {
  const pieces = [[]];
  for (const place of places) {
    if (place) pieces.at(-1).push(place);
    else if (pieces.at(-1).length) pieces.push([]);
  }
  return pieces.filter((piece) => piece.length);
}

export class MixChart {
  constructor(figure, pointed) {
    this.parts = plot(pointed);
    this.legend = element("ul", { class: "legend" });
    const caption = element("figcaption", {}, element("b", {}, "Class mix"));
    caption.append(element("span", { class: "soft" }, "Share of each query predicted as each class"));
    figure.append(caption, this.parts.box, this.legend);
    [this.parts.top.textContent, this.parts.bottom.textContent] = ["100 %", "0"];
  }

  draw(points, names, show, at) {
    const groups = grouped(points, names);
    const base = points.map(() => 100);
    const paths = groups.map(({ members }, number) => {
      const d = points.map((point, index) => {
        const share = share_of(point, members);
        const low = base[index];
        base[index] = Math.max(0, low - 100 * share);
        return share ? column(index, points, base[index], low) : "";
      });
      return path(`c${number}`, d.join(""));
    });
    const cross = at === null ? [] : [path("cross", `M${middle(at, points)} 0V100`)];
    const { svg } = this.parts;
    svg.replaceChildren(...paths, ...cross);
    const point = points[at ?? points.length - 1];
    this.legend.replaceChildren(
      ...groups.map(({ name, members }, number) =>
        element(
          "li",
          { title: name },
          element("i", { class: `c${number}`, "aria-hidden": "true" }),
          element("span", {}, name),
          element("b", {}, show(share_of(point, members))),
        ),
      ),
    );
    ends(this.parts, points);
    svg.setAttribute("aria-label", `Class mix of the last ${points.length} queries. The list below shows the shares.`);
  }
}

const share_of = (point, members) => members.reduce((sum, member) => sum + point.classes[member], 0);

// All classes, or the most frequent ones and the rest as one group if there are more classes than colours.
function grouped(points, names) {
  const all = names.map((name, index) => ({ name, members: [index] }));
  if (all.length <= COLOURS) return all;
  const total = (index) => points.reduce((sum, point) => sum + point.classes[index], 0);
  const ranked = names.map((_, index) => [index, total(index)]).sort((a, b) => b[1] - a[1]);
  const top = new Set(ranked.slice(0, COLOURS - 1).map(([index]) => index));
  const rest = ranked.slice(COLOURS - 1).map(([index]) => index);
  const kept = all.filter(({ members }) => top.has(members[0]));
  return [...kept, { name: `${rest.length} others`, members: rest }];
}
