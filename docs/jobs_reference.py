# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the reference part of jobs.md from the roles' argument_specs: `python docs/jobs_reference.py`."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROLES = HERE.parent / "src/ansible_collections/forkless/core/roles"
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"


def prose(text: str) -> str:
    """Ansible's markup as Markdown's."""
    return re.sub(r"\b[CVOM]\(([^()]*)\)", r"`\1`", " ".join(text.split()))


def lines(thing: Any) -> list[str]:
    return [prose(part) for part in ([thing] if isinstance(thing, str) else thing)]


def reference() -> str:
    out = []
    for folder in sorted(ROLES.iterdir()):
        spec = yaml.safe_load((folder / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
        out += [f"### `{folder.name}`", "", f"{spec['short_description']}.", ""]
        out += ["\n".join(lines(spec["description"])), ""]
        out += ["| variable | type | default | what |", "| --- | --- | --- | --- |"]
        for name, option in spec["options"].items():
            default = (
                "**required**"
                if option.get("required")
                else f"`{option['default']!r}`"
                if "default" in option
                else "none"
            )
            kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
            what = " ".join(lines(option["description"]))
            if "choices" in option:
                what += " One of " + ", ".join(f"`{choice}`" for choice in option["choices"]) + "."
            out.append(f"| `{name}` | {kind} | {default.replace('|', '&#124;')} | {what} |")
        out.append("")
    return "\n".join(out)


def page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


if __name__ == "__main__":
    path = HERE / "jobs.md"
    path.write_text(page(path.read_text()))
    sys.stdout.write(f"{path} is up to date\n")
