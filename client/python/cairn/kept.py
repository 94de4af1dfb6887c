# SPDX-License-Identifier: Apache-2.0
"""The tag of checkpoints that a framework still wants. An adapter takes it from a checkpoint after the successor is durable."""

from __future__ import annotations

import logging
from typing import Any, Callable, Union

from .errors import CairnError, NotFoundError

log = logging.getLogger("cairn")

KEPT = "kept"


def let_go(annotate: Callable[..., Any], step: Union[int, str], **version: Any) -> None:
    """Takes the tag from a checkpoint. If that fails the tag stays, which keeps more than is wanted, and is logged.

    Args:
        annotate: The method ``annotate`` of a Client or Checkpointer.
        step: What it takes for the step.
        **version: What else it takes to find the checkpoint.
    """
    try:
        annotate(step, remove_tags=[KEPT], **version)
    except NotFoundError:
        pass  # it is gone already
    except CairnError as error:
        log.warning("step %s keeps the tag %r, though the framework no longer wants it: %s", step, KEPT, error)
