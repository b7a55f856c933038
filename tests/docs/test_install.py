# SPDX-License-Identifier: GPL-3.0-or-later
"""The install story: wheel and sdist are built, put into empty environments by pip, pipx and uvx, and used from an empty folder."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from docs_blocks import ROOT

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600), pytest.mark.xdist_group("install")]

SITE = """
- name: From an empty folder
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Say
      ansible.builtin.debug:
        msg: it runs
    - name: The collection is there
      ansible.builtin.include_role:
        name: forkless.core.async_job_load
      vars:
        async_job_load_job_name: nothing
"""


def env_for(tmp_path, **more):
    """Nothing of the source tree, nothing of the tests' own environment."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANSIBLE_", "PYTHON", "VIRTUAL_ENV", "UV_PROJECT"))
    }
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    # Downloads are shared with the builder's own: what is tested is what is installed, not the network.
    cache = os.environ.get("UV_CACHE_DIR") or os.path.expanduser("~/.cache/uv")
    return {
        **kept,
        "HOME": str(home),
        "UV_CACHE_DIR": cache,
        "UV_LINK_MODE": "copy",
        # Python compiles what it imports; pip would compile all of ansible-core, for each of these environments.
        "PIP_NO_COMPILE": "1",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
        **more,
    }


def program(name):
    found = shutil.which(name, path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    if found is None:
        pytest.skip(f"{name} is not installed; pip install 'forkless[dev]'")
    return found


def call(*words, cwd, env):
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from it: the way that a distribution goes."""
    folder = tmp_path_factory.mktemp("dist")
    call(
        program("uv"),
        "build",
        "--quiet",
        "--python",
        sys.executable,
        "--out-dir",
        str(folder),
        str(ROOT),
        cwd=folder,
        env=env_for(folder),
    )
    (wheel,) = glob.glob(f"{folder}/*.whl")
    (sdist,) = glob.glob(f"{folder}/*.tar.gz")
    return wheel, sdist


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_works_in_an_empty_environment(kind, built, tmp_path):
    """pip for the wheel, as most people do; uv for the sdist."""
    env = env_for(tmp_path)
    venv = tmp_path / "venv"
    uv = program("uv")
    if kind == "wheel":
        # The pip of this environment installs into the other: a pip of its own would cost as much as all the rest.
        call(sys.executable, "-m", "venv", "--without-pip", str(venv), cwd=tmp_path, env=env)
        call(
            sys.executable,
            "-m",
            "pip",
            "--python",
            f"{venv}/bin/python",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            built[0],
            cwd=tmp_path,
            env=env,
        )
    else:
        call(uv, "venv", "--quiet", "--python", sys.executable, str(venv), cwd=tmp_path, env=env)
        call(uv, "pip", "install", "--quiet", "--python", f"{venv}/bin/python", built[1], cwd=tmp_path, env=env)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "forkless 0.1.0" in call(f"{venv}/bin/forkless", "--version", cwd=empty, env=env)
    (empty / "site.yml").write_text(SITE)
    told = call(f"{venv}/bin/forkless", "playbook", "site.yml", cwd=empty, env=env)
    assert '"msg": "it runs"' in told
    assert "failed=0" in told
    # Stock Ansible finds the collection as well, its plugins with their documentation.
    assert "forkless.core.ssh" in call(
        f"{venv}/bin/ansible-doc", "-t", "connection", "forkless.core.ssh", cwd=empty, env=env
    )
    names = call(
        uv, "pip", "list", "--quiet", "--format", "json", "--python", f"{venv}/bin/python", cwd=tmp_path, env=env
    )
    check_statement(kind, built, names)


def check_statement(kind, built, names):
    """The README says how large it is and how many packages come with it."""
    import json

    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs/_make/tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    stated = tables.part((ROOT / "README.md").read_text(), "size")
    assert f"smaller than {tables.size(built[0])}." in stated, "run: python docs/_make/tables.py WHEEL"
    came = {one["name"].lower().replace("_", "-") for one in json.loads(names)} - {"forkless", "pip", "setuptools"}
    listed = set(stated.rpartition(": ")[2].rstrip(".").split(", "))
    # Older Pythons need one or two more of them.
    assert came - {"typing-extensions"} == listed - {"typing-extensions"}, "run: python docs/_make/tables.py WHEEL"
    assert kind in ("wheel", "sdist")


def test_pipx_installs_the_command(built, tmp_path):
    env = env_for(
        tmp_path,
        PIPX_HOME=str(tmp_path / "pipx"),
        PIPX_BIN_DIR=str(tmp_path / "bin"),
        PIPX_MAN_DIR=str(tmp_path / "man"),
    )
    call(program("pipx"), "install", "--quiet", "--python", sys.executable, built[0], cwd=tmp_path, env=env)
    (tmp_path / "site.yml").write_text(SITE)
    told = call(str(tmp_path / "bin/forkless"), "playbook", "site.yml", cwd=tmp_path, env=env)
    assert "failed=0" in told


def test_uvx_runs_it_without_installing(built, tmp_path):
    env = env_for(tmp_path)
    told = call(
        program("uv"),
        "tool",
        "run",
        "--quiet",
        "--python",
        sys.executable,
        "--from",
        built[0],
        "forkless",
        "--version",
        cwd=tmp_path,
        env=env,
    )
    assert "ansible-core" in told


def test_the_wheel_has_what_it_needs_and_nothing_else(built):
    names = zipfile.ZipFile(built[0]).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"forkless", "ansible_collections", "forkless-0.1.0.dist-info"}
    assert "forkless/py.typed" in names
    assert "forkless/patching/fingerprints.json" in names
    assert "ansible_collections/forkless/core/roles/async_job_load/meta/argument_specs.yml" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]
