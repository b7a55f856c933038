# SPDX-License-Identifier: GPL-3.0-or-later
"""The parser of commands with many flags: a mistake is told in one sentence, and not below a page of flags."""

from __future__ import annotations

import argparse
from typing import NoReturn

__all__ = ["CommandParser"]


class CommandParser(argparse.ArgumentParser):
    """As its base class, but an error is one line. Its subcommands are of this class as well."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` tells more\n")
