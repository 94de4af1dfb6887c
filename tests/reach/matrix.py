# SPDX-License-Identifier: Apache-2.0
"""What one layout of ranks has saved, others load: the loop of the matrices, and a worker of theirs."""

import os
import subprocess
import sys

import torch

from frameworks import ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))

from together import torchrun  # noqa: E402

DEADLINE_S = 900


def run_worker(program, ranks, words, result, **env):
    """Runs a worker to its end, without torchrun for 0 ranks. Returns what it has saved in ``result``, or {}."""
    done = subprocess.run([*(torchrun(ranks) if ranks else [sys.executable]), program, *map(str, words), str(result)], capture_output=True,
                          text=True, env={**os.environ, **env}, timeout=DEADLINE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))} on {ranks} ranks failed:\n{done.stdout[-1000:]}{done.stderr[-6000:]}")
    return torch.load(result) if result.exists() else {}


def prove(title, cases, launch, difference):
    """Runs all cases, and prints what became of each.

    Args:
        title: The framework, and what a case consists of.
        cases: What loads, by what saves.
        launch: Takes the number of the saver, the saver, and what loads or None; returns what that held.
        difference: Takes the saver and what the two held; returns a text, or None if it is the same.

    Returns:
        How many have failed.
    """
    failed = 0
    for number, (saver, loaders) in enumerate(cases.items()):
        held = launch(number, saver, None)
        for loader in loaders:
            found = difference(saver, held, launch(number, saver, loader))
            failed += found is not None
            print(f"{'FAILED' if found else 'ok':7} {title} {saver} to {loader}: {found or 'the same bits'}", flush=True)
    return failed
