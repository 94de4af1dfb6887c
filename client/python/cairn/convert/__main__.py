# SPDX-License-Identifier: Apache-2.0
"""``python -m cairn.convert``."""

import sys

from .command import script

sys.exit(script())
