# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection as a thing of its own: it builds, and what is written about it is true."""

from __future__ import annotations

import ast
import pathlib
import runpy
import subprocess
import tarfile

import pytest
import yaml

from jobs_controller import BIN, SOURCE

CORE = SOURCE / "ansible_collections/forkless/core"
ROLES = sorted(path.name for path in (CORE / "roles").iterdir())
PYTHON = sorted(CORE.rglob("*.py"))


def read(path):
    return yaml.safe_load((CORE / path).read_text())


def options(role):
    return read(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]


def test_all_roles_are_there():
    assert ROLES == [f"async_job_{name}" for name in ("cleanup", "kill", "list", "load", "output", "save", "status")]


@pytest.mark.parametrize("role", ROLES)
def test_what_the_specs_call_a_default_is_set(role):
    spec = {name: option["default"] for name, option in options(role).items() if "default" in option}
    assert read(f"roles/{role}/defaults/main.yml") == spec


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_bears_the_role_s_name(role):
    assert all(name.startswith(f"{role}_") for name in options(role))


def test_the_inputs_that_others_rely_on_are_there():
    save = {
        f"async_job_save_{n}"
        for n in ("job_name", "ansible_job_id", "host", "metadata", "playbook_name", "backend", "state_dir")
    }
    load = {f"async_job_load_{n}" for n in ("job_name", "host_filter", "playbook_name", "backend", "state_dir")}
    assert save <= set(options("async_job_save"))
    assert load <= set(options("async_job_load"))
    assert {n for n, o in options("async_job_save").items() if o.get("required")} == {
        "async_job_save_job_name", "async_job_save_ansible_job_id",
    }  # fmt: skip
    assert options("async_job_load")["async_job_load_state_dir"]["default"] == ".ansible_async_state"


def test_the_action_takes_what_is_written_about_it_and_every_role_passes_only_that():
    documented = yaml.safe_load(runpy.run_path(str(CORE / "plugins/modules/async_job.py"))["DOCUMENTATION"])["options"]
    passed = {}
    for role in ROLES:
        for task in read(f"roles/{role}/tasks/main.yml"):
            passed.setdefault(role, set()).update(set(task.get("forkless.core.async_job", {})))
    assert all(names <= set(documented) for names in passed.values()), passed
    assert set().union(*passed.values()) == set(documented)


def test_the_reference_in_the_docs_is_what_the_specs_say():
    docs = pathlib.Path(__file__).resolve().parents[2] / "docs"
    page = (docs / "jobs.md").read_text()
    assert runpy.run_path(str(docs / "jobs_reference.py"))["page"](page) == page, "run python docs/jobs_reference.py"


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_what_runs_on_hosts_imports_only_what_is_there(path):
    allowed = ("ansible.", "ansible_collections.forkless.core.", "forkless")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("forkless"):
            assert "action" in path.parts or "connection" in path.parts, (
                f"{path} runs on hosts, where there is no forkless"
            )
            assert allowed


@pytest.mark.spawns
def test_it_builds_and_has_everything_in_it(tmp_path):
    done = subprocess.run(
        [BIN / "ansible-galaxy", "collection", "build", str(CORE), "--output-path", str(tmp_path)],
        capture_output=True, text=True, check=False, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "forkless-core-0.1.0.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"MANIFEST.json", "README.md", "meta/runtime.yml", "playbooks/long_running_flow.yml"} <= names
    assert {f"roles/{role}/tasks/main.yml" for role in ROLES} <= names
    assert not [name for name in names if "__pycache__" in name]
