# SPDX-License-Identifier: Apache-2.0
"""Whoever does not want to wait for a save is called, or awaits it, and hears of its error; a run can be listed."""

import asyncio
import threading

import pytest
import torch

import cairn
from cairn.torch import Checkpointer


def test_callbacks_are_called_once_in_order_whenever_they_were_added(url, caplog):
    told, ended = [], threading.Event()
    with Checkpointer(url, {"x": torch.ones(3)}) as ck:
        future = ck.save(1).durable

        def broken(_):
            raise ValueError("of the caller")

        future.add_done_callback(lambda done: told.append(("first", done is future, done.result(0).step)))
        future.add_done_callback(broken)
        future.add_done_callback(lambda done: (told.append("last"), ended.set()))
        assert ended.wait(60)
        assert told == [("first", True, 1), "last"] and "of the caller" in caplog.text
        future.add_done_callback(lambda done: told.append(threading.current_thread()))
        assert told[2] is threading.current_thread() and future.exception() is None
        with pytest.raises(cairn.InvalidError, match="not callable"):
            future.add_done_callback(3)


def test_a_failed_save_calls_back_and_raises_where_it_is_awaited(url):
    told, ended = [], threading.Event()
    with Checkpointer(url, {"x": torch.ones(3)}, rank=0, world_size=2, attempt=cairn.new_attempt(), max_failures=9) as ck:
        handle = ck.save(1)  # the other rank never comes
        handle.durable.add_done_callback(lambda done: (told.append(done.exception(0)), ended.set()))
        with pytest.raises(cairn.AgainError):
            handle.durable.exception(0)
        handle.abort()
        assert ended.wait(60) and isinstance(told[0], cairn.CancelledError)

        async def wait():
            return await handle.durable

        with pytest.raises(cairn.CancelledError):
            asyncio.run(wait())


def test_a_save_is_awaited_while_the_loop_goes_on(url):
    with Checkpointer(url, {"x": torch.ones(1 << 20)}) as ck:
        async def tick(count):
            for _ in range(count):
                await asyncio.sleep(0)
            return count

        async def saved(step):
            handle = ck.save(step)
            await handle.released
            return (await handle.durable).step

        async def both():
            return await asyncio.gather(saved(1), tick(50), asyncio.wait_for(saved(2), 60))

        assert asyncio.run(both()) == [1, 50, 2]

        async def given_up():
            handle = ck.save(3)
            task = asyncio.ensure_future(asyncio.wait_for(handle.durable, 0))
            with pytest.raises(asyncio.TimeoutError):
                await task
            return (await handle.durable).step

        assert asyncio.run(given_up()) == 3


def test_another_thread_awaits_a_save_of_this_one(url):
    found = []
    with Checkpointer(url, {"x": torch.ones(3)}) as ck:
        future = ck.save(5).durable

        async def wait():
            found.append((await future).step)

        thread = threading.Thread(target=lambda: asyncio.run(wait()))
        thread.start()
        thread.join(60)
    assert found == [5]


def test_the_run_is_listed_and_asked_about(url):
    with Checkpointer(url, {"x": torch.ones(3)}) as ck:
        assert ck.list() == []
        with pytest.raises(cairn.NotFoundError, match="no checkpoint yet"):
            ck.status()
        for step in (1, 2):
            ck.save(step, tags=[f"t{step}"], metrics={"loss": step / 2}).durable.result(60)
        newest, oldest = ck.list()
        assert (newest.step, oldest.step, newest.latest, oldest.latest) == (2, 1, True, False)
        assert ck.status() == newest and ck.status(1) == oldest and ck.status("1").tags == ("t1",)
        assert ck.status("2@1").state == "committed" and ck.status("2@1").health == "verified"
        with pytest.raises(cairn.NotFoundError, match="step 7 of term 1 was asked for"):
            ck.status("7@1")
        with pytest.raises(cairn.NotFoundError, match="step 7 is not among"):
            ck.status(7)
    with pytest.raises(cairn.ClosedError):
        ck.list()
