# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the parts of README.md that are made from facts: `python docs/_make/tables.py [WHEEL]`. A test says when they are out of date."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import pathlib
import re
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"


def matrix() -> dict[str, Any]:
    """PYTHONS, CORES, PAIRS and FEW of noxfile.py, read without nox."""
    names = {"PYTHONS", "CORES", "PAIRS", "FEW"}
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names]
    found: dict[str, Any] = {}
    exec(compile(tree, "noxfile.py", "exec"), found)  # noqa: S102  # four constants of our own file
    return found


def compatibility() -> str:
    """Which pair of Python and ansible-core is tested by which command."""
    told = matrix()
    lines = ["| | " + " | ".join(f"ansible-core {core}" for core in told["CORES"]) + " |"]
    lines.append("| --- |" + " --- |" * len(told["CORES"]))
    for python in told["PYTHONS"]:
        cells = []
        for core in told["CORES"]:
            pair = (python, core)
            few = "`make test`, `make matrix`" if pair in told["FEW"] else "`make matrix`"
            cells.append(few if pair in told["PAIRS"] else "no such pair")
        lines.append(f"| Python {python} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def packages(name: str = "forkless", seen: set[str] | None = None) -> set[str]:
    """All that `pip install forkless` brings, without extras, by the metadata of what is installed here."""
    seen = set() if seen is None else seen
    for line in importlib.metadata.requires(name) or ():
        wanted, _, condition = line.partition(";")
        found = re.match(r"[\w.-]+", wanted)
        if found is None or "extra" in condition or "python_version" in condition:
            continue
        other = found[0].lower().replace("_", "-")
        try:
            importlib.metadata.version(other)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        if other not in seen:
            seen.add(other)
            packages(other, seen)
    return seen


def size(wheel: str) -> str:
    """In tenths of a megabyte, rounded up."""
    tenths = -(-os.path.getsize(wheel) // 100_000)
    return f"{tenths / 10:.1f} MB"


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
        f"The wheel is smaller than {size(wheel)}. It has {len(direct)} direct "
        f"dependenc{'y' if len(direct) == 1 else 'ies'}; with what they need themselves, `pip install forkless` brings {len(names)} packages: {', '.join(names)}."
    )


def main() -> None:
    text = put(README.read_text(), "compatibility", compatibility())
    if len(sys.argv) > 1:
        text = put(text, "size", installed(sys.argv[1]))
    README.write_text(text)


if __name__ == "__main__":
    main()
