#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts the ranks of one node with torchrun, and starts them again when they fail: at most four times, with a pause that
# doubles. TERM reaches the ranks, which then save and leave; this script's status is 143 if all that is durable.
exec cairn run --run "${CAIRN_RUN:?is not set}" --max-restarts 4 -- \
    torchrun --nproc-per-node "${RANKS:-2}" --rdzv-backend c10d --rdzv-endpoint "${MASTER_ADDR:-localhost}:${MASTER_PORT:-0}" train.py
