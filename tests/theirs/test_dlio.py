# SPDX-License-Identifier: Apache-2.0
"""DLIO's checkpoint workload, which MLPerf Storage uses, into Cairn: DLIO's own program under mpirun, with a small model."""

import json
import os
import subprocess
import sys

import fsspec
import pytest

CHECKPOINTS = 3
MODEL = ("num_layers=4", "transformer.hidden_size=128", "transformer.vocab_size=1000", "transformer.ffn_hidden_size=256",
         "transformer.num_attention_heads=4", "transformer.num_kv_heads=4")


def dlio(ranks, folder, *overrides, **environment):
    """Runs DLIO in a folder."""
    return subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), sys.executable, "-m",
                           "dlio_benchmark.main", "workload=llama_7b_zero3", *(f"++workload.model.{size}" for size in MODEL),
                           "++workload.checkpoint.checkpoint_folder=local", "++workload.checkpoint.time_between_checkpoints=0",
                           "++workload.checkpoint.checkpoint_mechanism_classname=dlio_cairn.Checkpointing",
                           f"++workload.checkpoint.num_checkpoints_write={CHECKPOINTS}", "++workload.output.folder=output", *overrides],
                          cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_written_is_read(ranks, tmp_path):
    run = f"{os.environ['CAIRN_THEIRS_URL']}dlio-{ranks}"
    done = dlio(ranks, tmp_path, f"++workload.checkpoint.num_checkpoints_read={CHECKPOINTS}", CAIRN_DLIO_RUN=run)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    fs = fsspec.filesystem("cairn")
    for step in range(1, CHECKPOINTS + 1):
        assert len(fs.ls(f"{run}/step-{step}", detail=False)) == 2 * ranks  # DLIO's states of the model and of the optimizer
    assert not [name for _, _, names in os.walk(tmp_path / "local") for name in names]
    told = json.loads((tmp_path / "output/summary.json").read_text(encoding="utf-8"))["metric"]
    print({name: value for name, value in told.items() if "checkpoint" in name})
    assert told["save_checkpoint_io_mean_GB_per_second"] > 0 and told["load_checkpoint_io_mean_GB_per_second"] > 0
