// SPDX-License-Identifier: Apache-2.0
// The view of the projects: what each of them costs.

import {Refused, ask, known} from "./data.js";
import {command, commands, main, percent, table} from "./pieces.js";
import {ago, bar, bytes, el} from "./plot.js";

export function showProjects() {
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
