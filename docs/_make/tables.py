# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the parts of README.md that are made from facts: `python docs/_make/tables.py [WHEEL]`. A test says when they are out of date."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import sys

from packaging.requirements import Requirement

from forkless.core import versions

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"


def compatibility() -> str:
    """Which pair of Python and ansible-core is tested by which command."""
    lines = ["| | " + " | ".join(f"ansible-core {core}" for core in versions.KNOWN) + " |"]
    lines.append("| --- |" + " --- |" * len(versions.KNOWN))
    for python in versions.PYTHONS:
        cells = []
        for core in versions.KNOWN:
            pair = (python, core)
            few = "`make test`, `make matrix`" if pair in versions.SHORT_MATRIX else "`make matrix`"
            cells.append(few if pair in versions.PAIRS else "no such pair")
        lines.append(f"| Python {python} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def packages(name: str = "forkless", seen: set[str] | None = None) -> set[str]:
    """All that `pip install forkless` brings, without extras, by the metadata of what is installed here."""
    seen = set() if seen is None else seen
    for line in importlib.metadata.requires(name) or ():
        wanted = Requirement(line)
        other = wanted.name.lower().replace("_", "-")
        if (wanted.marker is None or wanted.marker.evaluate({"extra": ""})) and other not in seen:
            seen.add(other)
            packages(other, seen)
    return seen


def size(wheel: str) -> str:
    """In halves of a megabyte, rounded up: a statement that need not change with every line of code."""
    halves = -(-os.path.getsize(wheel) // 500_000)
    return f"{halves / 2:.1f} MB"


def part(text: str, name: str) -> str:
    found = re.search(f"<!-- {name}: begin -->\n(.*?)\n<!-- {name}: end -->", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"README.md has no part '{name}'")
    return found[1].strip()


def put(text: str, name: str, new: str) -> str:
    part(text, name)
    pattern = f"(<!-- {name}: begin -->\n).*?(\n<!-- {name}: end -->)"
    return re.sub(pattern, lambda match: f"{match[1]}\n{new}\n{match[2]}", text, flags=re.DOTALL)


def installed(wheel: str) -> str:
    direct = [line for line in importlib.metadata.requires("forkless") or () if "extra" not in line]
    names = sorted(packages())
    return (
        f"The wheel is smaller than {size(wheel)}. Direct dependencies: {len(direct)}. With what they need themselves, "
        f"`pip install forkless` brings {len(names)} packages: {', '.join(names)}."
    )


def main() -> None:
    text = put(README.read_text(), "compatibility", compatibility())
    if len(sys.argv) > 1:
        text = put(text, "size", installed(sys.argv[1]))
    README.write_text(text)


if __name__ == "__main__":
    main()
