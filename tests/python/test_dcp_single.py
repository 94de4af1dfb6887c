# SPDX-License-Identifier: Apache-2.0
"""cairn.dcp does in one process what DCP's own storage tests ask of a StorageWriter and StorageReader."""

import collections
import io
import signal
import threading
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import cairn
from bed import assert_same, restore
from cairn.dcp import PlanStaleError, Reader, Writer, parse_id, session, split_url
from cairn.torch import CairnWarning


def state(scale=1.0):
    torch.manual_seed(3)
    return {"model": {"w": torch.randn(8, 6) * scale, "b": torch.arange(5, dtype=torch.bfloat16) * scale,
                      "s": torch.tensor(2.5), "none": torch.empty(0, 3), "t": torch.randn(4, 6).t() * scale},
            "optim": {"lr": 0.1, "betas": (0.9, 0.999), "milestones": (collections.Counter({3: 2}),), "step": 7},
            "mixed": ({"inner": torch.arange(4) * 2}, "text", None)}


def zeros(tree):
    if isinstance(tree, dict):
        return {key: zeros(value) for key, value in tree.items()}
    return torch.zeros_like(tree) if isinstance(tree, torch.Tensor) else None


def test_round_trip(url, caplog):
    dcp.save(state(), checkpoint_id="step-100", storage_writer=Writer(url))
    back = zeros(state())
    caplog.set_level("INFO", "cairn")
    dcp.load(back, checkpoint_id="step-100", storage_reader=Reader(url))
    assert_same(back, state())
    assert [record.getMessage() for record in caplog.records if record.name == "cairn"] == [f"{url}: restored step 100 of term 1"]


@pytest.mark.parametrize("save", [dcp.save, lambda *args, **how: dcp.async_save(*args, **how).result()], ids=["save", "async"])
def test_files_in_memory_are_values(url, save):
    """DCP's own trainer tests keep one beside the tensors."""
    kept = io.BytesIO(b"bytes of a loader")
    kept.seek(6)
    save({"loader": kept, "deep": {"x": [io.BytesIO()]}, "w": torch.arange(3.)}, checkpoint_id="step-1", storage_writer=Writer(url))
    kept.write(b"on")
    back = {"loader": io.BytesIO(), "deep": {"x": [None]}, "w": torch.zeros(3)}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))
    assert (back["loader"].getvalue(), back["loader"].tell()) == (b"bytes of a loader", 6)
    assert back["deep"]["x"][0].getvalue() == b"" and torch.equal(back["w"], torch.arange(3.))
    kept.close()
    assert "loader: the io.BytesIO is closed" in str(failures(lambda: dcp.save({"loader": kept}, checkpoint_id="step-2",
                                                                               storage_writer=Writer(url)))[0])


def zeros_of(checkpoint):
    return {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None
            for key, value in checkpoint.items()}


def failures(call):
    """The errors inside the CheckpointException that DCP raises."""
    with pytest.raises(CheckpointException) as caught:
        call()
    return [inner[0] for inner in caught.value.failures.values()]


@pytest.mark.parametrize("name, step", [
    ("step-100", 100), ("step_100", 100), ("step100", 100), ("global_step7", 7), ("iter_0000100", 100),
    ("checkpoint-12", 12), ("ckpt.5", 5), ("epoch=3-step=500.ckpt", 500), ("epoch_3_iter_20", 20), ("42", 42),
    ("epoch=3", None), ("final", None), ("best-model", None), ("ema/step-9/", 9), ("checkpoint-3-step-8", 8)])
def test_torch_15_checkpoint_ids_follow_a_published_grammar(name, step):
    assert parse_id(f"cairn://h:1/p/r/{name}").step == step
    assert parse_id(name, "cairn://h:1/p/r").step == step
    assert parse_id(f"cairn+unix:///s?run=p/r/{name}").run_url == "cairn+unix:///s?run=p/r"


