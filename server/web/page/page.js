// SPDX-License-Identifier: Apache-2.0
// The frame of the page. The fragment of the address chooses the view, a function that fills <main>, and may return a
// function that is called when something new is known.

import {decoded, known, onRefused, useToken, watch} from "./data.js";
import {showLive} from "./live.js";
import {main} from "./pieces.js";
import {showProjects} from "./projects.js";
import {showRun} from "./run.js";
import {showRuns} from "./runs.js";
import {showStore} from "./store.js";

let update = () => {};

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
