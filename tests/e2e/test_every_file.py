# SPDX-License-Identifier: Apache-2.0
"""A single fault of the medium costs at most the checkpoint that it hits (I1). Every file and every folder of a store of two
runs is flipped, cut, emptied, deleted and made unreadable, one at a time. After each the promise is asked of the command line
over the store, of the daemon, of `restore` by ranks and of `verify`; then every remedy that was printed is typed as it stands,
and afterwards everything but what was hit must be as before, and new saves must work.

Two figures are printed, and both must be 0: cases that cost more than what was hit, and remedies that fail. The short form
takes one case of each kind of place, the faults in turn, then others in a random order until its time is over; CAIRN_FULL=1
takes all.
CAIRN_CASE=REGEX takes those whose name matches. CAIRN_KEEP=1 keeps the damaged store of each case that fails."""

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from harness import BIN, BUILD, FULL, Bed, Case, Daemon, Failure, Group, cairn, main, rng

SHORT_S = 70
AT_ONCE = 3  # cases; each waits for its daemons and ranks half of its time
KEYS = {"scrub_every": "0s", "gc_every": "0s", "save_full_every": "3", "log_level": "info"}
WORLD = {"demo/a": 2, "demo/b": 1}
PRELOAD = "" if "asan" not in BUILD.name and "tsan" not in BUILD.name else "verify_asan_link_order=0"
# What a person reads as a remedy: a command that mends, looks or makes. The others (`cairn ls`) are hints.
REMEDY = re.compile(r"\bcairn (?:verify --repair|verify|salvage|doctor|gc|scrub|store|undelete)\b[^`;,()\n\"]*")
NO_CHECKPOINT = re.compile(r"no checkpoint|nothing (has been|was) saved|has no committed|run is empty|there is no run", re.I)