def test_torch_15_ids_that_cannot_be(url):
    assert split_url("cairn://a:1,b:2/p/r/step-1/x") == ("cairn://a:1,b:2/p/r", "step-1/x")
    for bad in ("step-1", "file:///x/step-1", "cairn://h:1/p", "cairn+unix:///s?run=p"):
        with pytest.raises(cairn.InvalidError):
            parse_id(bad)
    with pytest.raises(cairn.InvalidError, match="several steps"):
        parse_id("step-1-iter-2", url)
    assert parse_id("step-5@3", url, latest=True).term == 3
    assert parse_id(7, url).step == 7
    assert Writer.validate_checkpoint_id(f"{url}/step-1") and not Writer.validate_checkpoint_id(f"{url}/final")
    assert Reader.validate_checkpoint_id(f"{url}/latest") and not Reader.validate_checkpoint_id("/tmp/x")
    with pytest.raises(cairn.InvalidError, match="holds no step"):
        Writer(f"{url}/final")
    assert [type(error) for error in failures(
        lambda: dcp.save({"x": torch.ones(1)}, checkpoint_id="final", storage_writer=Writer(url)))] == [cairn.InvalidError]
    dcp.save({"x": torch.ones(1)}, storage_writer=Writer(f"{url}/final", step=3))
    back = {"x": torch.zeros(1)}
    dcp.load(back, storage_reader=Reader(f"{url}/latest"))
    assert back["x"] == 1
    error, = failures(lambda: dcp.save(back, checkpoint_id="step-4", storage_writer=Writer(url, step=3)))
    assert "names step 4" in str(error)


def test_torch_15_no_dist_in_many_processes_is_refused(url, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(cairn.InvalidError, match="WORLD_SIZE"):
        Writer(url)


def test_torch_14_nothing_that_is_stored_is_a_pickle(url, daemon, monkeypatch):
    """Neither zips nor pickles are in the store, and no stored byte reaches a pickle's reader on the way back."""
    dcp.save(state(), checkpoint_id="step-1", storage_writer=Writer(url))
    stored = b"".join(path.read_bytes() for path in (daemon.store / "runs" / "py" / url.rsplit("/", 1)[1]).rglob("*")
                      if path.is_file())
    control, read, load = io.BytesIO(), [], torch.load
    torch.save(0.1, control)
    for mark in (b"PK\x03\x04", b"data.pkl"):
        assert mark in control.getvalue() and mark not in stored

    def spy(file, *args, **kwargs):
        read.append(file.getvalue())
        return load(file, *args, **kwargs)

    monkeypatch.setattr(torch, "load", spy)
    dcp.load(zeros(state()), checkpoint_id="step-1", storage_reader=Reader(url))
    assert read and all(data not in stored for data in read)


def test_torch_14_planner_that_transforms(url):
    """A planner's own bytes are read with the restricted reader; code in them is not run but refused by name."""
    class Planner(DefaultSavePlanner):
        def transform_object(self, write_item, value):
            return super().transform_object(write_item, value * 2 if isinstance(value, int) else value)

    dcp.save({"n": 21}, checkpoint_id="step-1", storage_writer=Writer(url), planner=Planner())
    back = {"n": None}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))
    assert back == {"n": 42}
    error, = failures(lambda: dcp.save({"n": Odd()}, checkpoint_id="step-2", storage_writer=Writer(url),
                                       planner=Planner()))
    assert isinstance(error, cairn.UnsupportedValueError) and error.text.startswith("n: ")


class Odd:
    def __eq__(self, other):
        return isinstance(other, Odd)


def test_torch_14_opaque_values_only_by_name_and_option(url):
    checkpoint = {"fine": 1, "odd": Odd()}
    error, = failures(lambda: dcp.save(checkpoint, checkpoint_id="step-1", storage_writer=Writer(url)))
    assert isinstance(error, cairn.UnsupportedValueError) and error.text.startswith("odd: ")
    dcp.save(checkpoint, checkpoint_id="step-1", storage_writer=Writer(url, allow_opaque=True))
    back = {"fine": None}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))  # what is flagged is not touched
    assert back == {"fine": 1}
    back = {"fine": None, "odd": None}
    error, = failures(lambda: dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url)))
    assert isinstance(error, cairn.UnsupportedError) and error.text.startswith("odd: ")
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url, allow_opaque=True))
    assert back == checkpoint


