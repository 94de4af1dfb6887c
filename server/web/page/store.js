// SPDX-License-Identifier: Apache-2.0
// The view of the store and its daemon: room, scrub, garbage collection, and the damage that was found.

import {known} from "./data.js";
import {badge, command, commands, forecast, healthBanner, main, plural, quoted, table, tile} from "./pieces.js";
import {bar, bytes, clock, el, span} from "./plot.js";

function pairs(title, list, text) {
  return el("section", {class: "card"},
    el("h2", {}, title),
    el("dl", {},
      list
        .filter(([, value]) => value != null && value !== false)
        .map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)])),
    text);
}

export function showStore() {
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
