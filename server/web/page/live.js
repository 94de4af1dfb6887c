// SPDX-License-Identifier: Apache-2.0
// The view of the saves under way: each rank that is not done, and which of them lag.

import {known} from "./data.js";
import {badge, commands, command, healthBanner, main, tile} from "./pieces.js";
import {bar, bytes, el, span} from "./plot.js";

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

export function showLive() {
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
