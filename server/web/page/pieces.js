// SPDX-License-Identifier: Apache-2.0
// What several views are made of: tiles, tables, commands to copy, and words about the store.

import {known} from "./data.js";
import {DAY, bytes, el, span} from "./plot.js";

const said = document.getElementById("said");
export const main = document.getElementById("main");
let timer = 0;

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
export const quoted = (word) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function server() {
  const address = known.status?.daemon.addresses.split(" ")[0] ?? "";
  return address ? ["--server", address.replace(/^tcp:/, "")] : [];
}
export const command = (...list) => ["cairn", ...list, ...server()].map((word) => quoted(String(word))).join(" ");

export function commands(list) {
  return el("ul", {class: "commands"},
    list.map(([label, text]) =>
      el("li", {},
        el("span", {}, label),
        el("code", {tabindex: 0}, text),
        el("button", {type: "button", "aria-label": `Copy the command: ${label}`, onclick: () => copy(text)}, "Copy")))
  );
}

export const tile = (label, value, note, kind = "", more = null) =>
  el("div", {class: `card tile ${kind}`},
    el("div", {class: "label"}, label),
    el("div", {class: "value"}, value),
    note && el("div", {class: "note"}, note),
    more);
export const badge = (kind, text) => el("span", {class: `badge ${kind}`}, text);
export const percent = (part, whole) => `${Math.round((100 * part) / whole)} %`;
export const plural = (count, noun) => `${count.toLocaleString()} ${noun}${count === 1 ? "" : "s"}`;

export function table(titles, rows, none) {
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

export function healthBanner(health) {
  if (!health || health.word === "green") return null;
  return el("section", {class: `banner ${health.word}`, "aria-label": "Health"},
    el("strong", {}, health.word === "red" ? "Saves are refused" : "Needs a look"),
    el("p", {}, health.text),
    el("p", {class: "soft"}, health.remedy));
}

// When the store is full, in words.
export function forecast(capacity) {
  if (!capacity.is_known) return ["–", "too little was saved to tell"];
  const net = capacity.net_bytes_per_day, rate = `${bytes(Math.abs(net))} a day ${net < 0 ? "freed" : "more"}`;
  if (!capacity.full_at) return ["not in sight", rate];
  const left = Date.parse(capacity.full_at) - known.now;
  return [`in ${span(left)}`, `at this rate: ${rate}`, left < 3 * DAY ? "bad" : left < 14 * DAY ? "warn" : ""];
}
