# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint_id to a run and a step. The grammar is public; dcp/README.md shows it.

    id    = URL "/" name | name | number
    URL   = "cairn://" hosts "/" project "/" run | "cairn+unix://" path "?run=" project "/" run
    name  = text with one step in it: "step-100", "step_100", "global_step100", "iter_0000100",
            "checkpoint-100", "epoch=3-step=500.ckpt", "100"; of a reader also "step-100@2" (term 2), "latest"

The step is the number behind a word of _STEP_WORDS; where none stands there, behind one of _CHECKPOINT_WORDS;
else the name must be a number as a whole. Folders in front of the last name do not count. Pure.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import parse_qsl

from .errors import InvalidError
from .operation import LATEST

_STEP_WORDS = frozenset(("step", "steps", "iter", "iters", "iteration", "iterations", "globalstep"))
_CHECKPOINT_WORDS = frozenset(("checkpoint", "ckpt", "tag"))
_SUFFIX = re.compile(r"\.(ckpt|pt|pth|bin|distcp|dcp)$")
_TOKEN = re.compile(r"[A-Za-z]+|\d+")
_SCHEMES = ("cairn://", "cairn+unix://")


@dataclass(frozen=True)
class CheckpointId:
    """A run and a step in it.

    Attributes:
        run_url: The URL of the run; "" where the id names none.
        name: The id itself, without the run.
        step: The step; None where the id has none.
        term: The term of the step; 0 is any.
    """

    run_url: str
    name: str
    step: Optional[int]
    term: int = 0


def checkpoint_name(step: int, term: int = 0) -> str:
    """Returns the name of a checkpoint in its run, as ``parse_id`` reads it. Without a term it is that of the newest version."""
    return f"step-{step}@{term}" if term else f"step-{step}"


def is_url(text: str) -> bool:
    return text.startswith(_SCHEMES)


def split_url(url: str) -> tuple:
    """Splits a URL of Cairn.

    Args:
        url: The URL of a run, or of something in it.

    Returns:
        (URL of the run, the rest of the path).

    Raises:
        InvalidError: The URL names no run.
    """
    if url.startswith("cairn://"):
        hosts, _, path = url[len("cairn://"):].partition("/")
        head = f"cairn://{hosts}/"
    elif url.startswith("cairn+unix://"):
        head, _, query = url.partition("?")
        path = dict(parse_qsl(query)).get("run", "")
        head += "?run="
    else:
        raise InvalidError.of(f"{url!r} is not a Cairn URL; write cairn:///project/run[/step-100] for the server in CAIRN_SERVER, "
                              "cairn://host:port/project/run or cairn+unix:///path?run=project/run")
    parts = [part for part in path.split("/") if part]
    if len(parts) < 2:
        raise InvalidError.of(f"{url!r} does not name a run; write cairn:///project/run[/step-100] for the server in CAIRN_SERVER, "
                              "cairn://host:port/project/run or cairn+unix:///path?run=project/run")
    return head + "/".join(parts[:2]), "/".join(parts[2:])


def run_of(url: str) -> str:
    """Returns the URL of a run as it is kept. Raises InvalidError if it names no run, or something in a run."""
    run_url, rest = split_url(str(url))
    if rest:
        raise InvalidError.of(f"{url!r} names something in a run; give the run alone, {run_url}, and let the framework name the "
                              "checkpoints in it")
    return run_url


def name_of(url: str) -> str:
    """Returns project/run of the URL of a run, or of something in it, whatever the server's address is."""
    return "/".join(split_url(url)[0].replace("?run=", "/").split("/")[-2:])


def warn_of_local_folder() -> None:
    """Warns of a folder ``cairn:`` in the working directory: a program that knows folders only has taken a URL for a path, and what
    it saved there is no checkpoint."""
    if os.path.isdir("cairn:"):
        warnings.warn(f"{os.path.abspath('cairn:')} is a local folder: a program has taken a cairn:// URL for a path, and what it wrote "
                      "there is not in Cairn. Accelerate and the Hugging Face Trainer do so: use cairn.accelerate.attach or "
                      "cairn.transformers.attach with a local output_dir, then remove the folder", UserWarning, stacklevel=3)


def parse_step(name: str) -> Optional[int]:
    """Returns the step in a name, or None if there is none. Raises InvalidError if the name has several."""
    stem = _SUFFIX.sub("", name.rstrip("/").rsplit("/", 1)[-1])
    if stem.isdecimal() and stem.isascii():
        return int(stem)
    tokens = _TOKEN.findall(stem)
    pairs = [(a.lower(), int(b)) for a, b in zip(tokens, tokens[1:]) if a.isalpha() and b.isdecimal()]
    for words in (_STEP_WORDS, _CHECKPOINT_WORDS):
        steps = {number for word, number in pairs if word in words}
        if len(steps) > 1:
            raise InvalidError.of(f"the checkpoint id {name!r} names several steps: {sorted(steps)}; name only one")
        if steps:
            return steps.pop()
    return None


def is_checkpoint(checkpoint_id: Any, latest: bool = False) -> bool:
    """Returns whether the id is the URL of a checkpoint; ``latest`` is as for ``parse_id``."""
    try:
        text = os.fspath(checkpoint_id)
        return is_url(text) and parse_id(text, latest=latest).step is not None
    except (InvalidError, TypeError):
        return False


def parse_id(checkpoint_id: Any, run_url: str = "", latest: bool = False) -> CheckpointId:
    """Finds the run, the step and the term of a checkpoint_id.

    Args:
        checkpoint_id: A text, a path-like object or a number.
        run_url: The run of ids that are no URL.
        latest: Whether "latest" is allowed, as for a reader; the step is then LATEST.

    Raises:
        InvalidError: There is no run, there are several steps, or the step is too large.
    """
    if isinstance(checkpoint_id, int) and not isinstance(checkpoint_id, bool):
        text = str(checkpoint_id)
    else:
        text = os.fspath(checkpoint_id)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    name = text
    if is_url(text):
        run_url, name = split_url(text)
    if not run_url:
        raise InvalidError.of(f"the checkpoint id {text!r} is not a Cairn URL, and none was given before; use "
                              "cairn://host:port/project/run/step-100, or make the Writer or Reader with the run's URL")
    stem, at, term_text = name.rstrip("/").rpartition("@")
    term = int(term_text) if latest and at and term_text.isdecimal() and term_text.isascii() else 0
    if term:
        name = stem
    step = LATEST if latest and name.rsplit("/", 1)[-1] == "latest" else parse_step(name)
    if step is not None and step > LATEST:
        raise InvalidError.of(f"the step in the checkpoint id {text!r} is too large")
    return CheckpointId(run_url, name, step, term)
