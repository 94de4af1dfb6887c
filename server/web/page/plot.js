// SPDX-License-Identifier: Apache-2.0
// What the page draws: elements, numbers in words, and SVG. Texts become text nodes only, so that
// no name, tag or reason is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  const shown = children.flat(Infinity).filter((child) => child != null && child !== false && child !== "");
  node.append(...shown.map((child) => (child instanceof Node ? child : plain(child))));
  return node;
}

// Writes controls and marks of direction as escapes, so that a text cannot pass for another one.
const plain = (text) =>
  String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
export const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

export function span(ms) {
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < MINUTE) return `${(ms / SECOND).toFixed(ms < 10 * SECOND ? 1 : 0)} s`;
  if (ms < 2 * HOUR) return `${Math.round(ms / MINUTE)} min`;
  if (ms < 2 * DAY) return `${Math.round(ms / HOUR)} h`;
  return `${Math.round(ms / DAY)} days`;
}
export const ago = (text, now) => (text ? `${span(Math.max(0, now - Date.parse(text)))} ago` : "never");
export const clock = (text) =>
  text ? new Date(text).toLocaleString([], {dateStyle: "medium", timeStyle: "short"}) : "–";
export const number = (value) =>
  Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
    ? (+value).toExponential(2)
    : String(+value.toPrecision(4));

