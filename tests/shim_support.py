# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual environments and a shim for tests: real ones, that share the packages of the environment in which the tests run."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig
import venv

import ansible

from forkless.cli.shim import files

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"
PACKAGES = pathlib.Path(ansible.__file__).parent.parent
MODULES = {"ansible-playbook": "playbook", "ansible": "adhoc", "ansible-console": "console", "ansible-pull": "pull"}

# Which program a play runs in: workers of forkless are threads of the shim's process, those of stock were forked by stock's command.
PROGRAM = "{{ lookup('ansible.builtin.file', '/proc/self/cmdline') | regex_search('[^\\\\x00]*/ansible[^\\\\x00]*') }}"
PLAY = f"""\
- hosts: all
  gather_facts: false
  tasks:
    - name: Which program
      ansible.builtin.debug:
        msg: "program={PROGRAM}"
"""


def environment(folder: pathlib.Path, *, forkless: bool = True, version: str = "") -> pathlib.Path:
    """A virtual environment with ansible-core, and with forkless or without. Returns its bin."""
    venv.EnvBuilder(symlinks=True).create(folder)
    site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "shared.pth").write_text("\n".join([str(PACKAGES), *([str(SOURCE)] if forkless else [])]) + "\n")
    if version:  # found before the real one
        (site / f"ansible_core-{version}.dist-info").mkdir()
        (site / f"ansible_core-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: ansible-core\nVersion: {version}\n"
        )
    for command, module in MODULES.items():
        script(
            folder / "bin" / command,
            f"#!{folder}/bin/python\nimport sys\nfrom ansible.cli.{module} import main\nsys.exit(main())\n",
        )
    return folder / "bin"


def script(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def shim(folder: pathlib.Path) -> pathlib.Path:
    files.install(str(folder))
    return folder


def environ(tmp_path: pathlib.Path, *path: pathlib.Path | str, **more: str) -> dict[str, str]:
    """Of somebody whose home is empty, with these folders on PATH before the system's."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    return {
        "HOME": str(home), "PATH": ":".join([*map(str, path), "/usr/sbin", "/usr/bin", "/sbin", "/bin"]), "LC_ALL": "C.UTF-8",
        "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0", **more,
    }  # fmt: skip


def call(words: list[str], env: dict[str, str], cwd: pathlib.Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command, found on the PATH of `env`."""
    return subprocess.run(
        ["/usr/bin/env", *words],
        env=env,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def seen(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


def forkless(*words: str) -> list[str]:
    return [sys.executable, "-m", "forkless", *words]


def with_source(env: dict[str, str]) -> dict[str, str]:
    """For `forkless` itself, where only the source tree is on the path of the tests' Python."""
    return {**env, "PYTHONPATH": os.pathsep.join([str(SOURCE)])}
