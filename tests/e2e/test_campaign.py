# SPDX-License-Identifier: Apache-2.0
"""Saves and restores of changing ranks in random circumstances keep every byte.

Goal: no checkpoint that was said to be durable is ever lost or holds another byte than what was saved, whatever the
transport, encoding, arena, mode, change between saves, lists of tensors, deaths or pauses of ranks and daemon; and
after all of it a save and a restore that nobody disturbs succeed. Method: every tensor has a seed for each of equal parts,
from which any program can tell its bytes; a model of them is kept beside what was saved; every few rounds the store
is verified, and a checkpoint drawn by lot is restored, at another world size too. CAIRN_SECONDS sets how long."""

import copy
import os
import signal
import time

from harness import FULL, Case, Failure, Rank, listed, main, rng, token, verified

SECONDS = float(os.environ.get("CAIRN_SECONDS", "600" if FULL else "20"))
PARTS = 8
# Name: dtype, rows, columns. Rows are divided among the ranks where a tensor is sharded.
POOL = {"w0": ("float32", 512, 256), "w1": ("bfloat16", 768, 128), "w2": ("uint8", 64, 1000), "w3": ("float64", 96, 33),
        "w4": ("int64", 7, 5), "w5": ("bool", 130, 77), "s0": ("float32", 640, 200), "s1": ("bfloat16", 97, 501)}
FAULTS = ("none", "none", "none", "kill daemon", "stop daemon", "stop rank", "kill rank", "kill all", "end daemon")


def answer_of(rank, timeout_s=60):
    """Its answer; also that of one that was killed meanwhile."""
    try:
        return rank.reply(timeout_s)
    except (Failure, BrokenPipeError):
        if rank.process.poll() is None:
            raise
        return {"ok": False, "error": "DEAD", "text": "the rank was killed"}


class Tensors:
    """What the ranks of a group hold, and with which bytes."""

    def __init__(self, random, world, names):
        self.random, self.world = random, world
        self.names = sorted(names)
        self.sharded = {name for name in self.names if name[0] == "s" and random.random() < 0.8}
        self.seeds = {(name, "-"): self.fresh() for name in self.names}
        self.seeds.update({("rng", f"rank={rank}"): self.fresh() for rank in range(world)})

    def fresh(self):
        return [self.random.randrange(1 << 60) for _ in range(PARTS)]

    def rows(self, name, rank):
        """(offset, length) of the rank's rows."""
        rows = POOL[name][1]
        if name not in self.sharded:
            return 0, rows
        return rows * rank // self.world, rows * (rank + 1) // self.world - rows * rank // self.world

    def declare(self, rank, number):
        for name in self.names:
            dtype, rows, columns = POOL[name]
            first, count = self.rows(name, number)
            if name in self.sharded:
                rank.do("tensor", name, dtype, f"{rows}x{columns}", "sharded", "-", f"{first},0", f"{count}x{columns}")
            else:
                rank.do("tensor", name, dtype, f"{rows}x{columns}", "replicated")
        rank.do("tensor", "rng", "uint8", "100", "local", f"rank={number}")

    def keys(self, number):
        return [(name, "-") for name in self.names] + [("rng", f"rank={number}")]

    def paint(self, rank, number):
        for key in self.keys(number):
            rank.do("paint", *key, ",".join(map(str, self.seeds[key])))

    def change(self):
        """A step of training: all, some parts of some tensors, or nothing."""
        share = self.random.choice((0, 0, 0.1, 0.4, 1))
        for seeds in self.seeds.values():
            for part in range(PARTS):
                if self.random.random() < share:
                    seeds[part] = self.random.randrange(1 << 60)


class Crew:
    """The ranks of one attempt with options drawn by lot."""

    def __init__(self, bed, random, url, world, names, note):
        self.random, self.world = random, world
        self.tensors = Tensors(random, world, names)
        self.ranks, attempt = [], token()
        self.transport = random.choice(("auto", "auto", "memfd", "socket"))
        self.encoding = random.choice(("auto", "raw", "dense", "dense"))
        self.arena = random.choice((0, 0, 300_000, 1 << 20, 4 << 20))
        if (self.transport, self.encoding) == ("memfd", "dense"):
            self.arena = 0  # in waves a dense encoding needs the socket: refused by name
        self.snapshots, self.full = random.choice((0, 1, 2, 3)), random.choice((0, 1, 2, 3))
        note(f"  crew of {world}: {self.transport} {self.encoding} arena {self.arena} snapshots {self.snapshots} "
             f"when_full {self.full} {','.join(self.tensors.names)}")
        for number in range(world):
            rank = Rank(bed, {"CAIRN_TRANSPORT": self.transport, "CAIRN_ENCODING": self.encoding})
            self.ranks.append(rank)
            self.tensors.declare(rank, number)
            for name, value in (("arena_bytes", self.arena), ("snapshots", self.snapshots), ("when_full", self.full)):
                rank.do("option", name, value)
            rank.send("open", url, number, world, attempt)
        for number, rank in enumerate(self.ranks):
            answer = rank.reply()
            if not answer["ok"]:
                raise Failure(f"open: {answer}")
            rank.do("set")

    def all(self, *words, timeout_s=60):
        for rank in self.ranks:
            rank.send(*words)
        return [answer_of(rank, timeout_s) for rank in self.ranks]

    def holds(self, seeds, missing=()):
        """The name of what is not as the seeds say; None: all is."""
        for number, rank in enumerate(self.ranks):
            for key in self.tensors.keys(number):
                if key[0] in missing:
                    continue
                if key not in seeds:
                    return f"{key} was not saved"
                answer = rank.ask("holds", *key, ",".join(map(str, seeds[key])))
                if not answer["ok"]:
                    return f"rank {number}: {answer['text']} {key[1]}"
        return None

    def kill(self):
        for rank in self.ranks:
            rank.kill()


