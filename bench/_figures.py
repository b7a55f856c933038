# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures that are compared with nothing: a line when one is measured, and a table of them in a page of the docs."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from bench import _results

if TYPE_CHECKING:
    import pathlib

# Where a table is put that the page does not have yet.
_BEFORE = "## Where the limit is"


class Figures:
    """The figures of one bench, in the order in which they were measured."""

    def __init__(self, name: str, title: str) -> None:
        self._begin, self._end = f"<!-- {name}: made by python -m bench.{name} --page -->", f"<!-- end of {name} -->"
        self._title = title
        self._rows: list[tuple[str, str]] = []
        self._load = os.getloadavg()[0]
        print(f"load average {self._load:.1f}, {os.cpu_count()} CPUs", flush=True)

    def add(self, what: str, figure: str) -> None:
        self._rows.append((what, figure))
        print(f"{what}: {figure}", flush=True)

    def publish(self, page: pathlib.Path) -> None:
        """Put the table into the page: in the place of an older one, or before the last section."""
        made = _results.circumstances(1)
        about = (
            f"{os.cpu_count()} cores, load average {self._load:.1f} before, Python {platform.python_version()}, "
            f"ansible-core {made['ansible_core']}:"
        )
        rows = ["| what | figure |", "| --- | --- |", *(f"| {what} | {figure} |" for what, figure in self._rows)]
        table = "\n".join([self._begin, "", about, "", *rows, "", self._end])
        text = page.read_text()
        if self._begin in text:
            head, _, rest = text.partition(self._begin)
            text = head + table + rest.partition(self._end)[2]
        else:
            head, found, rest = text.partition(_BEFORE)
            text = f"{head.rstrip()}\n\n## {self._title}\n\n{table}\n\n{found}{rest}"
        page.write_text(text)
