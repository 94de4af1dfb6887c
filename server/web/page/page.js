// SPDX-License-Identifier: Apache-2.0
// The views of the page. Each is a function that fills <main>, and may return a function that is
// called when something new is known. The fragment of the address chooses the view.

import {ask, decoded, known, onRefused, Refused, useToken, watch} from "/data.js";
import {ago, bar, bytes, clock, el, legend, number, plot, span, strip, tree, words} from "/plot.js";

const main = document.getElementById("main"), said = document.getElementById("said");
const DAY = 86400000, GROUP = 25, ROW_REM = 3.5; // rows that are made together; the height of one in page.css
const RANGES = [["1d", DAY], ["7d", 7 * DAY], ["30d", 30 * DAY], ["all", Infinity]];
let filter = "", range = sessionStorage.getItem("range") ?? "7d", update = () => {}, timer = 0;

/* --- pieces --- */

function say(text) {
  said.textContent = text;
  said.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => said.classList.remove("shown"), 1800);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", {readonly: true}, text); // a page without TLS has no clipboard
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied.");
}

// Quotes a word for a shell, whatever is in it.
const quoted = (word) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function server() {
  const address = known.status?.daemon.addresses.split(" ")[0] ?? "";
  return address ? ["--server", address.replace(/^tcp:/, "")] : [];
}
const command = (...list) => ["cairn", ...list, ...server()].map((word) => quoted(String(word))).join(" ");

function commands(list) {
  return el("ul", {class: "commands"},
    list.map(([label, text]) =>
      el("li", {},
        el("span", {}, label),
        el("code", {tabindex: 0}, text),
        el("button", {type: "button", "aria-label": `Copy the command: ${label}`, onclick: () => copy(text)}, "Copy")))
  );
}

const tile = (label, value, note, kind = "", more = null) =>
  el("div", {class: `card tile ${kind}`},
    el("div", {class: "label"}, label),
    el("div", {class: "value"}, value),
    note && el("div", {class: "note"}, note),
    more);
const badge = (kind, text) => el("span", {class: `badge ${kind}`}, text);
const percent = (part, whole) => `${Math.round((100 * part) / whole)} %`;
const plural = (count, noun) => `${count.toLocaleString()} ${noun}${count === 1 ? "" : "s"}`;

function table(titles, rows, none) {
  if (rows.length === 0) return el("p", {class: "none"}, none);
  const cell = (name, title, content) =>
    el(name,
      {
        class: title.replace(/[^>~]/g, "").replace(">", "num ").replace("~", "wide"),
        scope: name === "th" ? "col" : null
      },
      content);
  return el("div", {class: "scroll"},
    el("table", {},
      el("thead", {},
        el("tr", {},
          titles.map((title) => cell("th", title, title.replace(/[>~]/g, ""))))),
      el("tbody", {},
        rows.map((row) =>
          el("tr", {class: row.chosen ? "chosen" : null},
            row.cells.map((content, index) => cell("td", titles[index], content)))))));
}

function healthBanner(health) {
  if (!health || health.word === "green") return null;
  return el("section", {class: `banner ${health.word}`, "aria-label": "Health"},
    el("strong", {}, health.word === "red" ? "Saves are refused" : "Needs a look"),
    el("p", {}, health.text),
    el("p", {class: "soft"}, health.remedy));
}

// When the store is full, in words.
function forecast(capacity) {
  if (!capacity.is_known) return ["–", "too little was saved to tell"];
  const net = capacity.net_bytes_per_day, rate = `${bytes(Math.abs(net))} a day ${net < 0 ? "freed" : "more"}`;
  if (!capacity.full_at) return ["not in sight", rate];
  const left = Date.parse(capacity.full_at) - known.now;
  return [`in ${span(left)}`, `at this rate: ${rate}`, left < 3 * DAY ? "bad" : left < 14 * DAY ? "warn" : ""];
}

/* --- runs --- */

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

