// SPDX-License-Identifier: Apache-2.0
// What the page knows, and how it asks /api/v1/ for it. Answers are asked again every few seconds
// while the page is visible; runs are asked for only when the daemon says that something changed.

const POLL_MS = 2000, PATIENCE_MS = 15000, PAGE = 100, POINTS = 60;

export const known = {now: Date.now(), status: null, live: null, runs: new Map(), all: false, error: null};
let token = sessionStorage.getItem("token"), since = 0, started = null, turns = 0, refused = () => {};

// Resolves the escapes of a piece of a link; what is no escape stays.
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// A token may come in the fragment of a link (#token=...), which no server and no log sees.
if (location.hash.startsWith("#token=")) {
  token = decoded(location.hash.slice(7));
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", "/#/");
}

export class Refused extends Error {}

export function useToken(text) {
  token = text;
  sessionStorage.setItem("token", text);
}
export function onRefused(call) { refused = call; }

export async function ask(path) {
  const answer = await fetch(`/api/v1/${path}`, {
    headers: token ? {Authorization: `Bearer ${token}`} : {},
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE_MS) // a daemon that hangs is not shown as well
  });
  if (answer.status === 401) {
    refused(token !== null);
    throw new Refused("a token is needed");
  }
  // A number beyond 2^53 loses digits, so that such steps, terms and sequences stay the texts they came as.
  const document = JSON.parse(
    (await answer.text()).replace(/"((?:base_|parent_)?(?:step|term)|sequence|next)":(\d{16,})(?=[,}])/g, '"$1":"$2"'));
  known.now = Date.parse(document.now);
  if (document.error) throw new Error(`${document.error.code}: ${document.error.message}`);
  return document;
}

// Asks for all runs, or for those that changed since the last time. told() is called after each page.
async function readRuns(told) {
  let after = null, changes = null;
  do {
    const page = await ask(
      `runs?limit=${PAGE}&checkpoints=${POINTS}&since=${since}${after ? `&after=${encodeURIComponent(after)}` : ""}`);
    changes ??= page.changes;
    for (const run of page.runs) {
      if (run.removed) known.runs.delete(run.run);
      else known.runs.set(run.run, run);
    }
    after = page.next;
    known.all = known.all || !after;
    told(page.runs);
  } while (after);
  since = changes;
}

// Calls told(what) whenever something new is known: "live", "status", "runs" or "error". A new call ends
// the one before.
export async function watch(told) {
  const turn = ++turns;
  let statusAt = 0;
  while (turn === turns) {
    if (!document.hidden) {
      try {
        known.live = await ask("live");
        if (known.live.started_at !== started) { // another daemon, whose numbers begin anew
          started = known.live.started_at;
          since = statusAt = 0;
          known.runs.clear();
        }
        if (Date.now() - statusAt > 10 * POLL_MS) {
          known.status = await ask("status");
          statusAt = Date.now();
          told("status");
        }
        if (known.live.changes !== since) await readRuns(() => told("runs"));
        known.error = null;
        told("live");
      } catch (error) {
        if (error instanceof Refused) return;
        known.error = error;
        told("error");
      }
    }
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
}