def test_torch_13_errors_cross_processes():
    """Rule 6: DCP pickles exceptions between ranks."""
    import pickle
    for error in (PlanStaleError.about("a.b", "why"), cairn.UnsupportedValueError.of("x: no")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and (copy.code, copy.name, copy.text) == (error.code, error.name, error.text)


def test_torch_13_unreachable_is_an_error(tmp_path):
    nowhere = f"cairn+unix://{tmp_path}/none?run=a/b/step-1"
    error, = failures(lambda: dcp.save({"x": 1}, storage_writer=Writer(nowhere, io_deadline=0.3)))
    assert isinstance(error, cairn.UnreachableError)
    assert "UNREACHABLE" in str(failures(lambda: dcp.load({"x": 1}, storage_reader=Reader(nowhere, io_deadline=0.3)))[0])


def test_torch_15_metadata_is_lazy(url):
    dcp.save(state(), checkpoint_id="step-1", storage_writer=Writer(url))
    metadata = Reader(f"{url}/step-1").read_metadata()
    entries = metadata.state_dict_metadata
    assert entries._made == {} and "model.w" in entries and len(entries) == len(list(entries)) >= 10
    assert entries["model.b"].properties.dtype == torch.bfloat16 and tuple(entries["model.w"].size) == (8, 6)
    assert metadata.planner_data["model.w"] == ("model", "w") and metadata.storage_data == {}


def test_torch_19_cases_of_dcp_s_own_tests(url):
    """After DCP's tests of its file system storage: keys and sizes that do not fit, subsets, an empty state, an
    unflattened state, tensors of other types, views and overlapping memory, the whole rebuilt from the metadata."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    writer, base = Writer(url), torch.arange(24.).reshape(4, 6)
    checkpoint = {"a": base, "view": base[1:3, ::2], "expanded": torch.ones(1).expand(3, 2), "half": base.half(),
                  "conj": torch.complex(base, base).conj(), "bool": base > 3}
    dcp.save(checkpoint, checkpoint_id="step-1", storage_writer=writer)
    reader = Reader(url)
    back = zeros_of(checkpoint)
    back["half"] = torch.zeros(4, 6, dtype=torch.float64)  # DCP casts without a word
    back["view"] = torch.zeros(6, 4).t()[1:3, ::2]
    error, = failures(lambda: dcp.load(back, checkpoint_id="step-1", storage_reader=reader))
    assert isinstance(error, cairn.DtypeMismatchError) and "half: the stored tensor is torch.float16" in str(error)
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url, cast=True))
    assert all(torch.equal(back[key].to(value.dtype), value) for key, value in checkpoint.items())
    assert "Missing key" in str(failures(lambda: dcp.load({"b": torch.zeros(2)}, checkpoint_id="step-1",
                                                          storage_reader=reader))[0])
    assert "Size mismatch" in str(failures(lambda: dcp.load({"a": torch.zeros(2)}, checkpoint_id="step-1",
                                                            storage_reader=reader))[0])
    back = {"a": torch.zeros(4, 6), "new": torch.ones(2)}
    dcp.load(back, checkpoint_id="step-1", storage_reader=reader, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert torch.equal(back["a"], base) and back["new"].sum() == 2
    dcp.save({}, checkpoint_id="step-2", storage_writer=writer)
    dcp.load({}, checkpoint_id="step-2", storage_reader=reader)
    dcp.save({"x": torch.ones(2), "y": [1, {"z": 2}]}, checkpoint_id="step-3", storage_writer=writer,
             planner=DefaultSavePlanner(flatten_state_dict=False))
    back = {"x": torch.zeros(2), "y": None}
    dcp.load(back, checkpoint_id="step-3", storage_reader=reader,
             planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
    assert back["x"].sum() == 2 and back["y"] == [1, {"z": 2}]
    dcp.save(state(), checkpoint_id="step-4", storage_writer=writer)
    back = {}
    _load_state_dict(back, Reader(f"{url}/step-4"), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert_same(back["model"], {key: value.contiguous() for key, value in state()["model"].items()})
    assert back["optim"] == state()["optim"]


def test_unsupported_tensor_is_refused_by_name(url):
    sparse = torch.eye(3).to_sparse()
    error, = failures(lambda: dcp.save({"fine": torch.ones(1), "odd": sparse}, checkpoint_id="step-1",
                                       storage_writer=Writer(url)))
    assert "odd" in str(error)
    with cairn.Client(url, read_only=True) as client:
        assert client.list() == []


def test_rule_04_buffers_are_not_known_by_address(url):
    """The same tensor object and memory at every save: each checkpoint has its own bytes."""
    tensor, writer = torch.zeros(1000), Writer(url)
    for step in range(1, 4):
        tensor.fill_(step)
        dcp.save({"x": tensor}, checkpoint_id=f"step-{step}", storage_writer=writer)
    for step in range(1, 4):
        back = {"x": torch.zeros(1000)}
        dcp.load(back, checkpoint_id=f"step-{step}", storage_reader=Reader(url, resume=False))
        assert (back["x"] == step).all()
    with cairn.Client(url, read_only=True) as client:
        assert [(item.term, item.step) for item in client.list()] == [(1, 3), (1, 2), (1, 1)]


def test_tensors_made_of_others_are_stored_in_values(url):
    """Quantized and sparse ones, as their components; types below a byte, which PyTorch cannot pickle, are refused by name."""
    per_tensor = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    per_channel = torch.quantize_per_channel(torch.randn(2, 2), torch.tensor([.1, .2]), torch.tensor([0, 1]), 0, torch.quint8)
    sparse = torch.tensor([[0., 1.], [2., 0.]]).to_sparse()
    value = {"x": (1, per_tensor, per_channel, {"s": sparse})}
    dcp.save({"v": value}, checkpoint_id="step-1", storage_writer=Writer(url))
    back = {"v": {"x": None}}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))
    one, first, second, inner = back["v"]["x"]
    assert one == 1 and torch.equal(inner["s"].to_dense(), sparse.to_dense())
    for found, right in ((first, per_tensor), (second, per_channel)):
        assert found.qscheme() == right.qscheme() and found.dtype == right.dtype and torch.equal(found.int_repr(), right.int_repr())
        assert torch.equal(found.dequantize(), right.dequantize())
    restored = {"v": {"x": 0}}
    with pytest.warns(CairnWarning, match="stores no RNGs"):
        restore(url, restored)
    assert torch.equal(restored["v"]["x"][1].int_repr(), per_tensor.int_repr()) and restored["v"]["x"][1].dtype == torch.qint8
    low = torch.arange(6, dtype=torch.uint8).view(torch.uint4)
    with pytest.raises(CheckpointException, match=r"v\.x\[1\]: the tensor has the element type torch.uint4"):
        dcp.save({"v": {"x": (1, low)}}, checkpoint_id="step-2", storage_writer=Writer(url))
    with pytest.raises(CheckpointException, match=r"UnsupportedValueError.* m\.low: .* torch.uint4, .* view\(torch.uint8\)"):
        dcp.save({"m": {"low": low}}, checkpoint_id="step-2", storage_writer=Writer(url))
    dcp.save({"m": {"low": low.view(torch.uint8)}}, checkpoint_id="step-2", storage_writer=Writer(url))  # the remedy
    bits = {"m": {"low": torch.zeros(6, dtype=torch.uint8)}}
    dcp.load(bits, checkpoint_id="step-2", storage_reader=Reader(url))
    assert torch.equal(bits["m"]["low"].view(torch.uint4).view(torch.uint8), low.view(torch.uint8))
    with pytest.raises(CheckpointException, match="q: the tensor is quantized"):
        dcp.save({"q": per_tensor}, checkpoint_id="step-3", storage_writer=Writer(url))


def test_rule_03_async_save_copies_cpu_tensors(url):
    tensor, writer = torch.zeros(200_000), Writer(url)
    future = dcp.async_save({"x": tensor, "view": tensor[::2]}, checkpoint_id="step-1", storage_writer=writer,
                            no_dist=True)
    tensor.fill_(9)
    future.result()
    back = {"x": torch.ones(200_000), "view": torch.ones(100_000)}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))
    assert not back["x"].any() and not back["view"].any()


def test_rule_07_saves_in_two_threads_keep_their_ids(url):
    """One Writer, saves that overlap: each step has its own state. (With several ranks DCP's collectives forbid it.)"""
    writer, started, count = Writer(url), threading.Barrier(4), 4
    writer.should_synchronize_after_execute = False  # or the first would wait for a plan that waits for the others'

    class Meeting(DefaultSavePlanner):
        def create_local_plan(self):
            started.wait(30)  # all have set their id by now
            return super().create_local_plan()

    futures = [dcp.async_save({"x": torch.full((1000,), float(step)), "n": step}, checkpoint_id=f"step-{step}",
                              storage_writer=writer, planner=Meeting(), no_dist=True) for step in range(count)]
    for future in futures:
        future.result()
    for step in range(count):
        back = {"x": torch.zeros(1000), "n": None}
        dcp.load(back, checkpoint_id=f"step-{step}", storage_reader=Reader(url, resume=False))
        assert (back["x"] == step).all() and back["n"] == step


def test_restorable_by_name_without_dcp(url):
    """A checkpoint of DCP's is one of Cairn's: tensors by name, through the plain client."""
    dcp.save(state(), checkpoint_id="step-8", storage_writer=Writer(url, tags=["dcp"], metrics={"loss": 0.5}))
    weight = torch.zeros(8, 6)
    with cairn.Client(url, read_only=True) as client:
        client.set_tensors([("model.w", cairn.client.DTYPES["float32"], (8, 6), weight.data_ptr(), None, weight, 1, None,
                             None, None)])
        op = client.restore(8)
        assert op.result(30).step == 8
        assert cairn.tree.decode(op.metadata()) == {"framework": "dcp", "checkpoint_id": "step-8"}
    assert torch.equal(weight, state()["model"]["w"])


def test_damage_is_an_error(own_daemon):
    url = own_daemon.url("damaged")
    checkpoint = {"x": torch.arange(40_000.)}
    dcp.save(checkpoint, checkpoint_id="step-1", storage_writer=Writer(url))
    big = max((path for path in (own_daemon.store / "runs").rglob("*") if path.is_file()),
              key=lambda path: path.stat().st_size)
    data = bytearray(big.read_bytes())
    data[1000] ^= 1
    big.write_bytes(bytes(data))
    back = {"x": torch.zeros(40_000)}
    error, = failures(lambda: dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url)))
    assert isinstance(error, (cairn.DamagedError, cairn.DigestMismatchError)), error