export function bar(share, kind = "", softShare = 0) {
  const width = (part) => Math.max(0, Math.min(100, 100 * part));
  return el("div", {class: "bar"},
    svg("svg", {viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true"},
      softShare > share && svg("rect", {class: "fill soft", width: width(softShare), height: 1}),
      svg("rect", {class: `fill ${kind}`, width: width(share), height: 1})));
}

// A point of /runs is [step, term, ms, bytes, marks].
function kindOf(marks) {
  if (marks.includes("f")) return "gone";
  if (marks.includes("d")) return "damaged";
  if (marks.includes("u")) return "suspect";
  return marks.includes("s") ? "off" : "good";
}

// The line of a run: a stroke for each checkpoint, one path for each kind, so that a thousand runs
// are a few thousand elements.
export function strip(points, from, to) {
  const paths = {base: "M0 15H1000", gone: "", off: "", good: "", suspect: "", damaged: "", pin: ""};
  for (const [, , ms, , marks] of points) {
    if (ms < from) continue;
    const x = Math.round((1000 * (ms - from)) / Math.max(1, to - from)), kind = kindOf(marks);
    paths[kind] += kind === "off" ? `M${x} 19v6` : kind === "gone" ? `M${x} 13v4` : `M${x} 8v14`;
    if (marks.includes("p")) paths.pin += `M${x} 2v2`;
  }
  return svg("svg", {class: "strip", viewBox: "0 0 1000 30", preserveAspectRatio: "none", "aria-hidden": "true"},
    Object.entries(paths).map(([kind, d]) => d && svg("path", {class: kind, d})));
}

function ticks(low, high, most) {
  const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((unit) => unit * power).find((unit) => unit >= raw);
  const first = Math.ceil(low / step), out = [];
  for (let i = 0; i <= most + 1; i++) out.push((first + i) * step); // a sum may stay where it is: 1e16 + 1 is 1e16
  return out.filter((at) => at <= high + step * 1e-9);
}

function walk(points, x, y) {
  let d = "";
  for (const [at, value] of points) d += `${d ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
  return d;
}

// A plot of lines over steps. series: [{name, points: [[x, y], ...]}]; format: a value in words.
export function plot(title, series, format, options = {}) {
  const shown = series.filter((one) => one.points.length > 0);
  const box = el("figure", {class: "card"}, el("h2", {}, title));
  if (shown.length === 0) return fill(box, {}, [el("p", {class: "none"}, options.none ?? "Nothing is known yet.")]);
  const W = 560, H = 210, L = 62, R = 12, T = 10, B = 26;
  const xs = shown.flatMap((one) => one.points.map((point) => point[0]));
  const ys = shown.flatMap((one) => one.points.map((point) => point[1]));
  const x0 = Math.min(...xs), x1 = Math.max(...xs), low = options.fromZero ? 0 : Math.min(...ys),
    high = Math.max(...ys);
  const pad = (high - low || Math.abs(high) || 1) * 0.08, y0 = options.fromZero ? 0 : low - pad, y1 = high + pad;
  const exact = (at) => xs.find((one) => Number(one) === at); // a step beyond 2^53 is a text
  const x = (value) => L + (W - L - R) * (x1 > x0 ? (value - x0) / (x1 - x0) : 0.5);
  const y = (value) => H - B - ((H - T - B) * (value - y0)) / (y1 - y0);
  const cursor = svg("path", {class: "cursor"});
  const readout = el("div", {class: "readout"}, "\u00a0");
  const say = (event) => {
    const rect = drawing.getBoundingClientRect(), at = ((event.clientX - rect.left) * W) / rect.width;
    const nearest = xs.reduce((best, value) => (Math.abs(x(value) - at) < Math.abs(x(best) - at) ? value : best));
    cursor.setAttribute("d", `M${x(nearest)} ${T}V${H - B}`);
    readout.textContent =
      `step ${nearest}: ` +
      shown
        .map((one) => [one, one.points.find((point) => point[0] === nearest)])
        .filter(([, point]) => point)
        .map(([one, point]) => `${one.name} ${format(point[1])}`)
        .join(", ");
  };
  const last = shown.map((one) => `${one.name} ${format(one.points.at(-1)[1])}`).join(", ");
  const drawing = svg("svg",
    {
      class: "plot",
      viewBox: `0 0 ${W} ${H}`,
      role: "img",
      onpointermove: say,
      "aria-label": `${title}: ${xs.length} values from step ${exact(x0)} to ${exact(x1)}; the last: ${last}`
    },
    ticks(y0, y1, 4).map((value) => [
      svg("path", {class: "rule", d: `M${L} ${y(value)}H${W - R}`}),
      svg("text", {x: L - 8, y: y(value) + 4, "text-anchor": "end"}, format(value))
    ]),
    ticks(x0, x1, 5).map((value) => svg("text", {x: x(value), y: H - 8, "text-anchor": "middle"}, String(value))),
    shown.map((one, index) =>
      svg("g", {class: `c${index % 3}`},
        shown.length === 1 &&
          one.points.length > 1 &&
          svg("path", {
            class: "area",
            d: `${walk(one.points, x, y)}L${x(one.points.at(-1)[0])} ${H - B}L${x(one.points[0][0])} ${H - B}Z`
          }),
        svg("path", {class: "line", d: walk(one.points, x, y)}),
        one.points.length <= 40 &&
          one.points.map((point) => svg("circle", {class: "at", cx: x(point[0]), cy: y(point[1]), r: 2.6})))),
    cursor);
  const keys =
    shown.length > 1 &&
    el("div", {},
      shown.map((one, index) => el("span", {class: `key c${index % 3}`}, el("i"), one.name)));
  return fill(box, {}, [keys, drawing, readout]);
}

const SHAPES = {circle: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0", diamond: "M0-6.5L6.5 0L0 6.5L-6.5 0Z"};

export function legend() {
  const one = (kind, shape, text) =>
    el("span", {},
      svg("svg", {viewBox: "-8 -8 16 16", "aria-hidden": "true"}, svg("path", {class: kind, d: SHAPES[shape]})),
      text);
  return el("div", {class: "legend"},
    one("good", "circle", "on the lineage"),
    one("off", "circle", "superseded"),
    one("pin", "diamond", "pinned"),
    one("suspect", "circle", "suspect"),
    one("damaged", "circle", "damaged"),
    one("gone", "circle", "forgotten"));
}

// The lineages of a run: one row for each term, time from left to right; a term's first checkpoint
// hangs on the checkpoint that the term continued.
export function tree(entries, terms, choose, chosen) {
  const sorted = [...entries].sort((a, b) => a.sequence - b.sequence);
  const rows = [...new Set(sorted.map((entry) => entry.term))].sort((a, b) => a - b);
  const W = 1120, L = 58, R = 20, ROW = 30, H = rows.length * ROW + 14;
  const x = (index) => L + (W - L - R) * (sorted.length > 1 ? index / (sorted.length - 1) : 0.5);
  const y = (term) => 20 + rows.indexOf(term) * ROW;
  const place = new Map(sorted.map((entry, index) => [`${entry.step}@${entry.term}`, [x(index), y(entry.term)]]));
  const edges = [];
  const last = new Map();
  for (const entry of sorted) {
    const parent = terms.find((term) => term.term === entry.term);
    const from = last.get(entry.term) ?? place.get(`${parent?.parent_step}@${parent?.parent_term}`);
    const to = place.get(`${entry.step}@${entry.term}`);
    if (from)
      edges.push(
        svg("path", {
          class: `edge ${entry.on_lineage ? "trunk" : ""}`,
          d: from[1] === to[1] ? `M${from}L${to}` : `M${from}C${from[0] + 24} ${to[1]} ${from[0] + 6} ${to[1]} ${to}`
        }));
    last.set(entry.term, to);
  }
  const nodes = sorted.map((entry) => {
    const id = `${entry.step}@${entry.term}`,
      kind =
        entry.state === "forgotten"
          ? "gone"
          : entry.health !== "verified"
            ? entry.health
            : entry.pinned
              ? "pin"
              : entry.on_lineage
                ? "good"
                : "off";
    return svg("path",
      {
        class: `node ${kind}${id === chosen ? " chosen" : ""}`,
        d: SHAPES[entry.pinned ? "diamond" : "circle"],
        transform: `translate(${place.get(id)})`,
        onclick: () => choose(id)
      },
      svg("title", {}, `${id} ${words(entry)}`));
  });
  return svg("svg",
    {
      class: "plot tree",
      viewBox: `0 0 ${W} ${H}`,
      role: "img",
      "aria-label": `${sorted.length} checkpoints of ${rows.length} terms; the table below has each`
    },
    rows.map((term) => svg("text", {x: 4, y: y(term) + 4}, `term ${term}`)),
    edges,
    nodes);
}

export function words(entry) {
  const list = [entry.state === "committed" ? entry.health : entry.state];
  if (entry.latest) list.push("latest");
  if (entry.state === "committed" && !entry.on_lineage) list.push("superseded");
  if (entry.pinned) list.push("pinned");
  return list.join(", ");
}
