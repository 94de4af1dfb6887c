# SPDX-License-Identifier: Apache-2.0
"""What becomes of the folders that DCP's tests name: each is a run of its own."""

import hashlib
import os


def run_of(path):
    return os.environ["CAIRN_THEIRS_URL"] + hashlib.sha256(os.fspath(path).encode()).hexdigest()[:16]


def is_path(checkpoint_id):
    return "://" not in os.fspath(checkpoint_id)
