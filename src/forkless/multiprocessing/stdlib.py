# SPDX-License-Identifier: GPL-3.0-or-later
"""The stdlib's modules typed as Any: a start method uses their private names, which typeshed does not have."""

from __future__ import annotations

from multiprocessing import context as _context
from multiprocessing import process as _process
from multiprocessing import util as _util
from typing import Any

__all__ = ["context", "process", "util"]

context: Any = _context
process: Any = _process
util: Any = _util
