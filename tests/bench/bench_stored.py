#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how many bytes are stored of a model that was really trained, and of LoRA adapters on a frozen base.

A GPT of some 22 million parameters learns Python's standard library for a few hundred steps (minutes on two cores);
then bf16 weights and f32 moments are saved once for each encoding. After that adapters are trained on the frozen
bf16 weights and saved ten times. What counts is what the store's files grow by, objects and metadata alike.
"""

import argparse
import json
import time

from benchlib import (HERE, MIB, Daemon, Group, Place, bytes_below, common_options, finish_options, install_package,
                      machine, python_env, say, table, write_json)

ENCODINGS = ("raw", "auto", "dense")
PROGRESS_STEPS = 25


class Stored:
    def __init__(self, options):
        self.options, self.place = options, Place(options.dir)
        self.daemon = Daemon(self.place, options.build, "store")
        what = {"url": self.daemon.url("unix", "bench/RUN"), "width": options.width, "layers": options.layers,
                "tokens": options.tokens, "batch": options.batch, "lora_rank": options.lora_rank}
        self.group = Group(self.place, "stored", [[options.python, HERE / "stored_worker.py", json.dumps(what)]],
                           [python_env(options.build)])
        self.result = dict(self.group.ready[0])

    def grown(self, line):
        """An answer, with what the store's files grew by meanwhile."""
        before = bytes_below(self.daemon.store)
        answer = self.group.tell(line)[0]
        return {**answer, "grown_bytes": bytes_below(self.daemon.store) - before}

    def train(self):
        self.result["losses"] = []
        for done in range(0, self.options.steps, PROGRESS_STEPS):
            steps = min(PROGRESS_STEPS, self.options.steps - done)
            answer = self.group.tell(f"train {steps}")[0]
            self.result["losses"].append(answer)
            say(f"trained {answer['steps']} of {self.options.steps} steps: loss {answer['loss']:.3f}")

    def encodings(self):
        self.result["saves"] = {}
        for how in ENCODINGS:
            for what in ("plain", "masters"):
                answer = self.grown(f"save {how} {what}")
                name = f"{how}, bf16 + f32 Adam" + (" + f32 masters" if what == "masters" else "")
                self.result["saves"][name] = answer
            for number in range(3):
                answer = self.grown(f"kind {how} {number}")
                self.result["saves"][f"{how}, {answer.pop('kind')} alone"] = answer

    def lora(self):
        self.result["lora"] = self.group.tell("lora")[0]
        saves = []
        for number in range(self.options.saves):
            if number:
                self.group.tell("train 5")
            saves.append(self.grown("save-lora"))
        self.result["lora"]["saves"] = saves
        first, later = saves[0]["grown_bytes"], [save["grown_bytes"] for save in saves[1:]]
        self.result["lora"]["worst_later_of_first"] = max(later) / first
        self.result["lora"]["changed_of_plain"] = 12 * self.result["lora"]["adapters"] / saves[0]["plain_bytes"]

    def run(self):
        self.train()
        self.encodings()
        self.lora()
        self.group.close()
        self.daemon.end()
        self.place.close()
        self.result["ratios"] = {name: save["grown_bytes"] / save["plain_bytes"]
                                 for name, save in self.result["saves"].items()}
        return self.result


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser, repeat=1)
    parser.add_argument("--python", required=True, help="an interpreter with torch")
    parser.add_argument("--no-install", action="store_true", help="BUILD/bench-python has the package already")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lora-rank", type=int, default=2, help="2 of width 512 is the share that 16 has in a 7B model")
    parser.add_argument("--saves", type=int, default=10)
    options = finish_options(parser.parse_args())
    if options.smoke:
        options.steps, options.width, options.layers, options.saves = 4, 64, 2, 3
    return options


def main():
    options = parse_options()
    if not options.no_install:
        install_package(options.python, options.build)
    result = Stored(options).run()
    result.update(date=time.strftime("%Y-%m-%d"), machine=machine(), steps=options.steps)
    print(f"{result['date']}, {json.dumps(result['machine'])}, {result['parameters'] / 1e6:.1f} million parameters, "
          f"{options.steps} steps, loss {result['losses'][0]['loss']:.2f} -> {result['losses'][-1]['loss']:.2f}")
    table("Stored / plain", "", result["ratios"])
    table("LoRA: MiB stored by each save", "MiB",
          {str(number + 1): save["grown_bytes"] / MIB for number, save in enumerate(result["lora"]["saves"])})
    table("LoRA", "", {"worst later / first": result["lora"]["worst_later_of_first"],
                       "bytes that change / plain": result["lora"]["changed_of_plain"]})
    write_json(options.json, result)


if __name__ == "__main__":
    main()
