# SPDX-License-Identifier: GPL-3.0-or-later
"""The one way from `forkless jobs` to the hosts: the collection's own action, in a play, run in this process."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from typing import Any

import forkless

__all__ = ["Answer", "Reach", "ask"]

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Reach:
    """How to reach the hosts: what ansible-playbook would be given on its command line."""

    inventory: tuple[str, ...] = ()
    become: bool = False
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What one host said about one job; `trouble` is a sentence if it could not be asked."""

    host: str
    item: dict[str, str]
    result: dict[str, Any]
    trouble: str = ""


def ask(op: str, items: list[dict[str, str]], reach: Reach, **arguments: Any) -> list[Answer]:
    """
    Let the action do `op` for each item, on the host that the item names, all hosts side by side.

    An item has `host`, and whatever else the action takes; `arguments` are the same for all.
    """
    wanted: dict[str, list[dict[str, str]]] = {}
    for item in items:
        wanted.setdefault(item["host"], []).append(item)
    if not wanted:
        return []
    names = sorted({name for item in items for name in item})
    action = {"op": op, **arguments, **{name: f"{{{{ item.{name} | default('') }}}}" for name in names}}
    play = {
        "hosts": sorted(wanted) if all(_PLAIN.fullmatch(name) for name in wanted) else "all:localhost",
        "gather_facts": False,
        "tasks": [
            {
                "name": op,
                "forkless.core.async_job": action,
                "loop": "{{ forkless_wanted[inventory_hostname] | default([]) }}",
                "loop_control": {"label": "{{ item.job_name | default('') }}"},
            }
        ],
    }
    with tempfile.TemporaryDirectory(prefix="forkless-jobs-") as folder:
        path = os.path.join(folder, "jobs.yml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump([play], file)
        done = forkless.run(
            path,
            inventory=reach.inventory or None,
            extra_vars={"forkless_wanted": wanted},
            become=reach.become,
            args=reach.args,
            cwd=os.getcwd(),
        )
    return _collected(done, wanted)


def _collected(done: forkless.Result, wanted: dict[str, list[dict[str, str]]]) -> list[Answer]:
    said: dict[str, Any] = {}
    for event in done.events:
        if event.event in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable"):
            said[str(event.event_data.get("host"))] = event.event_data.get("res", {})
    answers = []
    for host, items in wanted.items():
        whole = said.get(host)
        results = whole.get("results") if whole else None
        for number, item in enumerate(items):
            if results and number < len(results):
                result = results[number]
                failed = result.get("failed") or result.get("unreachable")
                answers.append(Answer(host, item, result, str(result.get("msg", "it failed")) if failed else ""))
            else:
                answers.append(Answer(host, item, {}, _why_not(host, whole, done)))
    return answers


def _why_not(host: str, whole: dict[str, Any] | None, done: forkless.Result) -> str:
    if whole:
        return f"{host} could not be asked: {whole.get('msg', 'it gave no reason')}"
    if done.ok or done.hosts or not done.stdout.strip():  # it came to a recap, and this host is not in it
        return f"there is no host '{host}' in the inventory; name one that has it with -i."
    return f"{host} could not be asked: {done.stdout.strip().splitlines()[-1]}"
