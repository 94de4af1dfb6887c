#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts the ranks with Open MPI, which only launches them; they talk to each other as PyTorch has it. USR1 is passed on to
# the ranks, which then save and leave with status 75.
export MASTER_ADDR=${MASTER_ADDR:-$(hostname)} MASTER_PORT=${MASTER_PORT:-29400}
# shellcheck disable=SC2016 # each rank expands its own numbers
exec mpirun --np "${RANKS:-2}" -x MASTER_ADDR -x MASTER_PORT bash -c \
    'RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec python train.py'
