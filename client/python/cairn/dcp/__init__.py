# SPDX-License-Identifier: Apache-2.0
"""cairn.dcp: torch.distributed.checkpoint (DCP) that stores in Cairn.

    url = "cairn+unix:///run/cairn/cairnd.sock?run=project/run"     # or cairn://host:7421/project/run
    writer = cairn.dcp.Writer(url)
    dcp.save(state_dict, checkpoint_id="step-100", storage_writer=writer)
    dcp.load(state_dict, checkpoint_id="step-100", storage_reader=cairn.dcp.Reader(url))

Raw bytes and typed trees, no pickles; committed by the server when every rank's part is durable.
"""

from __future__ import annotations

from .asynchronous import async_save
from .items import PlanStaleError
from ..names import parse_id, split_url
from .reader import Reader
from .writer import Writer

__all__ = ["PlanStaleError", "Reader", "Writer", "async_save", "parse_id", "split_url"]
