# SPDX-License-Identifier: GPL-3.0-or-later
"""
The collection as Ansible's own tools see it: antsibull-changelog lint, ansible-lint (production profile), ansible-test
sanity, ansible-galaxy build. Too slow for every run of the tests; `make collection` runs it.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent.parent
TOOLS = pathlib.Path(os.environ.get("FORKLESS_COLLECTION_TOOLS") or HERE / ".cache" / "collection-tools")
PACKAGES = ["ansible-lint>=26", "ansible-core>=2.21,<2.22", "antsibull-changelog>=0.30"]

# ansible-test fetches this one file from the network; pip itself can put pip in place.
GET_PIP = """
import ensurepip, subprocess, sys
ensurepip.bootstrap()
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", *wanted]))
"""


def main() -> int:
    binaries = TOOLS / "venv" / "bin"
    if not (binaries / "ansible-lint").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(TOOLS / "venv")], check=True)
        subprocess.run([binaries / "python", "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    cache = TOOLS / "home" / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "get_pip_25_2.py").write_text(GET_PIP)
    with tempfile.TemporaryDirectory() as root:
        # A repository of its own, as ansible-test wants it.
        shutil.copytree(
            HERE / "src/ansible_collections",
            f"{root}/ansible_collections",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        core = f"{root}/ansible_collections/forkless/core"
        environ = {
            "HOME": str(TOOLS / "home"),
            "PATH": f"{binaries}:/usr/bin:/bin",
            "ANSIBLE_COLLECTIONS_PATH": root,
            "PYTHONPATH": str(HERE / "src"),
            "LC_ALL": "C.UTF-8",
        }
        subprocess.run(["git", "init", "-q", "."], cwd=core, env=environ, check=True)
        subprocess.run(["git", "add", "-A"], cwd=core, env=environ, check=True)
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        for command in (
            ["antsibull-changelog", "lint"],
            ["ansible-galaxy", "collection", "build", "--output-path", root],
            ["ansible-lint", "--offline", "--profile", "production", "--exclude", "changelogs"],
            ["ansible-test", "sanity", "--python", minor, "--color", "no"],
        ):
            print("==", *command, flush=True)
            environ.pop("PYTHONPATH" if command[0] == "ansible-test" else "", None)
            if subprocess.run(command, cwd=core, env=environ, check=False).returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