def content_of(folder):
    """What a restore wrote, as one hash."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".json":  # the summary says how the checkpoint stands now
            digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def remedies_in(text):
    """The commands in a text, as somebody would type them; but those that make room on the disk that this machine has mend nothing."""
    found = []
    for match in REMEDY.finditer(re.sub(r"less than 10 % is free: .*", "", text)):
        command = match.group(0).strip().rstrip(".:")
        # Prose behind a command that stands without quotes: it ends with the first word that is no argument.
        words = []
        for word in command.split():
            if len(words) > 2 and re.fullmatch(r"[a-z']+", word) and not words[-1].startswith("--"):
                break
            words.append(word)
        command = " ".join(words)
        if command not in found:
            found.append(command)
    return found


class Store:
    """The store that all cases begin with, and what is in it."""

    def __init__(self, bed):
        self.bed = bed
        daemon = Daemon(bed, "store", **KEYS).start()
        for run, world in WORLD.items():
            first = Group(bed, daemon.url(run), world, rows=8)
            for step in (10, 20):
                first.advance(step)
            first.end()
            second = Group(bed, daemon.url(run), world, rows=8)
            second.restore()
            for step in (30, 40):
                if step == 30:
                    second.all("fill", step)  # 40 has the bytes of 30: it refers to them
                second.save(step)
            second.end()
        cairn("pin", "demo/a", "10@1", *daemon.online, check=0)
        cairn("tag", "demo/b", "20@1", "good", *daemon.online, check=0)
        if daemon.stop() != 0:
            raise Failure("the daemon did not end well")
        self.path = daemon.store
        self.ids, self.wants, self.needs = {}, {}, {}
        for run in WORLD:
            document = json.loads(cairn("ls", run, "--json", "--store", f"dir:{self.path}", check=0)[1])
            self.ids[run] = [f"{entry['step']}@{entry['term']}" for entry in document["checkpoints"]]
            for one in self.ids[run]:
                out = bed.path / "want"
                cairn("restore", run, one, "--to", out, "--store", f"dir:{self.path}", check=0)
                self.wants[run, one] = content_of(out)
                shutil.rmtree(out)
                self.needs[run, one] = self.needed(run, one)
        self.places = sorted(path.relative_to(self.path) for path in self.path.rglob("*"))

    def needed(self, run, one):
        """Folders of what the checkpoint consists of."""
        step, term = one.split("@")
        shown = json.loads(cairn("show", run, one, "--json", "--store", f"dir:{self.path}", check=0)[1])
        objects = [(term, step)] + [(str(other["term"]), str(other["step"])) for other in shown["shared_with"]]
        return [f"runs/{run}/checkpoints/{term}-{step}"] + [f"runs/{run}/objects/{t}-{s}" for t, s in objects]

    def hit(self, place):
        """The checkpoints that a fault at this place may cost."""
        inside = lambda a, b: a == b or a.startswith(b + "/")
        return {key for key, needs in self.needs.items()
                if any(inside(str(place), need) or inside(need, str(place)) for need in needs)}


def kind_of(place, is_folder):
    """Places that a store treats alike."""
    text = re.sub(r"demo/[ab]", "RUN", str(place))
    text = re.sub(r"[0-9a-f]{16}\.", "N.", text)
    text = re.sub(r"/\d+-\d+", "/CKPT", text)
    text = re.sub(r"\d+-[0-9a-f]{16}(-\d+)?$", "OBJECT", text)
    return re.sub(r"-[0-9a-f]{16}$", "", text) + ("/" if is_folder else "")


class Trial:
    """One fault on a copy of the store."""

    def __init__(self, store, number, place, fault):
        self.store, self.place, self.fault = store, place, fault
        self.name = f"{fault} {place}"
        self.bed = Bed(f"case-{number}")
        self.path = self.bed.path / "store"
        subprocess.run(["cp", "-a", "--reflink=auto", store.path, self.path], check=True)
        self.at = self.path / place
        self.hit = store.hit(place)
        self.env = {}
        self.beyond, self.failed, self.typed, self.said = [], [], [], []
        self.strict = fault not in ("deleted", "emptied folder")  # what is gone may have been of no use

    # --- the fault ---

    def damage(self):
        if self.fault == "deleted":
            shutil.rmtree(self.at) if self.at.is_dir() else self.at.unlink()
        elif self.fault == "emptied folder":
            shutil.rmtree(self.at)
            self.at.mkdir(mode=0o700)
        elif self.fault == "unreadable":
            found = self.at.stat()
            kind = "d" if self.at.is_dir() else "f"
            options = ":".join(text for text in (os.environ.get("ASAN_OPTIONS", ""), PRELOAD) if text)
            self.env = {"LD_PRELOAD": str(BIN / "e2e_eio.so"), "CAIRN_TEST_EIO": f"{found.st_dev}:{found.st_ino}:{kind}",
                        "ASAN_OPTIONS": options}
        else:
            self.at.chmod(0o600)
            data = bytearray(self.at.read_bytes())
            if self.fault == "flipped":
                data[len(data) // 2] ^= 0x10
            self.at.write_bytes(data[:len(data) // 2] if self.fault == "cut" else b"" if self.fault == "emptied" else data)

    # --- what is asked ---

    def cairn(self, *words, **keywords):
        status, out, err = cairn(*words, env=self.env, **keywords)
        self.said.append(f"$ cairn {' '.join(map(str, words))}   [{status}]\n{out[-1500:]}{err[-2500:]}")
        self.note(out + err)
        return status, out, err

    def note(self, text):
        for command in remedies_in(text):
            if command not in self.typed and command not in self.remedies:
                self.remedies.append(command)

    def fail(self, what):
        self.beyond.append(what)

    def restores(self, when):
        """Every checkpoint by its name, over the store: what was not hit is exact, what was hit is exact or an error."""
        for (run, one), want in self.store.wants.items():
            out = self.bed.path / "out"
            status, _, err = self.cairn("restore", run, one, "--to", out, "--no-fallback", "--store", f"dir:{self.path}")
            if status == 0 and content_of(out) != want:
                self.fail(f"{when}: restore of {run} {one} gave wrong bytes")
            if status != 0 and (run, one) not in self.hit:
                self.fail(f"{when}: restore of {run} {one} failed: {err.strip()[-200:]}")
            if status != 0 and NO_CHECKPOINT.search(err):
                self.fail(f"{when}: restore of {run} {one} says that there is none: {err.strip()[-200:]}")
            shutil.rmtree(out, ignore_errors=True)

    def lists(self, when):
        for run in WORLD:
            status, out, err = self.cairn("ls", run, "--json", "--store", f"dir:{self.path}")
            if status != 0:
                self.fail(f"{when}: ls {run} failed: {err.strip()[-200:]}")
                continue
            seen = {f"{entry['step']}@{entry['term']}" for entry in json.loads(out)["checkpoints"] if entry["state"] == "committed"}
            for one in set(self.store.ids[run]) - seen:
                if (run, one) not in self.hit:
                    self.fail(f"{when}: ls does not have {run} {one}")

    def expected(self, run):
        """The newest that was not hit, and those that were hit above it."""
        good = [one for one in self.store.ids[run] if (run, one) not in self.hit]
        return (good[0] if good else None), [one for one in self.store.ids[run] if (run, one) in self.hit]

    def start(self, when):
        self.daemon = Daemon(self.bed, "store", path=self.path, creates=False, **KEYS)
        self.daemon.env = self.env
        try:
            self.daemon.start()
            return True
        except Failure as failure:
            self.note(self.daemon.tail())
            self.said.append(str(failure))
            self.fail(f"{when}: the daemon does not start: {self.daemon.tail()[-300:]}")
            self.daemon = None
            return False

    def stop(self):
        self.note(self.daemon.log())
        self.said.append("$ cairnd\n" + self.daemon.log()[-3000:])
        if self.daemon.process.poll() is None and self.daemon.stop() != 0:
            self.fail("the daemon did not end well")

    def ranks(self, when, saves):
        """A new attempt of each run: its restore of the latest, and, saves, a save after it."""
        for run, world in WORLD.items():
            want, hit = self.expected(run)
            try:
                group = Group(self.bed, self.daemon.url(run), world, rows=8)
            except Failure as failure:
                self.note(str(failure))
                if want is not None or saves or NO_CHECKPOINT.search(str(failure)):
                    self.fail(f"{when}: ranks of {run} cannot join: {failure}")
                continue
            try:
                results = group.finish_any(group.all("restore", "latest"))
                texts = " ".join(result.get("text", "") for result in results)
                self.said.append(f"restore latest of {run}: {results}")
                self.note(texts)
                if all(result["ok"] for result in results):
                    came = {f"{result['step']}@{result['term']}" for result in results}
                    if "0@0" in came:
                        self.fail(f"{when}: ranks of {run} are told to begin at 0")
                    elif len(came) != 1 or came - {want, *hit}:
                        self.fail(f"{when}: ranks of {run} restore {came}, not {want}")
                    else:
                        step = int(came.pop().split("@")[0])
                        for number, answer in enumerate(group.try_all("check", min(step, 30))):
                            if not answer["ok"]:
                                self.fail(f"{when}: rank {number} of {run} has wrong bytes: {answer['text'][-200:]}")
                elif want is not None or NO_CHECKPOINT.search(texts):
                    self.fail(f"{when}: ranks of {run} cannot restore: {texts[-300:]}")
                if saves:
                    group.all("fill", 7)
                    results = group.finish_any(group.try_all("save", 1000, 60000))
                    self.note(" ".join(result.get("text", "") for result in results))
                    if not all(result["ok"] for result in results):
                        self.fail(f"{when}: {run} cannot save: {results}")
            finally:
                group.end()

    def verifies(self, where):
        """Whether damage is reported, and that none is of what was not hit."""
        status, out, err = self.cairn("verify", "--json", *where)
        damaged = set()
        if out:
            for entry in json.loads(out)["checked"]:
                if not entry["good"] and "step" in entry:
                    damaged.add((entry["run"], f"{entry['step']}@{entry['term']}"))
        for key in damaged - self.hit:
            self.fail(f"verify says damaged of {key}, which was not hit")
        self.cairn("verify", *where)  # what a person reads
        return status != 0

    # --- the remedies ---

    def type(self, command):
        """As printed. What stands for something of the reader's is what he would take: his store, his copy of it."""
        self.remedies.remove(command)
        self.typed.append(command)
        words = [str(BIN / "cairn"), *shlex.split(command)[1:]]
        stands = {"URL": f"dir:{self.path}", "MIRROR": f"dir:{self.store.path}"}
        words = [stands.get(word, word) for word in words]
        offline = "--store" in words or "--from" in words or words[1] == "salvage"  # with the daemon stopped, as they say
        online = self.daemon is not None and not offline
        place = {"CAIRN_SERVER": f"unix:{self.daemon.socket}"} if online else {"CAIRN_STORE": f"dir:{self.path}"}
        if not online and self.daemon is not None:
            self.stop()
            self.daemon = None
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=150,
                              env={**os.environ, **self.env, **place})
        text = (done.stdout + done.stderr).decode()
        self.said.append(f"TYPED {' '.join(words[1:])} {place}  [{done.returncode}]\n{text[-3000:]}")
        # Who only looks says with the status what there is, and prints what mends it. Who mends ends well, but that without a
        # mirror what was hit may be left, by its own status; then what it prints next has to end well.
        mends = {"--repair", "--yes"} & set(words)
        looks = () if mends else {"doctor": (1, 3), "verify": (6,), "salvage": (3,), "scrub": (6,)}.get(words[1], ())
        # Nothing can be put into a folder that stays unreadable: what mends says so, and names the disk.
        leaves = (1, 3, 6) if self.is_dead() else (3, 6) if self.hit and "--from" not in words else ()
        self.mirrored |= "--from" in words and done.returncode == 0
        if done.returncode not in (0, *looks, *leaves):
            self.failed.append(f"{command}: {done.returncode}: {text.strip()[-300:]}")
        self.note(text)

    def is_dead(self):
        """Whether the place is a folder in which nothing can be read or written until the disk is another one."""
        return self.fault == "unreadable" and self.env["CAIRN_TEST_EIO"].endswith("d")

    def heal(self):
        """Types what was printed, also by what was typed."""
        for _ in range(20):
            if not self.remedies:
                return
            # Looks first, what needs the mirror last.
            self.remedies.sort(key=lambda command: ("MIRROR" in command, "salvage" in command, command))
            self.type(self.remedies[0])

    def go(self):
        self.remedies, self.daemon, self.mirrored = [], None, False
        self.damage()
        offline = ("--store", f"dir:{self.path}")
        reported = self.verifies(offline)
        self.lists("at once")
        self.restores("at once")
        if self.start("at once"):
            self.ranks("at once", saves=False)
            reported |= self.verifies(self.daemon.online)
        if self.at.name == "quarantine":  # nothing of a checkpoint: not verify's
            reported = "Input/output error" in self.cairn("doctor", *offline)[1]
        if self.strict and not reported and self.at.name != "lock":
            self.fail("verify reports nothing")
        self.heal()
        if self.daemon is not None:
            self.stop()
        self.lists("after the remedies")
        self.restores("after the remedies")
        writable = not self.is_dead()
        if self.start("after the remedies"):
            self.ranks("after the remedies", saves=writable)
            self.stop()
        if self.mirrored:
            self.hit = set()  # it said that all was made good
            self.restores("after the mirror")
        if writable and not self.hit and self.cairn("verify", *offline)[0] != 0:
            self.failed.append("after the remedies verify still reports damage")

    def end(self):
        bad = self.beyond or self.failed
        bad_reports = self.bed.sanitizer_reports()
        self.beyond += bad_reports
        if bad or bad_reports:
            lines = [f"\n=== {self.name}: may cost {sorted(self.hit) or 'nothing'}",
                     *(f"  beyond: {what.replace(str(self.bed.path), '...')}" for what in self.beyond[:6]),
                     *(f"  remedy: {what.replace(str(self.bed.path), '...')}" for what in self.failed[:6])]
            print("\n".join(lines + (self.said if os.environ.get("CAIRN_SAID") == "1" else [])), flush=True)
        self.bed.close(keep=bool(bad) and os.environ.get("CAIRN_KEEP") == "1")


