# SPDX-License-Identifier: GPL-3.0-or-later
"""The stdlib's modules without their types: their private names are what a start method works with, and no stub has them."""

from __future__ import annotations

from multiprocessing import context as _context
from multiprocessing import process as _process
from multiprocessing import util as _util
from typing import Any

__all__ = ["context", "process", "util"]

context: Any = _context
process: Any = _process
util: Any = _util
