# SPDX-License-Identifier: GPL-3.0-or-later
"""The reference: pages made from signatures, docstrings, the commands' own help, and the collection's documentation."""

from __future__ import annotations

import ast
import concurrent.futures
import dataclasses
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "src"))
COLLECTION = ROOT / "src/ansible_collections/forkless/core"
# The modules that are a door, in the order of the page.
PUBLIC_MODULES = (
    "forkless",
    "forkless.runner",
    "forkless.multiprocessing",
    "forkless.jobs",
    "forkless.queue",
    "forkless.ssh",
    "forkless.engines",
)


# -- Python


def signature(thing: Any) -> str:
    """As one would write it: annotations as they stand in the source, without quotes."""
    parts, star = [], False
    for name, one in inspect.signature(thing).parameters.items():
        if name in ("self", "cls"):
            continue
        text = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + name
        if one.kind is one.VAR_POSITIONAL:
            star = True
        elif one.kind is one.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        typed = one.annotation is not one.empty
        if typed:
            text += (
                f": {one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)}"
            )
        if one.default is not one.empty:
            text += f"{' = ' if typed else '='}{one.default!r}"
        parts.append(text)
    answer = inspect.signature(thing).return_annotation
    tail = "" if answer is inspect.Signature.empty else f" -> {answer}"
    line = f"({', '.join(parts)}){tail}"
    return line if len(line) < 90 else "(\n    " + ",\n    ".join(parts) + f",\n){tail}"


def said(thing: Any) -> str:
    """The docstring; a session at Python's prompt stays one, where Markdown would see a quotation."""
    text = (inspect.getdoc(thing) or "").replace("  # doctest: +SKIP", "")
    if dataclasses.is_dataclass(thing) and text.startswith(f"{getattr(thing, '__name__', '')}("):
        return ""  # made by Python: the fields, which follow as a table
    return re.sub(r"^>>> (?:.+\n?)+", lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text, flags=re.MULTILINE)


