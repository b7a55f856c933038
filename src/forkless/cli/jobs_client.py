# SPDX-License-Identifier: GPL-3.0-or-later
"""The one way from `forkless jobs` to the hosts: the collection's own action, in a play, run in this process."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import forkless
from forkless.core.events import item_failed

__all__ = ["HostAccess", "HostAnswer", "ask"]

# How many hosts are asked at the same time, unless Ansible's own default is enough.
_FORKS = 50
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class HostAccess:
    """How to reach the hosts: what ansible-playbook would be given on its command line."""

    inventory: tuple[str, ...] = ()
    become: bool = False
    args: tuple[str, ...] = ()
    # Handed to the run as values: they are in no argument list, no environment and no file.
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    vault_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class HostAnswer:
    """What one host said about one job; `trouble` is a sentence if it could not be asked."""

    host: str
    item: dict[str, str]
    result: dict[str, Any]
    trouble: str = ""


@dataclass(frozen=True)
class _Data:
    """
    What a store or the command line said: names, paths, metadata.

    Ansible evaluates `{{ ... }}` in every text of a playbook and of extra vars, and anybody who can write to a store can name a job
    so. Texts in here are written with the tag `!unsafe`, which every ansible-core takes literally.
    """

    value: object


def _yaml(value: object, tag: str = "") -> str:
    """YAML in one line. Every character beyond ASCII is escaped in a way that no YAML reader refuses."""
    if isinstance(value, _Data):
        return _yaml(value.value, "!unsafe ")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_yaml(name)}: {_yaml(inner, tag)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_yaml(inner, tag) for inner in value) + "]"
    if isinstance(value, str):
        plain = "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return f'{tag}"{plain}"'
    return json.dumps(value)


def ask(
    op: str,
    items: list[dict[str, str]],
    access: HostAccess,
    *,
    check: bool = False,
    timeout: float | None = None,
    **arguments: object,
) -> list[HostAnswer]:
    """
    Let the action do `op` for each item, on the host that the item names, all hosts side by side.

    An item has `host`, and whatever else the action takes; with `delegate_to`, the host's task is delegated there.
    `arguments` are the same for all. With `check` nothing is changed. After `timeout` seconds, hosts that have not answered count as unreachable.
    """
    wanted: dict[str, list[dict[str, str]]] = {}
    for item in items:
        wanted.setdefault(item["host"], []).append(item)
    if not wanted:
        return []
    names = sorted({name for item in items for name in item} - {"delegate_to"})
    action: dict[str, object] = {"op": op, **{name: _Data(value) for name, value in arguments.items()}}
    play = {
        "hosts": sorted(wanted) if all(_PLAIN.fullmatch(name) for name in wanted) else "all:localhost",
        "gather_facts": False,
        "vars": {"forkless_wanted": _Data(wanted)},
        "tasks": [
            {
                "name": op,
                "forkless.core.async_job": {
                    **action,
                    **{name: f"{{{{ item.{name} | default('') }}}}" for name in names},
                },
                "loop": "{{ forkless_wanted[inventory_hostname] | default([]) }}",
                **(
                    {"delegate_to": "{{ item.delegate_to or omit }}"}
                    if any(i.get("delegate_to") for i in items)
                    else {}
                ),
                "check_mode": check,
                "loop_control": {"label": "{{ item.job_name | default('') }}"},
            }
        ],
    }
    with tempfile.TemporaryDirectory(prefix="forkless-jobs-") as folder:
        path = os.path.join(folder, "jobs.yml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_yaml([play]))
        done = forkless.run(
            path,
            inventory=access.inventory or None,
            become=access.become,
            args=access.args,
            passwords=access.passwords,
            vault_password=access.vault_password,
            forks=min(len(wanted), _FORKS) if len(wanted) > 1 else None,
            timeout=timeout,
            cwd=os.getcwd(),
        )
    return _collected(done, wanted, timeout)


def _collected(
    done: forkless.Result, wanted: dict[str, list[dict[str, str]]], timeout: float | None = None
) -> list[HostAnswer]:
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
                trouble = str(result.get("msg", "it failed")) if item_failed(result) else ""
                answers.append(HostAnswer(host, item, result, trouble))
            elif whole is None and done.status is forkless.Status.TIMEOUT:
                why = f"{host} did not answer in {timeout:.0f} s."
                answers.append(HostAnswer(host, item, {"unreachable": True}, why))
            else:
                answers.append(HostAnswer(host, item, whole or {}, _why_not(host, whole, done)))
    return answers


def _why_not(host: str, whole: dict[str, object] | None, done: forkless.Result) -> str:
    if whole:
        return f"{host} could not be asked: {whole.get('msg', 'it gave no reason')}"
    if done.ok or done.hosts or not done.stdout.strip():  # the play ended with a recap, and this host is not in it
        # Ansible only warns of a source that it cannot read, in lines as wide as the terminal.
        unparsed = re.findall(r"Unable to parse (.+?) as an inventory source", " ".join(done.stdout.split()))
        if unparsed:
            return f"there is no host '{host}' in the inventory: Ansible could not parse {', '.join(unparsed)}."
        return f"there is no host '{host}' in the inventory; name one that has it with -i."
    return f"{host} could not be asked: {done.stdout.strip().splitlines()[-1]}"
