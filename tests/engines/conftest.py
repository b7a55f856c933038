# SPDX-License-Identifier: GPL-3.0-or-later
"""A small project in a temporary folder, run by the threads engine."""

from __future__ import annotations

import pathlib
import sys
import textwrap

import pytest

import forkless
from forkless.engines.threads import engine as threads_engine
from forkless.engines.threads.patches import table


class Project:
    """Files of a project, and its runs."""

    def __init__(self, folder: pathlib.Path, hosts: int = 6) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.write(
            "hosts.ini",
            f"h[1:{hosts}]\n[all:vars]\nansible_connection=local\nansible_python_interpreter={sys.executable}\n",
        )

    def write(self, name: str, text: str, mode: int = 0o644) -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(mode)
        return path

    def spec(self, tasks: str | None = None, *, name: str = "play.yml", head: str = "", **fields) -> dict:
        if tasks is not None:
            lead = textwrap.indent(textwrap.dedent(head).rstrip(), "  ") + "\n" if head else ""
            body = textwrap.indent(textwrap.dedent(tasks), "    ")
            self.write(name, f"- hosts: all\n  gather_facts: false\n{lead}  tasks:\n{body}\n")
        fields.setdefault("inventory", str(self.folder / "hosts.ini"))
        return {"playbook": str(self.folder / name), "cwd": str(self.folder), **fields}

    def run(self, tasks: str | None = None, **fields) -> forkless.Result:
        return forkless.run(engine="threads", **self.spec(tasks, **fields))

    def start(self, tasks: str | None = None, **fields) -> forkless.Run:
        return forkless.start(engine="threads", **self.spec(tasks, **fields))


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "project")


@pytest.fixture
def projects(tmp_path):
    return lambda name, **kw: Project(tmp_path / name, **kw)


@pytest.fixture
def without(monkeypatch):
    """Take a seam out, to see what it is good for."""

    def take_out(*sites: str) -> None:
        kept = tuple(seam for seam in table.SEAMS if seam.site not in sites)
        assert len(kept) < len(table.SEAMS), sites
        monkeypatch.setattr(table, "SEAMS", kept)

    return take_out


@pytest.fixture(autouse=True)
def no_run_is_active_afterwards():
    yield
    assert threads_engine._config_gate._active_runs == 0
    assert not threads_engine._config_gate._queue