def faults_of(path):
    if path.is_dir():
        return ("deleted", "emptied folder", "unreadable")
    return ("flipped", "cut", "emptied", "deleted", "unreadable") if path.stat().st_size > 0 else ("deleted", "unreadable")


class EveryFile(Case):
    def test_one_fault_costs_what_it_hits(self):
        store = Store(self.bed)
        random = rng()
        cases = [(place, fault) for place in store.places for fault in faults_of(store.path / place)]
        chosen = os.environ.get("CAIRN_CASE")
        if chosen:
            cases = [case for case in cases if re.search(chosen, f"{case[1]} {case[0]}")]
        kinds = {}  # of place; of each one fault, the next one each time, so that the short form is the same every time
        for place, fault in cases:
            kinds.setdefault(kind_of(place, (store.path / place).is_dir()), []).append((place, fault))
        first = [same[number % min(5, len(same))] for number, same in enumerate(kinds.values())]
        later = [case for case in cases if case not in first]
        random.shuffle(later)
        over_at = time.monotonic() + SHORT_S if not FULL and not chosen else math.inf

        def try_case(number, place, fault):
            """What the case cost beyond what was hit, and its failed remedies; None if the time is over."""
            if number >= len(first) and time.monotonic() > over_at:
                return None
            trial = Trial(store, number, place, fault)
            try:
                trial.go()
            except (Failure, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
                trial.beyond.append(f"the trial broke off: {str(error)[-400:]}")
            finally:
                trial.end()
            return bool(trial.beyond), len(trial.failed)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            ended = [pool.submit(try_case, number, *case) for number, case in enumerate(first + later)]
        results = [result for result in (each.result() for each in ended) if result is not None]
        tried, beyond, failed = len(results), sum(each[0] for each in results), sum(each[1] for each in results)
        print(f"\n{tried} of {len(cases)} cases ({len(first)} kinds of places): {beyond} cases beyond the checkpoint that was hit, "
              f"{failed} remedies that fail", flush=True)
        self.assertEqual((beyond, failed), (0, 0))


if __name__ == "__main__":
    main()
