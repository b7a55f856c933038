# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m forkless"""

from __future__ import annotations

import sys

from forkless.cli import main

if __name__ == "__main__":
    sys.exit(main())