function showRuns() {
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

/* --- one run --- */

function chosenCard(name, entry, next) {
  const id = `${entry.step}@${entry.term}`,
    pairs = [
      ["Standing", words(entry)],
      ["Committed", clock(entry.committed_at)],
      ["Ranks", entry.world_size],
      ["State", bytes(entry.plain_bytes)],
      ["Stored",
        bytes(entry.stored_bytes) + (entry.plain_bytes ? ` (${percent(entry.stored_bytes, entry.plain_bytes)})` : "")],
      ["Builds on", entry.base_term ? `${entry.base_step}@${entry.base_term}` : "nothing: it is full"],
      ["Tags", entry.tags.join(", ") || "none"],
      ...Object.entries(entry.metrics).map(([key, value]) => [key, number(value)]),
      ["Says", entry.text]
    ].filter(([, value]) => value != null);
  const list =
    entry.state === "forgotten"
      ? [["Bring back", command("undelete", name, id)]]
      : [
          ["Restore", command("restore", name, id, "--to", `${name.split("/")[1]}-${id}`)],
          ["Verify", command("verify", name, id)],
          ["Show", command("show", name, id)],
          next && ["Diff", command("diff", name, `${next.step}@${next.term}`, id)],
          entry.pinned ? ["Unpin", command("unpin", name, id)] : ["Pin", command("pin", name, id)],
          ["Forget", command("forget", name, id)]
        ].filter(Boolean);
  return el("section", {class: "card", "aria-label": `Checkpoint ${id}`},
    el("h2", {}, "Checkpoint ", el("span", {class: "mono"}, id)),
    el("div", {class: "grid"},
      el("dl", {},
        pairs.map(([key, value]) => [el("dt", {}, key), el("dd", {}, String(value))])),
      commands(list)));
}

function runPlots(entries, run, chosenMetric, choose) {
  const sorted = entries
    .filter((entry) => entry.state === "committed" && entry.on_lineage)
    .sort((a, b) => a.step - b.step);
  const trunk = new Set(sorted.map((entry) => `${entry.step}@${entry.term}`));
  const line = (name, value) => ({
    name,
    points: sorted
      .map((entry) => [entry.step, value(entry)])
      .filter((point) => point[1] != null && Math.abs(point[1]) < 1e300) // more has no scale
  });
  const times = (name, key) => ({
    name,
    points: run.saves
      .filter((save) => save[key] != null && trunk.has(`${save.step}@${save.term}`))
      .sort((a, b) => a.step - b.step)
      .map((save) => [save.step, save[key]])
  });
  const names = [...new Set(sorted.flatMap((entry) => Object.keys(entry.metrics)))].sort(
    (a, b) => b.includes("loss") - a.includes("loss") || a.localeCompare(b));
  const metric = names.includes(chosenMetric) ? chosenMetric : names[0];
  const curve = plot(
    metric ?? "Metrics",
    metric ? [line(metric, (entry) => (Object.hasOwn(entry.metrics, metric) ? entry.metrics[metric] : null))] : [],
    number,
    {none: "No checkpoint has metrics. A save with metrics, or `cairn annotate`, gives some."});
  if (names.length > 1) {
    curve.querySelector("h2").replaceChildren(
      el("select", {"aria-label": "Metric", onchange: (event) => choose(event.target.value)},
        names.map((name) => el("option", {value: name, selected: name === metric}, name))));
  }
  return el("div", {class: "grid"},
    curve,
    plot("Size", [line("state", (entry) => entry.plain_bytes), line("stored", (entry) => entry.stored_bytes)], bytes, {
      fromZero: true
    }),
    plot("Stored share",
      [line("stored", (entry) => (entry.plain_bytes ? entry.stored_bytes / entry.plain_bytes : null))],
      (value) => `${Math.round(100 * value)} %`,
      {fromZero: true}),
    plot("Time of a save",
      [
        times("until durable", "persist_ms"),
        times("training blocked", "blocked_ms"),
        times("seen by the daemon", "took_ms")
      ],
      span,
      {fromZero: true, none: "This daemon has seen no save of the run since it started."}));
}

function showRun(project, leaf) {
  const name = `${project}/${leaf}`, body = el("div", {class: "stack"}, el("p", {class: "none"}, "Reading."));
  let run = null, entries = [], next = null, chosen = null, metric = "loss", seen = -1;
  main.replaceChildren(body);
  const read = async (before) => {
    const [one, page, gone] = await Promise.all([
      ask(`runs/${name}`),
      ask(`runs/${name}/checkpoints?limit=200${before ? `&before=${before}` : ""}`),
      ask(`runs/${name}/checkpoints?forgotten=1&limit=100`)
    ]);
    const old = before ? entries.filter((entry) => entry.state !== "forgotten") : [];
    entries = [...old, ...page.checkpoints.filter((entry) => entry.state !== "open"), ...gone.checkpoints].sort(
      (a, b) => b.sequence - a.sequence);
    run = one;
    next = page.next;
    seen = run.changed;
  };
  const choose = (id) => {
    chosen = chosen === id ? null : id;
    paint();
  };
  const paint = () => {
    const focused = document.activeElement?.dataset?.id,
      at = (id) => entries.find((entry) => `${entry.step}@${entry.term}` === id);
    const pick = at(chosen) ?? null, newest = entries.find((entry) => entry.latest);
    const parts = [
      el("div", {class: "head"},
        el("div", {class: "grow"},
          el("div", {class: "soft"}, el("a", {href: "#/"}, "Runs"), " / ", project),
          el("h1", {}, leaf)),
        badges(run)),
      run.loss &&
        el("section", {class: "banner red"},
          el("strong", {}, "The record of this run has lost entries"),
          el("p", {}, run.loss)),
      el("div", {class: "tiles"},
        tile("Latest",
          run.latest ? `step ${run.latest.step.toLocaleString()}` : "–",
          ago(run.last_commit_at, known.now)),
        tile("Checkpoints",
          (run.verified + run.suspect + run.damaged).toLocaleString(),
          run.damaged ? `${run.damaged} damaged` : `${run.forgotten} forgotten`,
          run.damaged ? "bad" : ""),
        tile("Stored",
          bytes(run.stored_bytes),
          run.reclaimable_bytes ? `${bytes(run.reclaimable_bytes)} reclaimable` : null),
        tile("Usual interval", run.usual_interval_ms ? span(run.usual_interval_ms) : "–", null)),
      el("section", {class: "card"},
        el("h2", {}, "Lineages"),
        entries.length
          ? el("div", {class: "scroll"}, tree(entries.slice(0, 200), run.terms, choose, chosen))
          : el("p", {class: "none"}, "No checkpoint yet."),
        legend()),
      pick && chosenCard(name, pick, newest && newest !== pick ? newest : null),
      runPlots(entries, run, metric, (value) => {
        metric = value;
        paint();
      }),
      el("section", {class: "card"},
        el("h2", {}, "Checkpoints"),
        table(["Checkpoint", "Standing", "Committed~", "State>~", "Stored>", "Tags~"],
          entries.map((entry) => {
            const id = `${entry.step}@${entry.term}`;
            return {
              chosen: id === chosen,
              cells: [
                el("button",
                  {
                    type: "button",
                    class: "link",
                    "aria-expanded": String(id === chosen),
                    "data-id": id,
                    onclick: () => choose(id)
                  },
                  id),
                badge(
                  entry.state === "forgotten"
                    ? ""
                    : entry.health === "damaged"
                      ? "bad"
                      : entry.health === "suspect"
                        ? "warn"
                        : entry.on_lineage
                          ? "good"
                          : "",
                  words(entry)),
                clock(entry.committed_at),
                bytes(entry.plain_bytes),
                bytes(entry.stored_bytes),
                entry.tags.map((tag) => badge("info", tag))
              ]
            };
          }),
          "No checkpoint yet."),
        next && el("button", {type: "button", onclick: () => load(next)}, "Show older ones")),
      el("section", {class: "card"},
        el("h2", {}, "Commands"),
        commands([
          ["Resume from", command("restore", name, "latest", "--to", leaf)],
          ["Watch saves", command("top", name)],
          ["What happened", command("log", name)],
          ["How often", command("advise", name)],
          ["Verify all", command("verify", name)]
        ]))
    ];
    body.replaceChildren(...parts.filter(Boolean));
    if (focused) body.querySelector(`[data-id="${focused}"]`)?.focus();
  };
  const load = (before) =>
    read(before).then(paint, (error) => {
      if (!(error instanceof Refused)) body.replaceChildren(el("p", {class: "none", role: "alert"}, error.message));
    });
  load();
  return (what) => {
    if (what === "runs" && run && known.runs.get(name)?.changed !== seen) load();
  };
}

/* --- saves under way --- */

function rankRow(rank, expected, median) {
  const lags = rank.durable_bytes < median / 2 || !rank.has_come, quiet = rank.quiet_ms > 5000;
  const note = !rank.has_come
    ? "has not come"
    : !rank.connected && !rank.handed_over
      ? "connection lost"
      : quiet
        ? `silent for ${span(rank.quiet_ms)}`
        : lags
          ? "behind"
          : "";
  return el("div", {class: "rank", role: "listitem"},
    el("span", {}, `rank ${rank.rank}`),
    bar(rank.durable_bytes / expected, note ? "warn" : "", rank.received_bytes / expected),
    el("span", {class: "soft"}, `${bytes(rank.durable_bytes)} durable`),
    el("span", {class: "note"}, note ? badge("warn", note) : ""));
}

function saveCard(save) {
  const came = save.ranks.map((rank) => rank.durable_bytes).sort((a, b) => a - b), median = came[came.length >> 1] ?? 0;
  const expected = Math.max(
    1,
    save.last_plain_bytes / save.world_size,
    ...save.ranks.map((rank) => rank.received_bytes));
  return el("section", {class: "card"},
    el("div", {class: "head"},
      el("h2", {class: "grow"}, el("a", {href: `#/run/${save.run}`}, save.run), ` step ${save.step.toLocaleString()}`),
      el("span", {class: "soft"}, `${save.sealed_ranks} of ${save.world_size} ranks done, since ${span(save.age_ms)}`)),
    bar(save.sealed_ranks / save.world_size, "good"),
    el("div", {class: "ranks", role: "list", "aria-label": "Ranks that are not done"},
      save.ranks.map((rank) => rankRow(rank, expected, median))),
    save.ranks_behind > save.ranks.length &&
      el("p", {class: "soft"}, `${save.ranks_behind - save.ranks.length} more ranks are not done`),
    commands([["Watch", command("top", save.run)]]));
}

function showLive() {
  const body = el("div", {class: "stack"});
  let before = null, beforeAt = 0, rates = ["–", "–"];
  main.replaceChildren(el("div", {class: "head"}, el("h1", {}, "Saves under way")), body);
  const paint = (what) => {
    const live = known.live;
    if (!live || what === "runs" || what === "status") return;
    const at = performance.now(), counts = live.counts;
    if (before && counts !== before) {
      const seconds = Math.max(0.001, (at - beforeAt) / 1000);
      rates = [counts.bytes_in, counts.bytes_out].map(
        (value, index) => `${bytes(Math.max(0, value - [before.bytes_in, before.bytes_out][index]) / seconds)}/s`);
    }
    before = counts;
    beforeAt = at;
    body.replaceChildren(
      ...[
        healthBanner(live.health),
        el("div", {class: "tiles"},
          tile("Coming in", rates[0]),
          tile("Going out", rates[1]),
          tile("Connections", counts.connections),
          tile("Committed",
            counts.saves_committed.toLocaleString(),
            counts.saves_failed ? `${counts.saves_failed} failed` : "since the daemon's start")),
        ...(live.saves.length
          ? live.saves.map(saveCard)
          : [el("p", {class: "card none"}, "No save is under way. This view shows each rank of a save while it runs.")])
      ].filter(Boolean));
  };
  paint("live");
  return paint;
}

/* --- store --- */

function pairs(title, list, text) {
  return el("section", {class: "card"},
    el("h2", {}, title),
    el("dl", {},
      list
        .filter(([, value]) => value != null && value !== false)
        .map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)])),
    text);
}

