# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m forkless"""

from __future__ import annotations

from forkless.cli import command

if __name__ == "__main__":
    command()
