# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task changed, as text: the `diff` of a result in the forms that modules give it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping

__all__ = ["of_result", "text_of"]

# The longest side that is compared here: difflib takes the square of it in the worst case.
_MOST_LINES = 5_000
_MOST_TEXT = 50_000


def of_result(data: Mapping[str, object]) -> str:
    """The diffs of an event `runner_on_file_diff`: of the task, or of each item of its loop."""
    res = data.get("res")
    results = res.get("results") if isinstance(res, Mapping) else None
    items = [one.get("diff") for one in results if isinstance(one, Mapping)] if isinstance(results, list) else []
    return text_of(items or data.get("diff"))


def text_of(diff: object) -> str:
    """A unified diff; "" if there is none, or none that says anything."""
    if isinstance(diff, list):
        return "\n".join(text for one in diff if (text := text_of(one)))
    if not isinstance(diff, Mapping):
        return ""
    if diff.get("prepared"):
        return _short(str(diff["prepared"]).rstrip("\n"))
    if "before" not in diff and "after" not in diff:
        for reason in ("src_binary", "dst_binary", "src_larger", "dst_larger"):
            if reason in diff:
                return (
                    "the file is binary"
                    if reason.endswith("binary")
                    else f"the file is larger than {diff[reason]} bytes"
                )
        return ""
    before, after = _lines(diff.get("before")), _lines(diff.get("after"))
    if before == after:
        return ""
    names = str(diff.get("before_header") or "before"), str(diff.get("after_header") or "after")
    if max(len(before), len(after)) > _MOST_LINES:
        return f"--- {names[0]}\n+++ {names[1]}\n{len(before)} lines became {len(after)}; too long to compare here"
    return _short("\n".join(difflib.unified_diff(before, after, *names, lineterm="")))


def _lines(side: object) -> list[str]:
    if side is None:
        return []
    return (side if isinstance(side, str) else json.dumps(side, indent=2, sort_keys=True, default=str)).splitlines()


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "\n... the events have all of it"