function showStore() {
  const body = el("div", {class: "stack"});
  main.replaceChildren(el("div", {class: "head"}, el("h1", {}, "Store")), body);
  const paint = (what) => {
    const status = known.status;
    if (what === "runs" || (what === "live" && body.children.length)) return;
    if (!status?.store) {
      body.replaceChildren(
        ...[
          healthBanner(known.live?.health ?? status?.health),
          el("p", {class: "card none"}, "The store is not open.")
        ].filter(Boolean));
      return;
    }
    const {store, scrub, gc, retention, capacity, daemon} = status,
      every = (ms) => (ms ? `every ${span(ms)}` : "only when asked");
    const used = 1 - store.free_bytes / store.total_bytes, [when, note, kind] = forecast(capacity);
    const failed = retention?.errors ? `, ${plural(retention.errors, "error")}` : "";
    body.replaceChildren(
      ...[
        healthBanner(known.live?.health ?? status.health),
        el("div", {class: "tiles"},
          tile("Health", status.health.word, null, {red: "bad", yellow: "warn"}[status.health.word] ?? ""),
          tile("Free",
            bytes(store.free_bytes),
            `of ${bytes(store.total_bytes)}`,
            "",
            bar(used, used > 0.95 ? "bad" : used > 0.85 ? "warn" : "")),
          tile("Full", when, note, kind),
          tile("Written", bytes(capacity.written_bytes), capacity.since ? `since ${clock(capacity.since)}` : null)),
        el("div", {class: "grid"},
          pairs("Store",
            [
              ["Place", store.url ?? store.backend],
              ["UUID", el("span", {class: "mono"}, store.uuid)],
              ["Takes saves", store.read_only ? "no: it is read-only" : "yes"],
              ["Several daemons", store.shared ? "yes" : "no"]
            ],
            commands([["Doctor", `cairn doctor --store ${quoted(store.url ?? "URL")}`]])),
          pairs("Daemon",
            [
              ["Version", daemon.version],
              ["Started", clock(daemon.started_at)],
              ["Addresses", daemon.addresses || "none"],
              ["Connections", String(daemon.connections)],
              ["Received", bytes(daemon.bytes_in)],
              ["Sent", bytes(daemon.bytes_out)]
            ],
            commands([["Status", command("status")]])),
          scrub &&
            pairs("Scrub",
              [
                [
                  "Now",
                  scrub.on_other_daemon
                    ? "another daemon does it"
                    : scrub.running
                      ? scrub.yielding
                        ? "waits for saves"
                        : "reading"
                      : "idle"
                ],
                ["Schedule", every(scrub.every_ms)],
                ["Last complete", clock(scrub.ended_at)],
                ["Read", `${bytes(scrub.bytes)} of ${plural(scrub.checkpoints, "checkpoint")}`],
                ["Found", scrub.findings ? badge("bad", plural(scrub.findings, "damaged item")) : "nothing damaged"]
              ],
              commands([["Scrub now", command("scrub", "--wait")]])),
          gc &&
            pairs("Garbage collection",
              [
                ["Now", gc.on_other_daemon ? "another daemon does it" : gc.running ? "running" : "idle"],
                ["Schedule", every(gc.every_ms)],
                ["Last", clock(gc.ended_at)],
                ["Given back", bytes(gc.reclaimed_bytes)],
                ["Waiting", `${plural(gc.waiting_checkpoints, "checkpoint")}, up to ${bytes(gc.waiting_bytes)}`],
                ["Next", gc.next_reclaim_at && clock(gc.next_reclaim_at)],
                ["Error", gc.error && badge("bad", gc.error)],
                ["Retention",
                  retention ? `last applied ${clock(retention.last_good_at)}${failed}` : "not by this daemon"]
              ],
              commands([["Collect", command("gc")]]))),
        scrub?.recent.length > 0 &&
          el("section", {class: "card"},
            el("h2", {}, "Damage that scrubs have found"),
            table(["Run", "Checkpoint", "Health", "Found~", "What"],
              scrub.recent.map((finding) => ({
                cells: [
                  el("a", {href: `#/run/${finding.run}`}, finding.run),
                  finding.term ? `${finding.step}@${finding.term}` : "record",
                  badge(finding.health === "damaged" ? "bad" : "warn", finding.health),
                  clock(finding.at),
                  finding.text
                ]
              })),
              ""))
      ].filter(Boolean));
  };
  paint();
  return paint;
}

