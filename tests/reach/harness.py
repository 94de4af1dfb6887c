# SPDX-License-Identifier: Apache-2.0
"""Trains each framework's program twice: undisturbed, and killed at random moments and started again until it ends. Both
must end with the same bits: weights, optimizer, schedule, generators. Each row of the data is random, so that another order
of the data gives other weights.

    tests/reach/run build/release lightning --kills 20 --seed 7
    tests/reach/run build/release --total 300 --seed 1

A kill hits the whole job, one rank, or the daemon, which is then started again. The seed of the moments is printed.
"""

import argparse
import importlib.metadata
import math
import os
import pathlib
import random
import signal
import subprocess
import sys

from frameworks import FRAMEWORKS, ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))

from campaign import Campaign  # noqa: E402
from conftest import running_daemon  # noqa: E402
from jobs import Job  # noqa: E402
from kills import Kill  # noqa: E402


def prove_refusal(framework):
    """Raises RuntimeError unless one rank refuses, by name, what two ranks have saved within an epoch: it would lose samples."""
    with running_daemon() as daemon:
        job = Job(daemon, framework, 2, f"{framework}-2-1")
        job.attempt([Kill(0, "all", 7, 0.05, True)])
        killed, job.ranks = job.killed(), 1
        if not killed or job.attempt() == 0 or "UnsupportedError: UNSUPPORTED" not in job.tail():
            raise RuntimeError(f"{framework}: one rank did not refuse a checkpoint of two within an epoch:\n{job.tail()}")


def prove(campaign, framework, ranks, seed):
    """Proves all that the harness knows of a framework. Returns how many proofs have failed, other than the campaign's."""
    failed, row = 0, FRAMEWORKS[framework]
    try:
        if row.is_refused:
            prove_refusal(framework)
            print(f"ok      {framework}, 2 ranks to 1 within an epoch: refused by name", flush=True)
    except RuntimeError as error:
        failed += 1
        print(f"FAILED  {error}", flush=True)
    for number in ranks:
        campaign.round(framework, number, seed)
    if row.matrix:
        failed += subprocess.call([sys.executable, str(ROOT / "tests" / "reach" / row.matrix)])
    if row.tests:
        failed += subprocess.call([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", row.tests],
                                  cwd=ROOT / "tests" / "python", env={**os.environ, **row.environment})
    return failed


def arguments_of():
    parser = argparse.ArgumentParser(description="Proves that killed trainings end as undisturbed ones do.")
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=f"of {', '.join(FRAMEWORKS)}; all without one")
    parser.add_argument("--ranks", type=int, help="the rows of this number of ranks alone")
    parser.add_argument("--kills", type=int, default=8, help="moments of each training (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30), help="of the moments")
    parser.add_argument("--total", type=int,
                        help="repeat the rows with the seeds that follow until so many kills have hit, and prove nothing else")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further training of --total after this time")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the sums there")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.frameworks) - set(FRAMEWORKS))
    if unknown:
        parser.error(f"{', '.join(unknown)} is not among {', '.join(FRAMEWORKS)}")
    return arguments


def main():
    arguments = arguments_of()
    print(f"tests/reach: --seed {arguments.seed}", flush=True)
    wanted, failed = arguments.frameworks or list(FRAMEWORKS), 0
    missing = [name for name in wanted if FRAMEWORKS[name].needs and not any(importlib.metadata.distributions(name=FRAMEWORKS[name].needs))]
    for framework in missing:
        print(f"SKIPPED {framework}: it is not installed", flush=True)
    if wanted == missing:
        return 77
    ranks = {name: [number for number in FRAMEWORKS[name].ranks if arguments.ranks in (None, number)]
             for name in wanted if name not in missing}
    campaign = Campaign(arguments.kills)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no process is left, and the sums are printed
    try:
        if arguments.total is None:
            for framework, numbers in ranks.items():
                failed += prove(campaign, framework, numbers, arguments.seed)
        else:
            campaign.run([(name, number) for name, numbers in ranks.items() for number in numbers], arguments.seed, arguments.total,
                         60 * arguments.minutes)
    finally:
        campaign.print(arguments.json)
    total = campaign.sum()
    if total.kills.total() < (arguments.total or 0):
        print(f"FAILED  {total.kills.total()} kills of {arguments.total} have hit", flush=True)
        failed += 1
    return 1 if failed or total.failed or total.other_bits else 0


if __name__ == "__main__":
    sys.exit(main())
