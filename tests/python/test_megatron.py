# SPDX-License-Identifier: Apache-2.0
"""cairn.megatron on one rank, where Megatron-Core is installed. tests/reach proves it on more of them, with a real model."""

import subprocess
import sys

import pytest

from test_client import damage

pytest.importorskip("megatron.core.dist_checkpointing",
                    reason="Megatron-Core is not installed; tests/reach/run BUILD-FOLDER megatron has it")

PROGRAM = """
import argparse, sys
import torch, torch.distributed as dist
import cairn
import cairn.megatron as dist_checkpointing

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
url = sys.argv[1] + "/"

def state(value, **more):
    tensor = torch.full((4, 3), float(value)), torch.full((2,), value, dtype=torch.int64)
    return {"a": dist_checkpointing.ShardedTensor.from_rank_offsets("a", tensor[0], (0, 0, 1)),
            "b": dist_checkpointing.ShardedTensor.from_rank_offsets("b", tensor[1], (0, 0, 1)),
            "own": dist_checkpointing.ShardedObject("own", {"value": value}, (1,), (0,)), "iteration": value, **more}

def by_type(value):  # as the optimizer's default form has it
    return [{(torch.bfloat16, torch.float32): [value]}, {torch.int8: ({torch.half: None, 1: "x"},), 3: {4: 5}}]

args = argparse.Namespace(lr=0.1, dtype=torch.bfloat16)
assert not dist_checkpointing.check_is_distributed_checkpoint(url + "latest")
queue = dist_checkpointing.AsyncCallsQueue()
for step in (1, 2):
    queue.schedule_async_request(dist_checkpointing.save(state(step, args=args, sizes=by_type(step)), url + f"iter_{step:07}",
                                                         async_sharded_save=True))
queue.close()
try:
    dist_checkpointing.save(state(3), url + "iter_0000002")
except cairn.ExistsError:
    pass
else:
    raise AssertionError("a step is saved twice")
found = dist_checkpointing.load(state(0), url + "latest")
assert found["iteration"] == 2 and found["own"] == {"value": 2} and found["args"] == args
assert found["sizes"] == by_type(2) and type(found["sizes"][1]) is dict
assert torch.equal(found["a"], torch.full((4, 3), 2.0)) and torch.equal(found["b"], torch.full((2,), 2))
assert dist_checkpointing.load(state(0), url + "iter_0000001")["iteration"] == 1
assert set(dist_checkpointing.load_tensors_metadata(url + "latest")) == {"a", "b"}
assert dist_checkpointing.load_common_state_dict(url + "latest")["iteration"] == 2
for call, word in ((lambda: dist_checkpointing.load(state(0), url + "iter_0000009"), "no such checkpoint"),
                   (lambda: dist_checkpointing.load(state(0, more=dist_checkpointing.ShardedObject("more", None, (1,), (0,))),
                                                    url + "latest"), "more"),
                   (lambda: dist_checkpointing.save(state(3, odd=open), url + "iter_0000003"), "builtin"),
                   (lambda: dist_checkpointing.save(state(3, odd={(torch.half, b""): 1}), url + "iter_0000003"), "key of type dtype")):
    try:
        call()
    except cairn.CairnError as error:
        assert word in str(error), error
    else:
        raise AssertionError(word)
assert dist_checkpointing.load(state(0), url + "latest")["iteration"] == 2
"""


LATEST = """
import sys
import torch.distributed as dist
import cairn
import cairn.megatron as dist_checkpointing

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
url = sys.argv[1] + "/"
for step in map(int, sys.argv[2:]):
    dist_checkpointing.save({"iteration": step}, url + f"iter_{step:07}")
print(dist_checkpointing.load({"iteration": 0}, url + "latest")["iteration"])
"""


def run(program, url, folder, *words):
    """Returns what a program has printed, and what it has said on stderr."""
    server, _, name = url.partition("?run=")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, f"cairn:///{name}", *words], capture_output=True, text=True,
                          timeout=300, check=False, cwd=folder,
                          env={"CAIRN_SERVER": server.replace("cairn+unix://", "unix:"), "PATH": ""})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split(), done.stderr


def test_round_trip(url, tmp_path):
    run(PROGRAM, url, tmp_path)


def test_a_damaged_newest_is_passed_over_and_told(own_daemon, tmp_path):
    url = own_daemon.url("damaged")
    assert run(LATEST, url, tmp_path, "1", "2")[0] == ["2"]
    damage(own_daemon.store, 2)
    said, words = run(LATEST, url, tmp_path)
    assert said == ["1"] and "restored step 1 of term 1, which is not the newest" in words


def test_what_was_abandoned_is_not_gone_back_to(own_daemon, tmp_path):
    """Step 3 follows step 1; another attempt goes on from step 1 to step 2, which is damaged: step 3 is not on its lineage."""
    url = own_daemon.url("abandoned")
    run(LATEST, url, tmp_path, "1", "3")
    again = LATEST.replace("for step", "dist_checkpointing.load({'iteration': 0}, url + 'iter_0000001')\nfor step")
    assert run(again, url, tmp_path, "2")[0] == ["2"]
    damage(own_daemon.store, 2)
    assert run(LATEST, url, tmp_path)[0] == ["1"]