/* --- projects --- */

function showProjects() {
  const body = el("section", {class: "card"}, el("p", {class: "none"}, "Reading."));
  main.replaceChildren(
    el("div", {class: "head"},
      el("h1", {}, "Projects"),
      el("span", {class: "soft"}, "what each costs, in bytes of the store")),
    body);
  const load = async () => {
    const all = [];
    let after = null;
    do {
      const page = await ask(`projects${after ? `?after=${encodeURIComponent(after)}` : ""}`);
      all.push(...page.projects);
      after = page.next;
    } while (after);
    const most = Math.max(1, ...all.map((project) => project.stored_bytes));
    all.sort((a, b) => b.stored_bytes - a.stored_bytes);
    body.replaceChildren(
      table(["Project", "Runs>~", "Checkpoints>~", "Stored>", "Share~", "This week>~", "Reclaimable>~", "Quota>",
        "Last commit~"],
        all.map((project) => ({
          cells: [
            project.project,
            project.runs.toLocaleString(),
            project.checkpoints.toLocaleString(),
            bytes(project.stored_bytes),
            bar(project.stored_bytes / most),
            `+${bytes(project.written_bytes_week)}`,
            bytes(project.reclaimable_bytes),
            project.quota_bytes
              ? `${percent(project.stored_bytes, project.quota_bytes)} of ${bytes(project.quota_bytes)}`
              : "none",
            ago(project.last_commit_at, known.now)
          ]
        })),
        "Nothing was saved here yet."),
      commands([["Statistics", command("stats")]]));
  };
  const fail = (error) => {
    if (!(error instanceof Refused)) body.replaceChildren(el("p", {class: "none", role: "alert"}, error.message));
  };
  load().catch(fail);
  return (what) => {
    if (what === "runs") load().catch(fail);
  };
}

