// SPDX-License-Identifier: Apache-2.0
// The view of all runs: totals of the store, and a row for each run with its checkpoints in time.

import {known} from "./data.js";
import {badge, forecast, healthBanner, main, plural, tile} from "./pieces.js";
import {DAY, ago, bar, bytes, el, legend, strip} from "./plot.js";

const GROUP = 25, ROW_REM = 3.5; // rows that are made together; the height of one in page.css
const RANGES = [["1d", DAY], ["7d", 7 * DAY], ["30d", 30 * DAY], ["all", Infinity]];
let filter = "", range = sessionStorage.getItem("range") ?? "7d";

function badges(run) {
  const list = [];
  if (run.record !== "read") list.push(badge("bad", `record ${run.record}`));
  if (run.loss) list.push(badge("bad", "record has lost entries"));
  if (run.saves_open > 0) list.push(badge("info", plural(run.saves_open, "save") + " open"));
  if (run.damaged > 0) list.push(badge("bad", `${run.damaged} damaged`));
  if (run.suspect > 0) list.push(badge("warn", `${run.suspect} suspect`));
  // A run that has ended is not late: its ranks are gone.
  const isLate =
    run.usual_interval_ms > 0 &&
    known.now - Date.parse(run.last_commit_at) > Math.max(60000, 2 * run.usual_interval_ms);
  if (isLate && run.connected_ranks > 0) list.push(badge("warn", "late"));
  return list;
}

function runRow(run, from) {
  return el("a", {class: "run", href: `#/run/${run.run}`},
    el("div", {class: "name"}, run.name, el("small", {}, run.project), badges(run)),
    el("div", {},
      run.latest ? `step ${run.latest.step.toLocaleString()}` : "no checkpoint",
      el("small", {}, ago(run.last_commit_at, known.now))),
    el("div", {class: "right size"},
      bytes(run.stored_bytes),
      el("small", {}, plural(run.verified + run.suspect + run.damaged, "ckpt"))),
    el("div", {class: "line"}, strip(run.points ?? [], from, known.now)));
}

// Shows many rows in a list: groups of them are made when they come near the window, and keep the room
// of their rows until then. Returns show(above, count, rowOf), which fills the list anew.
function rowsNear(list) {
  const near = new Set([0]); // the numbers of the groups that are made
  const fillGroup = (group) => {
    if (group.hasChildNodes()) return;
    group.style.height = "";
    group.append(...group.rows());
  };
  const seen = new IntersectionObserver(
    (changes) =>
      changes.forEach(({target, isIntersecting}) => {
        if (!isIntersecting) {
          near.delete(target.number);
          return;
        }
        near.add(target.number);
        fillGroup(target);
      }),
    {rootMargin: "600px"});
  return (above, count, rowOf) => {
    const groups = Array.from({length: Math.ceil(count / GROUP)}, (_, number) => {
      const first = number * GROUP, size = Math.min(GROUP, count - first);
      const rows = () =>
        Array.from({length: size}, (_, index) =>
          el("div", {role: "listitem", "aria-posinset": first + index + 1, "aria-setsize": count}, rowOf(first + index))
        );
      const group = Object.assign(el("div", {role: "none"}), {number, rows});
      group.style.height = `${ROW_REM * size}rem`;
      return group;
    });
    seen.disconnect();
    for (const number of near) if (groups[number]) fillGroup(groups[number]);
    list.replaceChildren(above, ...groups);
    groups.forEach((group) => seen.observe(group));
  };
}

function rangeButtons(chosen) {
  return el("div", {class: "group", role: "group", "aria-label": "Range of time"},
    RANGES.map(([name]) =>
      el("button",
        {
          type: "button",
          "aria-pressed": String(name === range),
          onclick: () => {
            range = name;
            sessionStorage.setItem("range", name);
            chosen();
          }
        },
        name)));
}

function fromOf(runs) {
  const wide = RANGES.find(([name]) => name === range)?.[1] ?? 7 * DAY;
  const first = runs.reduce(
    (least, run) => Math.min(least, Date.parse(run.first_commit_at) || known.now),
    known.now - 60000);
  return Math.max(known.now - wide, first - (known.now - first) / 50);
}

function overview() {
  const totals = known.status?.totals, store = known.status?.store;
  if (!totals) return el("div", {class: "tiles"});
  const [when, note, kind] = forecast(known.status.capacity), used = 1 - store.free_bytes / store.total_bytes;
  return el("div", {class: "tiles"},
    tile("Runs", totals.runs.toLocaleString(), totals.runs_unreadable ? `${totals.runs_unreadable} unreadable` : null),
    tile("Checkpoints",
      (totals.verified + totals.suspect + totals.damaged).toLocaleString(),
      totals.damaged ? `${totals.damaged} damaged` : `${totals.forgotten} forgotten`,
      totals.damaged ? "bad" : ""),
    tile("Free",
      store.answers ? bytes(store.free_bytes) : "unknown",
      `of ${bytes(store.total_bytes)}`,
      "",
      store.answers && bar(used, used > 0.95 ? "bad" : used > 0.85 ? "warn" : "")),
    tile("Full", when, note, kind));
}

export function showRuns() {
  const top = el("div", {class: "stack"}), list = el("div", {class: "card runs", role: "list", "aria-label": "Runs"}),
    count = el("span", {class: "soft", role: "status"});
  const buttons = el("div"), showRows = rowsNear(list);
  const paint = () => {
    buttons.replaceChildren(rangeButtons(paint));
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean), runs = [...known.runs.values()];
    const shown = runs
      .filter((run) => words.every((word) => run.run.toLowerCase().includes(word)))
      .sort(
        (a, b) =>
          (b.saves_open > 0) - (a.saves_open > 0) ||
          (Date.parse(b.last_commit_at) || 0) - (Date.parse(a.last_commit_at) || 0));
    const from = fromOf(shown),
      date = (ms) =>
        known.now - ms < DAY
          ? new Date(ms).toLocaleTimeString([], {timeStyle: "short"})
          : new Date(ms).toLocaleDateString([], {day: "numeric", month: "short"});
    top.replaceChildren(...[healthBanner(known.live?.health), overview()].filter(Boolean));
    count.textContent = `${plural(shown.length, "run")}${known.all ? "" : ", reading more"}`;
    showRows(
      shown.length === 0
        ? el("p", {class: "none"},
            known.all ? (runs.length ? "No run has such a name." : "Nothing was saved here yet.") : "Reading.")
        : el("div", {class: "run titles", "aria-hidden": "true"},
            el("div", {}, "Run"),
            el("div", {}, "Latest"),
            el("div", {class: "right"}, "Stored"),
            el("div", {class: "axis"}, el("span", {}, date(from)), el("span", {}, "now"))),
      shown.length,
      (index) => runRow(shown[index], from));
  };
  const search = el("input", {
    type: "search",
    placeholder: "Filter by name",
    "aria-label": "Filter runs by name",
    value: filter,
    oninput: () => {
      filter = search.value;
      paint();
    }
  });
  main.replaceChildren(
    el("div", {class: "stack"},
      top,
      el("div", {class: "head"}, el("h1", {}, "Runs"), count, el("div", {class: "grow"}), search, buttons),
      list,
      legend()));
  paint();
  let busy = false;
  return (what) => {
    if (what === "live" || busy) return;
    busy = true;
    requestAnimationFrame(() => {
      busy = false;
      if (main.contains(list) && !list.contains(document.activeElement)) paint();
    });
  };
}