def fields(cls: type) -> Iterator[str]:
    """A dataclass' fields with their types, defaults, and what stands below them in the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)  # noqa: S101  # for the type checker
    yield from ("| field | type | default | |", "| --- | --- | --- | --- |")
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        field = cls.__dataclass_fields__[node.target.id]  # type: ignore[attr-defined]
        default = "**required**" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        if field.default_factory is not dataclasses.MISSING:
            default = f"`{field.default_factory()!r}`"
        note = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        kind = ast.unparse(node.annotation).replace("|", "&#124;")
        yield f"| `{node.target.id}` | <code>{kind}</code> | {default} | {' '.join(str(note).split())} |"
    yield ""


def members(cls: type, level: str) -> Iterator[str]:
    for name, thing in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(thing, property):
            yield from (f"{level} `.{name}`", "", said(thing) or "A property.", "")
        elif isinstance(thing, classmethod | staticmethod) or inspect.isfunction(thing):
            called = getattr(cls, name)
            prefix = "async " if inspect.iscoroutinefunction(called) else ""
            yield from (
                f"{level} `.{name}()`",
                "",
                f"```text\n{prefix}{name}{signature(called)}\n```",
                "",
                said(thing),
                "",
            )


def python() -> str:
    out = [
        "# Python",
        "",
        "Made from the code's own signatures and docstrings. Errors have [a page of their own](errors.md).",
        "",
    ]
    for door in PUBLIC_MODULES:
        module = importlib.import_module(door)
        out += [f"## `{door}`", "", said(module), ""]
        for name in module.__all__:
            thing = getattr(module, name)
            is_error = isinstance(thing, type) and issubclass(thing, BaseException)
            if is_error and thing.__module__ == "forkless.core.errors":
                continue
            out += [f"### `{door}.{name}`", ""]
            if is_error:
                parents = ", ".join(f"`{one.__name__}`" for one in thing.__bases__)
                out += [f"An error, and a {parents}. {said(thing)}", ""]
            elif not callable(thing):
                out += [f"The constant `{thing!r}`." if type(thing).__module__ == "builtins" else said(thing), ""]
            elif not isinstance(thing, type):
                prefix = "async " if inspect.iscoroutinefunction(thing) else ""
                out += [f"```text\n{prefix}{name}{signature(thing)}\n```", "", said(thing), ""]
            else:
                if name.islower():  # a class, but called as a function is
                    out += [f"```text\n{name}{signature(thing)}\n```", ""]
                out += [said(thing), ""]
                if dataclasses.is_dataclass(thing):
                    out += fields(thing)
                elif hasattr(thing, "__members__"):
                    out += [", ".join(f"`{one.value}`" for one in thing) + ".", ""]  # type: ignore[attr-defined]
                out += members(thing, "####")
    return "\n".join(out)


# -- errors


def errors() -> str:
    from forkless.core import errors as forkless_errors

    tree = textwrap.dedent(said(forkless_errors).partition("\n\n")[2].rpartition("\n\n")[0])
    out = [
        "# Errors",
        "",
        (
            "Every error that forkless raises is a `ForklessError`. Those on this page can be imported from `forkless`; [Python](python.md) has those of "
            "`forkless.queue` and `forkless.ssh`."
        ),
        "",
    ]
    out += [f"```text\n{tree}\n```", "", said(forkless_errors).rpartition("\n\n")[2], ""]
    for name in forkless_errors.__all__:
        cls = getattr(forkless_errors, name)
        parents = ", ".join(f"`{one.__name__}`" for one in cls.__bases__)
        out += [f"## `{name}`", "", f"Is a {parents}. {said(cls)}", ""]
        if "__init__" in vars(cls):
            names = [one for one in inspect.signature(cls).parameters if one != "self"]
            out += [f"Fields: {', '.join(f'`.{one}`' for one in names)}.", ""]
    return "\n".join(out)


# -- commands


def shown(*words: str) -> str:
    """What a command says of itself, at a terminal of 100 columns without colours."""
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-m", "forkless", *words, "--help"], env=env, capture_output=True, text=True, check=True
    )
    # The interpreter's path is the builder's own.
    return done.stdout.replace(os.path.expanduser("~"), "~").rstrip()


def commands() -> str:
    from forkless.cli import COMMANDS

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        top = dict(
            zip(
                [(), *((name,) for name in COMMANDS)],
                pool.map(lambda w: shown(*w), [(), *((n,) for n in COMMANDS)]),
                strict=True,
            )
        )
        below = [
            (*words, name)
            for words, text in top.items()
            if words and re.search(r"\bCOMMAND\b", text)
            for name in re.findall(r"^    ([a-z]+)(?: {2,}|$)", text, re.MULTILINE)
        ]
        texts = {**top, **dict(zip(below, pool.map(lambda w: shown(*w), below), strict=True))}
    out = ["# Commands", "", "What each command says with `--help`.", ""]
    for words in sorted(texts, key=lambda words: (list(COMMANDS).index(words[0]) if words else -1, len(words))):
        level = "##" if len(words) < 2 else "###"
        out += [f"{level} `{' '.join(['forkless', *words])}`", "", f"```text\n{texts[words]}\n```", ""]
    return "\n".join(out)


# -- environment


def environment() -> str:
    from forkless.core.environment import VARIABLES

    out = [
        "# Environment variables",
        "",
        "What forkless itself reads. All of Ansible's own settings work as they always do.",
        "",
    ]
    out += ["| variable | what it does |", "| --- | --- |"]
    out += [f"| `{name}` | {what} |" for name, what in VARIABLES.items()]
    return "\n".join(out) + "\n"


# -- the collection


def plain(text: str) -> str:
    """Ansible's markup as Markdown's."""
    text = re.sub(r"\b[CVOMPI]\(([^()]*)\)", r"`\1`", " ".join(str(text).split()))
    return text.replace("|", "&#124;")


def documentation(path: pathlib.Path) -> dict[str, Any]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DOCUMENTATION":
            found: dict[str, Any] = yaml.safe_load(ast.literal_eval(node.value))
            return found
    raise SystemExit(f"{path} has no DOCUMENTATION")


def several(thing: Any) -> list[str]:
    return [thing] if isinstance(thing, str) else list(thing)


def options(spec: dict[str, Any]) -> Iterator[str]:
    yield from (
        "| option | type | default | variables, settings, environment | what |",
        "| --- | --- | --- | --- | --- |",
    )
    for name, one in spec.get("options", {}).items():
        ways = [f"`{way['name']}`" for way in one.get("vars", [])]
        ways += [f"`[{way['section']}] {way['key']}`" for way in one.get("ini", [])]
        ways += [f"`${way['name']}`" for way in one.get("env", [])]
        default = "**required**" if one.get("required") else f"`{one['default']}`" if "default" in one else ""
        what = " ".join(plain(line) for line in several(one.get("description", [])))
        if "choices" in one:
            what += " One of " + ", ".join(f"`{choice}`" for choice in one["choices"]) + "."
        yield f"| `{name}` | {one.get('type', 'str')} | {default} | {', '.join(ways)} | {what} |"
    yield ""


def collection() -> str:
    galaxy = yaml.safe_load((COLLECTION / "galaxy.yml").read_text())
    out = [
        f"# The collection {galaxy['namespace']}.{galaxy['name']} {galaxy['version']}",
        "",
        plain(galaxy["description"]),
        "",
    ]
    out += ["It comes with the package: `pip install forkless` is all. Works on stock ansible-playbook as well.", ""]
    out += ["## Roles", "", "Their variables are listed in [Jobs that outlive the play](../jobs.md#reference).", ""]
    out += ["| role | |", "| --- | --- |"]
    for folder in sorted((COLLECTION / "roles").iterdir()):
        spec = yaml.safe_load((folder / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
        out.append(f"| [`{folder.name}`](../jobs.md#{folder.name}) | {plain(spec['short_description'])}. |")
    out.append("")
    for kind, folder in (("Connection", "connection"), ("Module", "modules")):
        for path in sorted((COLLECTION / "plugins" / folder).glob("*.py")):
            spec = documentation(path)
            out += [f"## {kind} `forkless.core.{path.stem}`", "", f"{plain(spec['short_description'])}.", ""]
            out += [*(plain(line) for line in several(spec["description"])), ""]
            out += options(spec)
    out += ["## Playbooks", "", "Run with `ansible-playbook forkless.core.NAME`:", ""]
    out += [f"- `{path.stem}`" for path in sorted((COLLECTION / "playbooks").glob("*.yml"))]
    return "\n".join(out) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "python": python,
    "commands": commands,
    "errors": errors,
    "environment": environment,
    "collection": collection,
}