def test_rule_01_latest_moves_only_after_the_commit(url):
    """While rank 0 is in finish, the newest checkpoint is still the one before."""
    writer, seen = Writer(url), []

    class Watching(DefaultSavePlanner):
        def resolve_data(self, write_item):
            with cairn.Client(url, read_only=True) as client:
                seen.append([item.step for item in client.list()])
            return super().resolve_data(write_item)

    for step in (1, 2):
        dcp.save({"x": torch.ones(3)}, checkpoint_id=f"step-{step}", storage_writer=writer, planner=Watching())
        assert writer.last.step == step
    assert seen == [[], [1]]


def test_a_lost_server_fails_the_save_in_time_and_a_retry_succeeds(own_daemon):
    """It dies between the copy and the commit; the older checkpoint is unharmed."""
    url = own_daemon.url("lost")
    writer = Writer(url, io_deadline=2, save_deadline=5)

    class Killing(DefaultSavePlanner):
        def resolve_data(self, write_item):
            own_daemon.kill()
            return super().resolve_data(write_item)

    dcp.save({"x": torch.ones(3)}, checkpoint_id="step-1", storage_writer=writer)
    start = time.monotonic()
    error, = failures(lambda: dcp.save({"x": torch.ones(3) * 2}, checkpoint_id="step-2", storage_writer=writer,
                                       planner=Killing()))
    assert isinstance(error, cairn.CairnError) and time.monotonic() - start < 30
    own_daemon.start()
    with cairn.Client(url, read_only=True) as client:
        assert [item.step for item in client.list()] == [1]
    dcp.save({"x": torch.ones(3) * 3}, checkpoint_id="step-2", storage_writer=writer)
    back = {"x": torch.zeros(3)}
    for step, value in ((1, 1), (2, 3)):
        dcp.load(back, checkpoint_id=f"step-{step}", storage_reader=Reader(url))
        assert (back["x"] == value).all()


