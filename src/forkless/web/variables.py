# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variables a playbook asks for: its `vars_prompt`, and the argument_specs of the roles that it names. And values for them, checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from forkless.queue import QueueRequestError

__all__ = ["Variable", "checked", "has_template", "load_yaml", "of_playbook"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_MOST_VARIABLES = 200
_MOST_BYTES = 1 << 20
_TEMPLATE = re.compile(r"\{[{%#]")


@dataclass(frozen=True, slots=True)
class Variable:
    """A field of the form. `secret` values are typed unseen, and have no default that is shown."""

    name: str
    label: str
    type: str
    required: bool
    secret: bool
    default: str
    choices: tuple[str, ...]
    source: str


class _Lenient(yaml.SafeLoader):
    """Ansible's own tags, such as !vault, stand for nothing here."""


_Lenient.add_multi_constructor("!", lambda *_: None)


def load_yaml(path: str) -> object:
    """Raises yaml.YAMLError, OSError or UnicodeDecodeError."""
    with open(path, encoding="utf-8") as file:
        return yaml.load(file.read(_MOST_BYTES), Loader=_Lenient)  # noqa: S506  # a SafeLoader


def of_playbook(root: str, playbook: str) -> list[Variable]:
    """In the order of the playbook, each name once. Files that cannot be read have no variables: the run will say so."""
    try:
        plays = load_yaml(os.path.join(root, playbook))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    found: dict[str, Variable] = {}
    for play in plays if isinstance(plays, list) else []:
        if isinstance(play, Mapping):
            for one in (*_prompts(play, playbook), *_of_roles(play, root, os.path.dirname(playbook))):
                found.setdefault(one.name, one)
    return list(found.values())[:_MOST_VARIABLES]


def _prompts(play: Mapping[str, object], playbook: str) -> Iterator[Variable]:
    asked = play.get("vars_prompt")
    for one in asked if isinstance(asked, list) else []:
        if isinstance(one, Mapping) and _IDENTIFIER.fullmatch(str(one.get("name", ""))):
            secret = one.get("private") is not False
            default = one.get("default")
            yield Variable(
                str(one["name"]), str(one.get("prompt") or one["name"]), "str", required=default is None, secret=secret,
                default="" if secret or default is None else str(default), choices=(), source=playbook,
            )  # fmt: skip


def _of_roles(play: Mapping[str, object], root: str, beside: str) -> Iterator[Variable]:
    roles = play.get("roles")
    for one in roles if isinstance(roles, list) else []:
        name = one if isinstance(one, str) else (one.get("role") or one.get("name")) if isinstance(one, Mapping) else ""
        given = one.get("vars") if isinstance(one, Mapping) else None
        fixed = {*_names(play.get("vars")), *_names(given), *_names(one)}
        if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]+", name):
            yield from (variable for variable in _of_role(root, beside, name) if variable.name not in fixed)


def _names(thing: object) -> set[str]:
    return {str(name) for name in thing} if isinstance(thing, Mapping) else set()


def _of_role(root: str, beside: str, role: str) -> Iterator[Variable]:
    for folder in dict.fromkeys((os.path.join(beside, "roles", role), os.path.join("roles", role))):
        for name in ("argument_specs.yml", "argument_specs.yaml", "main.yml"):
            path = os.path.join(root, folder, "meta", name)
            if not os.path.isfile(path) or not os.path.realpath(path).startswith(root + os.sep):
                continue
            try:
                whole = load_yaml(path)
            except (OSError, UnicodeDecodeError, yaml.YAMLError):
                continue
            specs = whole.get("argument_specs") if isinstance(whole, Mapping) else None
            main = specs.get("main") if isinstance(specs, Mapping) else None
            options = main.get("options") if isinstance(main, Mapping) else None
            if isinstance(options, Mapping):
                yield from _options(options, role)
                return


def _options(options: Mapping[str, object], role: str) -> Iterator[Variable]:
    for name, about in options.items():
        if not isinstance(about, Mapping) or not _IDENTIFIER.fullmatch(str(name)):
            continue
        described = about.get("description")
        label = " ".join(map(str, described)) if isinstance(described, list) else str(described or name)
        secret = bool(about.get("no_log"))
        default, choices = about.get("default"), about.get("choices")
        yield Variable(
            str(name), label[:500], str(about.get("type") or "str"), required=bool(about.get("required")), secret=secret,
            default="" if secret or default is None else _shown(default),
            choices=tuple(map(str, choices)) if isinstance(choices, list) else (), source=f"role {role}",
        )  # fmt: skip


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()


def checked(known: list[Variable], given: Mapping[str, str]) -> dict[str, object]:
    """The values with their types. Raises QueueRequestError with a sentence; a value is never in it."""
    by_name = {one.name: one for one in known}
    values: dict[str, object] = {}
    for name, text in given.items():
        if not _IDENTIFIER.fullmatch(name):
            raise QueueRequestError("a variable has a name of letters, digits and _, such as app_version")
        if "\0" in text:
            raise QueueRequestError(f"the value of {name} has a control character in it")
        about = by_name.get(name)
        if not text and (about is None or not about.required):
            continue
        values[name] = _value(about, name, text)
        if has_template(values[name]):
            raise QueueRequestError(f"the value of {name} has a template in it ({{{{, {{% or {{#); values are plain")
    for one in known:
        if one.required and values.get(one.name) in (None, ""):
            raise QueueRequestError(f"{one.name} needs a value ({one.source})")
    return values


def has_template(value: object) -> bool:
    """
    Whether Ansible would evaluate any part of a value. The right to start a run is not the right to choose what is evaluated, on the page's machine or elsewhere.
    """
    if isinstance(value, str):
        return _TEMPLATE.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_template(one) for pair in value.items() for one in pair)
    return isinstance(value, list) and any(has_template(one) for one in value)


def _value(about: Variable | None, name: str, text: str) -> object:
    kind = about.type if about is not None else "str"
    if about is not None and about.choices and text not in about.choices:
        raise QueueRequestError(f"{name} is one of {', '.join(about.choices)}")
    if kind in ("int", "float", "bool", "list", "dict"):
        try:
            # An alias can stand for a value without an end, or for a billion of them.
            aliased = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
            value = None if aliased else yaml.safe_load(text)
            json.dumps(value)  # a date or a set is none of the types
        except (yaml.YAMLError, ValueError, TypeError, RecursionError):
            value = None
        wanted = {"int": int, "float": (int, float), "bool": bool, "list": list, "dict": dict}[kind]
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):  # type: ignore[arg-type]  # types, one or several
            raise QueueRequestError(f"{name} is not of the type {kind}")
        return value
    return text