class Campaign(Case):
    def note(self, text):
        print(f"{time.monotonic() - self.began:7.2f} {text}", flush=True)

    def setUp(self):
        super().setUp()
        self.began = time.monotonic()
        self.random = rng()
        self.candidates = {}  # step: states that a save of it tried to write
        self.durable = {}     # (step, term): the state, as a save said
        self.step = 0
        self.crew = None
        self.saves = self.failed = self.restores = 0

    def launch(self):
        self.daemon.start(save_full_every=self.random.choice((0, 1, 2, 3, 20)))

    def strike(self, fault):
        """One fault, a moment after now; whether the crew is still whole."""
        if fault == "none":
            return True
        time.sleep(self.random.choice((0, 0.002, 0.01, 0.03, 0.1)) * self.random.random())
        victim = self.random.choice(self.crew.ranks)
        pause = self.random.uniform(0, 0.4)
        self.note(f"  {fault}")
        if fault in ("stop daemon", "stop rank"):
            pid = (self.daemon if fault == "stop daemon" else victim).process.pid
            os.kill(pid, signal.SIGSTOP)
            time.sleep(pause)
            os.kill(pid, signal.SIGCONT)
        elif fault in ("kill daemon", "end daemon"):
            if fault == "kill daemon":
                self.daemon.kill()
            else:
                self.daemon.process.send_signal(signal.SIGTERM)
                time.sleep(pause)
                self.daemon.kill()
            time.sleep(self.random.choice((0, 0.3)))
            self.launch()
        elif fault == "kill rank":
            victim.kill()
            return False
        else:
            self.crew.kill()
            return False
        return True

    def save(self, fault="none", deadline_ms=25000):
        """One save, or a few after another, with a fault on the way: whether all went well."""
        crew, tensors = self.crew, self.crew.tensors
        lazy = self.random.random() < 0.3
        check = 0 if lazy else self.random.choice((0, 0, 1, 2))
        options = {"mode": 2 if lazy else 1, "verify_staged": self.random.choice((0, 1, 2)) if lazy else 0,
                   "check_replicas": check, "full": int(self.random.random() < 0.1)}
        for name, value in options.items():
            crew.all("option", name, value)
        flights = self.random.choice((1, 1, 2, 3)) if not lazy else 1
        started, whole = [], True
        for flight in range(flights):
            tensors.change()
            for number, rank in enumerate(crew.ranks):
                tensors.paint(rank, number)
            self.step += 1
            self.candidates.setdefault(self.step, []).append(copy.deepcopy(tensors.seeds))
            self.saves += 1
            for rank in crew.ranks:
                rank.send("save", self.step, deadline_ms)
            if flight == flights - 1:
                whole = self.strike(fault)
            answers = [answer_of(rank) for rank in crew.ranks]
            started.append((self.step, answers))
            if lazy and whole:
                for rank, answer in zip(crew.ranks, answers):
                    if answer["ok"]:
                        rank.ask("released", answer["op"], deadline_ms + 5000, timeout_s=60)
                tensors.change()  # may change now: the save holds what was
                for number, rank in enumerate(crew.ranks):
                    tensors.paint(rank, number)
        if not whole:
            crew.kill()
            return False
        good = True
        for step, answers in started:
            state = self.candidates[step][-1]
            ends = []
            for rank, answer in zip(crew.ranks, answers):
                ends.append(rank.ask("wait", answer["op"], deadline_ms + 10000, timeout_s=60)
                            if answer["ok"] else answer)
            for end in ends:
                if end["ok"]:
                    self.durable[(step, end["term"])] = state
            wrong = sorted({f"{end['error']}: {end['text'][:300]}" for end in ends if not end["ok"]})
            if wrong:
                self.failed += 1
                self.note(f"  save {step} failed ({options}): {wrong}")
                allowed = ("SKIPPED", "BUSY") if crew.full in (2, 3) else ()
                good = good and all(end["ok"] or end["error"] in allowed for end in ends)
            elif self.random.random() < 0.1:
                answer = crew.ranks[0].ask("annotate", step, ends[0]["term"], "eval", step / 2)
                self.assertTrue(answer["ok"], answer)
        return good

    def restore(self, step="latest", term=0):
        """A restore that nobody disturbs: it succeeds, and what it gives is what was saved."""
        crew = self.crew
        answers = crew.all("restore", step, term, 0, 0, 25000)
        ends = [rank.ask("wait", answer["op"], 30000, timeout_s=60) if answer["ok"] else answer
                for rank, answer in zip(crew.ranks, answers)]
        self.restores += 1
        if all(end.get("error") == "NOT_FOUND" for end in ends) and not self.durable:
            return
        self.assertTrue(all(end["ok"] for end in ends), (step, term, ends))
        found = {(end["step"], end["term"]) for end in ends}
        self.assertEqual(len(found), 1, found)
        (step, term), = found
        missing = {name for end in ends for name in end["missing"]}
        states = [self.durable[(step, term)]] if (step, term) in self.durable else self.candidates[step]
        wrong = []
        for seeds in states:
            absent = {name for name in missing if name == "rng" or (name, "-") not in seeds}
            self.assertEqual(absent, missing, f"{step} {term}: reported missing, but saved: {missing - absent}")
            found = crew.holds(seeds, missing)
            if found is None:
                crew.tensors.seeds.update(copy.deepcopy({k: v for k, v in seeds.items() if k in crew.tensors.seeds}))
                # What was missing stays as it was; the model says so for all of it by painting anew.
                for number, rank in enumerate(crew.ranks):
                    crew.tensors.paint(rank, number)
                self.durable[(step, term)] = seeds
                self.note(f"  restored ({step},{term}), missing {sorted(missing)}")
                return
            wrong.append(found)
        self.fail(f"restored ({step},{term}): {wrong}")

    def new_crew(self, url):
        names = [name for name in POOL if self.random.random() < 0.8] or ["w0"]
        if self.crew and self.random.random() < 0.6:
            names = self.crew.tensors.names
        self.crew = Crew(self.bed, self.random, url, self.random.choice((1, 1, 2, 2, 3, 4)), names, self.note)
        self.restore()
        if len(self.durable) > 1 and self.random.random() < 0.4:
            self.restore(*self.random.choice(sorted(self.durable)))

    def changed_lists(self):
        """Other tensors in the same attempt: added ones are saved, of lost ones a restore comes first."""
        crew = self.crew
        names = {name for name in POOL if self.random.random() < 0.7} or {"w1"}
        if self.random.random() < 0.5:
            names |= set(crew.tensors.names)
            restore = self.random.random() < 0.3
        else:
            restore = True
        self.note(f"  lists: {sorted(names)} {'after a restore' if restore else ''}")
        crew.tensors = Tensors(self.random, crew.world, names)
        for number, rank in enumerate(crew.ranks):
            rank.do("clear")
            crew.tensors.declare(rank, number)
            rank.do("set")
            crew.tensors.paint(rank, number)
        if restore:
            self.restore()

    def check_store(self):
        there = listed(self.daemon)
        lost = {key for key in self.durable if key not in there}
        self.assertEqual(lost, set(), "durable, and no more there")
        self.assertEqual(verified(self.daemon)["damaged"], 0)

    def test_campaign(self):
        chunk = self.random.choice(("4KiB", "16KiB", "64KiB"))
        self.daemon = self.daemon(save_chunk=chunk, log_level="info", save_rank_grace="2s", restore_drain="3s")
        self.note(f"chunk {chunk}")
        url, rounds = self.daemon.url(), 0
        while time.monotonic() - self.began < SECONDS:
            rounds += 1
            if self.crew is None:
                self.new_crew(url)
            fault = self.random.choice(FAULTS)
            self.note(f"round {rounds}: {fault}")
            good = self.save(fault)
            if fault == "none":
                self.assertTrue(good, "a save that nobody disturbed")
            if fault in ("kill rank", "kill all"):
                self.crew = None
            elif self.random.random() < 0.15:
                self.crew.kill()
                self.crew = None
            elif self.random.random() < 0.15:
                self.restore(*(self.random.choice(sorted(self.durable)) if self.durable else ()))
            elif self.random.random() < 0.1:
                self.changed_lists()
            if rounds % 5 == 0:
                self.check_store()
        if self.crew is None:
            self.new_crew(url)
        self.assertTrue(self.save(), "the last save")
        for key in sorted(self.durable)[-12:]:
            self.restore(*key)
        self.check_store()
        self.note(f"{rounds} rounds, {self.saves} saves, {self.failed} of them failed, {self.restores} restores, "
                  f"{len(self.durable)} checkpoints")


if __name__ == "__main__":
    main()