def test_not_written_by_dcp(url):
    with cairn.Client(url) as client:
        client.set_blobs([("note", 1, b"x", 1, None)])
        client.save(1).result(30)
    assert "not saved through DCP" in str(failures(lambda: dcp.load({"x": 1}, checkpoint_id="step-1",
                                                                    storage_reader=Reader(url)))[0])


def test_a_load_that_failed_on_other_ranks_leaves_the_attempt_alone(monkeypatch):
    """What one rank alone has loaded is of no account once both have loaded the same, again and again."""
    url, token, ranks = "cairn:///lab/run", "a" * 32, ({}, {})

    def both(act):
        found = []
        for known in ranks:
            monkeypatch.setattr(session, "_loads", known)
            monkeypatch.setattr(session, "_sessions", {})
            found.append(act())
        return found

    def load(step, *on):
        for number in on:
            monkeypatch.setattr(session, "_loads", ranks[number])
            session.note_load(url, 2, 1, step)

    tokens = []
    for failed, step in ((40, 30), (40, 40), (50, 30)):
        load(failed, 0)
        load(step, 0, 1)
        one, other = both(lambda: session.session_of(url, token, 0, 2, {}).token)
        assert one == other
        tokens.append(one)
    assert len({token, *tokens}) == 4  # each that a save may descend from is an attempt of its own