/* --- the frame --- */

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const views = {
    run: () => showRun(parts[1] ?? "", parts[2] ?? ""),
    live: showLive,
    store: showStore,
    projects: showProjects
  };
  for (const link of document.querySelectorAll("nav a")) {
    const here =
      link.getAttribute("href") === (Object.hasOwn(views, parts[0]) && parts[0] !== "run" ? `#/${parts[0]}` : "#/");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = parts[0] === "run" ? `${parts[1]}/${parts[2]} – Cairn` : "Cairn";
  update = (Object.hasOwn(views, parts[0]) ? views[parts[0]] : showRuns)() ?? (() => {});
}

function frame() {
  const health = document.getElementById("health"), live = document.getElementById("live-count"),
    word = known.error ? "red" : known.live?.health.word;
  health.className = `pill ${word ?? ""}`;
  document.getElementById("health-word").textContent = known.error ? "no answer" : (word ?? "connecting");
  live.hidden = !known.live?.saves.length;
  live.textContent = known.live?.saves.length ?? "";
  if (known.status)
    document.getElementById("about").textContent =
      `cairnd ${known.status.daemon.version}, ${known.status.store?.url ?? "no store yet"}`;
  document.getElementById("stamp").textContent = known.error
    ? String(known.error.message)
    : `as of ${new Date(known.now).toLocaleTimeString()}`;
}

function start() {
  const form = document.getElementById("token");
  onRefused((wasTried) => {
    form.hidden = false;
    main.hidden = true;
    document.getElementById("token-error").textContent = wasTried ? "The daemon does not know this token." : "";
    document.getElementById("token-text").focus();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    useToken(document.getElementById("token-text").value.trim());
    form.hidden = true;
    main.hidden = false;
    run();
  });
  addEventListener("hashchange", () => {
    route();
    main.focus();
    scrollTo(0, 0);
  });
  run();
}

function run() {
  route();
  const begin = () =>
    watch((what) => {
      frame();
      update(what);
    });
  if (document.hidden)
    begin(); // it has no frames
  else requestAnimationFrame(() => setTimeout(begin)); // the page is painted first, before a thousand runs keep it busy
}

start();
