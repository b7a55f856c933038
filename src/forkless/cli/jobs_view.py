# SPDX-License-Identifier: GPL-3.0-or-later
"""How `forkless jobs` prints: tables, sentences, JSON."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from forkless.cli.terminal_text import as_json, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["cell", "pids_text", "print_json", "print_table", "sentence", "tell"]

_COLOURS = {"running": "36", "done": "32", "claimed": "36", "unreachable": "35", "successful": "32", "waiting": "36"}


def sentence(row: dict[str, Any]) -> str:
    more = [f"{name} {row[name]}" for name in ("rc", "signal") if row.get(name) is not None]
    more += [str(row[name]) for name in ("why",) if row.get(name)]
    what, after = f"{row['job_name']} on {row['host']}: ", f" ({'; '.join(more)})" if more else ""
    return printable(what) + _coloured(printable(str(row["state"]))) + printable(after)


def pids_text(pids: list[int]) -> str:
    return printable(", ".join(map(str, pids))) or "none"


def cell(value: object) -> str:
    return "-" if value in (None, "") else str(value)


def print_json(thing: object) -> None:
    print(as_json(thing, indent=2))


def print_table(head: list[str], rows: list[list[str]]) -> None:
    # A name may hold anything, and a table has one line per row.
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    state = head.index("STATE") if "STATE" in head else None
    for row in [head, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if row is not head and state is not None:
            cells[state] = _coloured(row[state]) + cells[state][len(row[state]) :]
        print("  ".join(cells).rstrip())


def _coloured(state: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("ANSIBLE_NOCOLOR"):
        return state
    return f"\x1b[{_COLOURS.get(state, '31')}m{state}\x1b[0m"


def tell(problems: Iterable[str]) -> int:
    """Write each of these sentences once; 1 if there was one."""
    told = list(dict.fromkeys(problems))
    for problem in told:
        sys.stderr.write(f"forkless jobs: {printable(str(problem))}\n")
    return 1 if told else 0