def test_ctrl_c_gives_a_save_up_before_it_is_raised(url, monkeypatch):
    one, ops = session.Session(url, "a" * 32, 0, 2, None, {}), []
    monkeypatch.setattr(cairn.client.Operation, "result", lambda op: signal.default_int_handler(signal.SIGINT, None))
    with pytest.raises(KeyboardInterrupt):
        one.save_all(5, [], [], ops.append)  # rank 1 never came
    assert ops[0].done()
    one.close()


def test_a_session_that_a_thread_does_not_leave_is_named(daemon, monkeypatch):
    monkeypatch.setattr(session, "_SETTLE_S", 0.01)
    monkeypatch.setattr(session, "_LEAVE_S", 0.05)
    one = session.Session(daemon.url("held"), "a" * 32, 0, 2, None, {})
    inside, over = threading.Event(), threading.Event()

    def hold():
        with one._mutex:
            inside.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    try:
        with pytest.raises(cairn.TimedOutError, match="another thread of this process has not left its save"):
            one.close()
    finally:
        over.set()
        thread.join(60)


def test_a_session_is_left_while_a_save_of_it_waits(own_daemon, monkeypatch):
    """As when torch.distributed is initialised anew: the save that another thread waits for is given up after some seconds."""
    monkeypatch.setattr(session, "_SETTLE_S", 1.0)
    one, begun, told = session.Session(own_daemon.url("left"), "a" * 32, 0, 2, None, {}), threading.Event(), []

    def save():
        try:
            one.save_all(5, [], [], lambda op: begun.set())
        except cairn.CairnError as error:
            told.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    assert begun.wait(60)
    one.close()
    thread.join(60)
    assert len(told) == 1 and not thread.is_alive()  # rank 1 never came, and the deadline is ten minutes
