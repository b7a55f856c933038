# SPDX-License-Identifier: GPL-3.0-or-later
"""
Checks the collection with Ansible's own tools: antsibull-changelog lint, ansible-lint (production profile), and on every
ansible-core ansible-galaxy build and ansible-test sanity. `make collection` runs it; it is too slow for `make test`.

    python tests/check_collection.py [2.18 ...]    only these minors of ansible-core
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping

HERE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))

import noxfile  # noqa: E402  # it finds the Pythons of this machine

from forkless.core import versions  # noqa: E402

TOOLS = pathlib.Path(os.environ.get("FORKLESS_COLLECTION_TOOLS") or HERE / ".cache" / "collection-tools")
CORES = versions.KNOWN
LINTERS = ["ansible-lint>=26", "antsibull-changelog>=0.30"]

# Replaces get-pip.py, the only file that ansible-test would download. ensurepip removes pip's settings from the environment
# and disables its configuration file, so the script restores the environment: otherwise pip fails behind a proxy.
GET_PIP = """
import ensurepip, os, subprocess, sys
before = dict(os.environ)
ensurepip.bootstrap()
os.environ.clear()
os.environ.update(before)
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", *wanted]))
"""
# The version of pip differs between the minors of ansible-core.
PIPS = ("24_2", "25_2")
BUILD = ("ansible-galaxy", "collection", "build", "--force", "--output-path")
SANITY = ("ansible-test", "sanity", "--color", "no", "--python")
LINT = ("ansible-lint", "--offline", "--profile", "production", "--exclude", "changelogs")


def python_for(core: str) -> tuple[str, str]:
    """This Python if that ansible-core supports it, otherwise a newer one of this machine; its path and version."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    fitting = [python for python, minor in versions.PAIRS if minor == core]
    for version in [ours] * (ours in fitting) + fitting[::-1]:
        path = next((one.path for one in noxfile.interpreters(version) if not one.prefix), None)
        if path is not None:
            return path, version
    raise SystemExit(
        f"ansible-core {core} wants one of the Pythons {', '.join(fitting)}, and none of them is on this machine"
    )


def tools(core: str) -> pathlib.Path:
    """The folder with the programs of one ansible-core. That of the newest also has the linters, which serve all."""
    binaries = TOOLS / core / "bin"
    wanted = [f"ansible-core~={core}.0", *(LINTERS if core == CORES[-1] else [])]
    ready = TOOLS / core / "ready"
    if not (ready.exists() and ready.read_text() == repr(wanted)):
        subprocess.run([python_for(core)[0], "-m", "venv", "--clear", str(TOOLS / core)], check=True)
        subprocess.run([binaries / "python", "-m", "pip", "install", "--quiet", *wanted], check=True)
        ready.write_text(repr(wanted))
    return binaries


def pip_settings(environ: Mapping[str, str]) -> str:
    """
    pip's settings from the environment, as a configuration file: ansible-test passes no variables on to the pip that it
    calls. Behind a proxy these settings name the certificates, for pip or for all programs.
    """
    named = [environ[name] for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE") if environ.get(name)]
    settings = {"cert": named[0]} if named else {}
    for name, value in sorted(environ.items()):
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE" and value:
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return "[global]\n" + "".join(f"{name} = {value.replace('%', '%%')}\n" for name, value in settings.items())


def check(core: str, root: str) -> list[str]:
    """Run all checks with one ansible-core; a description of each check that failed."""
    binaries, home = tools(core), TOOLS / f"home-{core}"
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    (home / ".config" / "pip").mkdir(parents=True, exist_ok=True)
    (home / ".config" / "pip" / "pip.conf").write_text(pip_settings(os.environ))
    for pip in PIPS:
        (cache / f"get_pip_{pip}.py").write_text(GET_PIP)
    folder = f"{root}/ansible_collections/forkless/core"
    environ = {"HOME": str(home), "PATH": f"{binaries}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    # ansible-lint needs this path to find the collection. ansible-test sets its own paths, and fails with others.
    found = environ | {"ANSIBLE_COLLECTIONS_PATH": root, "PYTHONPATH": str(HERE / "src")}
    steps: list[tuple[tuple[str, ...], dict[str, str]]] = [
        ((*BUILD, root), found),
        ((*SANITY, python_for(core)[1]), environ),
    ]
    if core == CORES[-1]:
        steps = [(("antsibull-changelog", "lint"), found), (LINT, found), *steps]
    failed = []
    for command, variables in steps:
        print(f"== ansible-core {core}:", *command, flush=True)
        if subprocess.run(command, cwd=folder, env=variables, check=False).returncode:
            failed.append(f"{command[0]} {command[1]} on ansible-core {core}")
    return failed


def main(argv: list[str]) -> int:
    with tempfile.TemporaryDirectory() as root:
        # ansible-test requires a git repository.
        shutil.copytree(
            HERE / "src/ansible_collections",
            f"{root}/ansible_collections",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        folder = f"{root}/ansible_collections/forkless/core"
        subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
        subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
        failed = [one for core in argv or CORES for one in check(core, root)]
    for one in failed:
        print(f"FAILED: {one}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
