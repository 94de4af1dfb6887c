# SPDX-License-Identifier: Apache-2.0
"""No SIGKILL of the daemon, of ranks or of everything, at any moment of a training, loses what was acknowledged (I1 to
I4, I9).

Each story trains one run to its end through many kills. After each kill: a full verify; every save that
a rank was told to be durable is listed; everything listed holds, byte for byte, what an uninterrupted
training holds at that step; the next attempt resumes from the newest. 50 kills, 200 with CAIRN_FULL=1.
"""

import signal
import sys
import time

from harness import FULL, Bed, Daemon, Failure, Group, Rank, add_state, add_whole_state, listed, rng, verified

KILLS = 200 if FULL else 50
LIMIT_S = 850 if FULL else 500
LAST_STEP = 60
ROWS = 512  # 32 KiB replicated and as much sharded: 8 chunks of 4 KiB each
KINDS = ["daemon", "daemon", "rank", "ranks", "everything"]


def expected_digests(bed, add, *words):
    """Of every step of an uninterrupted training, from 1 on; index 0 is unused."""
    rank = Rank(bed)
    add(rank, *words, ROWS)
    rank.do("fill", 0)
    digests = rank.do("expect", LAST_STEP)["digests"]
    rank.end()
    return [None, *digests]


class Story:
    """One run, from its first attempt to its last step."""

    def __init__(self, bed, daemon, random, number):
        self.bed, self.daemon, self.random = bed, daemon, random
        self.run = f"kill/run-{number}"
        self.world = random.choice([2, 3])
        self.expected = [expected_digests(bed, add_state, rank, self.world) for rank in range(self.world)]
        self.whole = expected_digests(bed, add_whole_state, self.world)
        self.acknowledged = set()  # (step, term)
        self.checked = {}          # (step, term) -> manifest hash, once its bytes were compared
        self.group = None

    # --- the attempt

    def begin_attempt(self):
        self.group = Group(self.bed, self.daemon.url(self.run), self.world, rows=ROWS)
        answers = self.group.finish_any(self.group.all("restore", "latest"))
        if all(answer.get("error") == "NOT_FOUND" for answer in answers):
            if self.acknowledged:
                raise Failure(f"{self.run} is empty, but {self.acknowledged} were acknowledged")
            self.group.all("fill", 0)
            step = 0
        else:
            step = self.check_resumed(answers)
        for rank in self.group.ranks:
            rank.send("train", step + 1, LAST_STEP, 1)
        return step

    def check_resumed(self, answers):
        found = {(answer.get("step"), answer.get("term"), answer.get("fell_back")) for answer in answers}
        if len(found) != 1 or not answers[0]["ok"]:
            raise Failure(f"the ranks resumed differently: {answers}")
        step, term, fell_back = found.pop()
        newest = max((term, step) for step, term in self.acknowledged | {(0, 0)})
        if fell_back or (term, step) < newest:
            raise Failure(f"resumed from {step}@{term}, but {newest} (term, step) is durable")
        for rank, expected in zip(self.group.ranks, self.expected):
            if rank.do("digest")["digest"] != expected[step]:
                raise Failure(f"wrong bytes after the restore of {step}@{term}")
        return step

    def collect(self):
        """Takes in what the ranks have said; the answers of those that are done."""
        answers = []
        for rank, expected in zip(self.group.ranks, self.expected):
            answer = rank.drain()
            if answer:
                answers.append(answer)
            for event in rank.events:
                if event["event"] == "durable":
                    if event["digest"] != expected[event["step"]]:
                        raise Failure(f"the trainer itself went wrong: {event}")
                    self.acknowledged.add((event["step"], event["term"]))
                elif not self.may_fail:
                    raise Failure(f"a save failed without a kill that explains it: {event}")
            rank.events = []
        return answers

    # --- what must be true after a kill

    def check_store(self, how):
        document = verified(self.daemon, how)
        present = listed(self.daemon, self.run, how) if document["checkpoints"] else {}
        lost = self.acknowledged - set(present)
        if lost:
            raise Failure(f"acknowledged, but not listed: {lost}")
        for key, manifest in self.checked.items():
            if present[key]["manifest_sha256"] != manifest:
                raise Failure(f"{key} was replaced")
        return present

    def check_bytes(self):
        """Restores everything that was not compared yet, as one reader that holds all."""
        present = self.check_store("server")
        fresh = [key for key in sorted(present) if key not in self.checked]
        if not fresh:
            return
        reader = Rank(self.bed)
        add_whole_state(reader, self.world, ROWS)
        reader.do("open", self.daemon.url(self.run), 0, 1, "-", "viewer")
        reader.do("set")
        for step, term in fresh:
            reader.do("wait", reader.do("restore", step, term, 0)["op"], 20000)
            if reader.do("digest")["digest"] != self.whole[step]:
                raise Failure(f"{step}@{term} does not hold what was saved")
            self.checked[(step, term)] = present[(step, term)]["manifest_sha256"]
        reader.end()

    # --- kills

    def kill(self, kind):
        self.may_fail = True
        if kind in ("daemon", "everything"):
            self.daemon.kill()
        if kind == "rank":
            self.random.choice(self.group.ranks).kill()
        if kind != "daemon":
            time.sleep(self.random.choice([0, 0, 0.05]))  # others live a moment longer
            self.group.kill()
        self.collect()
        if kind in ("daemon", "everything"):
            self.check_store("store")
            self.daemon.start()
        self.check_bytes()
        if kind != "daemon":
            self.group = None
        self.may_fail = False

    def play(self, kills):
        """Until the training is through or `kills` are spent; how many were spent."""
        spent = 0
        self.may_fail = False
        while True:
            if self.group is None:
                self.begin_attempt()
            end = time.monotonic() + (self.random.uniform(0, 0.15) if spent < kills else 60)
            answers = []
            while time.monotonic() < end and len(answers) < self.world:
                answers += self.collect()
                time.sleep(0.002)
            if len(answers) == self.world:
                self.finish(answers)
                return spent
            if spent == kills:
                raise Failure("the training does not come to its end")
            if answers:  # one rank is through, the others about to be: no more kills for this attempt
                time.sleep(0.2)
                continue
            kind = self.random.choice(KINDS)
            self.kill(kind)
            spent += 1

    def finish(self, answers):
        digests = sorted(answer.get("digest", str(answer)) for answer in answers)
        if digests != sorted(expected[LAST_STEP] for expected in self.expected):
            raise Failure(f"the end differs from an uninterrupted training: {answers}")
        self.group.end()
        self.check_bytes()


def give_up(signum, frame):
    raise Failure(f"not finished within {LIMIT_S} s")


def main():
    random = rng()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    bed = Bed("kill")
    kills, stories, checkpoints = 0, 0, 0
    try:
        while kills < KILLS:
            daemon = Daemon(bed, f"store-{stories}", log_level="info").start()
            story = Story(bed, daemon, random, stories)
            spent = story.play(KILLS - kills)
            kills += spent
            stories += 1
            checkpoints += len(story.checked)
            print(f"{story.run}: {story.world} ranks, {spent} kills, {len(story.checked)} checkpoints, "
                  f"{len(story.acknowledged)} acknowledged", flush=True)
            if reports := bed.sanitizer_reports():
                raise Failure("\n".join(reports))
            if daemon.stop() != 0:
                raise Failure("the daemon did not stop in order")
    except BaseException:
        bed.close(keep=True)
        print(f"kept in {bed.path}\n{daemon.tail()}", flush=True)
        raise
    bed.close()
    print(f"{kills} kills in {stories} stories: {checkpoints} checkpoints whole, nothing lost")


if __name__ == "__main__":
    sys.exit(main())
