// SPDX-License-Identifier: Apache-2.0
// The view of one run: its lineages, plots over its steps, and a card for the checkpoint that is chosen.

import {Refused, ask, known} from "./data.js";
import {badge, command, commands, main, percent, table, tile} from "./pieces.js";
import {ago, bytes, clock, el, legend, number, plot, span, tree, words} from "./plot.js";

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

export function showRun(project, leaf) {
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
