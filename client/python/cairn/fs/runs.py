# SPDX-License-Identifier: Apache-2.0
"""The runs of one file system: its connections to them, and the life of a tree from its first file to its commit. Any thread.

While another rank seals a tree, each call here that needs the tree waits for the end. The deadlines of the Meeting and of Client
bound that wait: a watching thread ends the tree whatever happens.
"""

from __future__ import annotations

import contextlib
from typing import Optional

from .. import _cairn
from ..client import Result
from ..errors import CairnError, ExistsError, InvalidError
from . import process, unnumbered
from .files import WriteTree
from .paths import Place, place_to_read
from .ranks import Deal, forget_tokens, meeting_of
from .remote import Committer, Reader


class Runs:
    """See the top of the file.

    Args:
        options: As for cairn.Client.
    """

    def __init__(self, options: dict) -> None:
        self._options, self._key = options, tuple(sorted(options.items()))

    def reader(self, place: Place) -> Reader:
        """Returns the connection for what is committed in the run of a place."""
        return process.entry(process.readers, (place.run_url, self._key), lambda: Reader(place.run_url, self._options))

    def committer(self, place: Place, deal: Optional[Deal] = None) -> Committer:
        """Returns the attempt by which this process commits, as the rank that ``deal`` gives it."""
        share = (deal.token, deal.rank, deal.world_size) if deal is not None else ()
        return process.entry(process.committers, (place.run_url, share, self._key), lambda: Committer(place.run_url, self._options, *share))

    def place(self, path: str) -> Place:
        """Returns the place that a path names for a reader."""
        return unnumbered.to_read(self, place_to_read(path))

    def tree(self, place: Place) -> Optional[WriteTree]:
        """Returns the tree that this process is writing at the place, or None. While another rank seals it, this waits for the end:
        the rank that seals may know that all is committed, and go on, before this process does."""
        while (tree := process.tree_at(place)) is not None and tree.is_sealed_elsewhere:
            tree.ended.wait()
        return tree

    def listing(self, place: Place) -> Optional[tuple]:
        """Returns (term or None, path -> size, name or None) of the checkpoint at a place: the one that is being written here, or else
        the committed one. Returns None if there is none of that name; the step may still be there under another one."""
        tree = self.tree(place)
        if tree is None:
            return self.reader(place).find(place.step, place.is_named)
        with tree.lock:
            if any(map(place.is_named, tree.names)):
                return None, {inner: content.size for inner, content in tree.files.items()}, None
        return None

    # --- writing --------------------------------------------------------------------------------------

    def tree_to_write(self, place: Place) -> WriteTree:
        """Returns the tree for a file that is about to be written. The first file of a checkpoint begins it.

        Raises:
            ExistsError: This process has committed the checkpoint, it is still there, and it has no such file.
        """
        if self.tree(place) is None and process.has_committed(place):
            listing = self.listing(place)
            is_there = listing is not None or any(item.step == place.step for item in self.reader(place).steps())
            if is_there and (listing is None or place.inner not in listing[1]):
                raise ExistsError.of(f"cairn://{place.root}/{place.name} was already committed by this process, so no file can be added "
                                     "to it; to write one of its files again begins a newer version of the whole step")
            self.begin_again(place.run_url)
        tree = process.entry(process.trees, (place.run_url, place.step), lambda: self._begin(place))
        with process.lock:
            tree.names.add(place.name)
        return tree

    def _begin(self, place: Place) -> WriteTree:
        process.leave_with_the_child()
        tree = WriteTree(f"cairn://{place.root}/{place.name}")
        tree.meeting = meeting_of(place.run_url, place.step)
        if tree.meeting is not None:
            tree.meeting.watch(tree.seal_elsewhere,
                               lambda deal, why="", is_raised=True: self._commit_share(place, tree, deal, why, is_raised))
        return tree

    @staticmethod
    def begin_again(run_url: str) -> None:
        """Called when this process overwrites a step that it has committed, as DCP does by default. An attempt saves a step once,
        so what is committed from now on belongs to a new attempt, and the step has a newer version."""
        for tree in [tree for _, tree in process.trees_of(run_url) if tree.state == "sealing"]:
            tree.ended.wait()  # the new attempt would fence what the old one is committing
        with process.lock:
            former = [process.committers.pop(key) for key in list(process.committers) if key[0] == run_url]
        for committer in former:
            committer.close()
        forget_tokens(run_url)

    def forget(self, place: Place, tree: WriteTree) -> None:
        """Lets nobody find the tree any more."""
        process.remove_tree(place, tree)
        for name in tree.names:
            process.remove_folder(f"{place.root}/{name}")
        if tree.meeting is not None:
            tree.meeting.leave()

    def _drop(self, place: Place, tree: WriteTree) -> None:
        try:
            self.forget(place, tree)
        finally:
            tree.close()

    def commit(self, place: Place, tree: WriteTree) -> None:
        """Commits a tree as a whole, and returns when it is durable. After an error the tree's files are discarded; the
        caller may write them again."""
        tree.start_sealing()
        is_ended = False
        try:
            index = tree.sizes()
            deal = tree.meeting.seal(index) if tree.meeting is not None else None
            index = deal.index if deal is not None else index
            if "" in index and len(index) > 1:
                raise InvalidError.of(f"{tree.name} was written both as a file and as a folder")
            if place.names_url:
                unnumbered.note(self, place)
            committer = self.committer(place, deal)
            op = committer.start(place.step, tree.files, index, place.name)
            if deal is not None:
                tree.meeting.wait(op)
            self._committed(place, op.result())
            is_ended = True
        except Exception:
            is_ended = True
            raise
        finally:
            self._drop(place, tree)
            if not is_ended:  # Ctrl-C: the save may go on, and its attempt would keep that for what is written to the step next
                self.begin_again(place.run_url)

    def _commit_share(self, place: Place, tree: WriteTree, deal: Optional[Deal], why: str, is_raised: bool) -> None:
        """Commits this process's part of a tree that another rank seals, or drops it if ``deal`` is None. Nobody waits for
        this in this process, so stderr gets the loss and its reason."""
        try:
            if deal is None:
                if tree.tell_lost(why) and not is_raised:
                    _cairn.fail_exit()
            else:
                committer = self.committer(place, deal)
                self._committed(place, committer.start(place.step, tree.files, None, place.name).result())
        except CairnError as error:
            tree.tell_lost(str(error))
            raise
        finally:
            self._drop(place, tree)

    def _committed(self, place: Place, result: Result) -> None:
        process.note_commit(place.run_url, result.step)
        with contextlib.suppress(CairnError):  # the next commit tries again
            self.reader(place).settle()

    def wait_for_ranks(self, place: Place) -> None:
        """Waits until the checkpoint at a place is durable, if this rank has written files of it and another rank commits it.

        Raises:
            MissingRanksError: No other rank has begun the commit.
            InvalidError: It was not committed; stderr says why.
        """
        tree = process.tree_at(place)
        if tree is None or tree.meeting is None or tree.meeting.rank == 0:
            return
        tree.meeting.await_seal()
        tree.ended.wait()
        if not process.has_committed(place):
            raise InvalidError.of(f"{tree.name} was not committed, as the rank that commits it says as well; stderr says why")
