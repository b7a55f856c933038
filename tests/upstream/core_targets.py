# SPDX-License-Identifier: GPL-3.0-or-later
"""
ansible-core's own integration targets, with `ansible-playbook` swapped for `forkless playbook`.

    python tests/upstream/core_targets.py full|fast|quick [ansible-core minor, default: the installed one]

Nothing of them is stored here: they come with ansible-core's sdist. The yardstick that runs them lies beside the project, in ../shared/yardsticks/core.
`full` runs every target that the yardstick can run on this machine, but those that its lists name as failing on stock.

Some targets make a virtual environment that sees the packages of ours, but not what an editable install adds to sys.path. `full` and `fast` therefore
run in an environment of their own, into which this tree is installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
YARDSTICK = ROOT.parent / "shared" / "yardsticks" / "core"
CACHE = ROOT / ".cache" / "ansible-core"

# What some targets install with pip: they have no network.
WHEELS = (
    "passlib", "bcrypt", "tomli", "tomli-w", "pexpect", "jinja2", "pyyaml", "packaging", "resolvelib", "cryptography", "setuptools", "wheel",
)  # fmt: skip

# Of the quickest: they run with `make test`.
QUICK = (
    "args", "assert", "dataloader", "group_by", "include_when_parent_is_static", "json_cleanup", "lookup_dict",
    "lookup_vars", "loop_control", "register", "strategy_linear", "var_inheritance",
)  # fmt: skip
# These fail, with a reason each.
DIFFERENT_BY_DESIGN = {
    "ansible-doc": "counts all roles that can be found, and those of forkless.core lie beside us: stock fails in the same environment",
    "stacktrace_dump": "2.22: sends SIGUSR1 to the children of the command, which are workers on stock, and expects a dump of each. Here workers are "
    "threads, of which the command's own dump tells, and the one child is the `sleep` of a lookup",
}


def sdist(version: str) -> pathlib.Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"ansible_core-{version}.tar.gz"
    if not path.exists():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-binary",
                "ansible-core",
                "--no-deps",
                "--dest",
                str(CACHE),
                f"ansible-core=={version}",
            ],
            check=True,
        )
    return path


def wheelhouse() -> pathlib.Path:
    folder = CACHE.parent / f"wheels-{sys.version_info.major}.{sys.version_info.minor}"
    if not (folder / ".ready").exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *WHEELS],
            check=True,
        )
        (folder / ".ready").touch()
    return folder


def environment() -> pathlib.Path:
    """Where the environment of `full` and `fast` is, whether it exists yet or not."""
    core = importlib.metadata.version("ansible-core")
    return CACHE.parent / f"targets-{core}-{sys.version_info.major}.{sys.version_info.minor}"


def prepare(folder: pathlib.Path) -> pathlib.Path:
    """Install the ansible-core of this environment, and this tree as it is now; the Python to go on with."""
    python = folder / "bin/python"
    core = importlib.metadata.version("ansible-core")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        # passlib: a target that prepares others installs it, but in a namespace of its own.
        subprocess.run([*install, str(ROOT), f"ansible-core=={core}", "passlib", "bcrypt"], check=True)
        (folder / ".ready").touch()
    subprocess.run([*install, "--force-reinstall", "--no-deps", str(ROOT)], check=True)
    return python


def supported(version: str) -> list[str]:
    """Every target that can run on this machine, but those that fail on stock too."""
    words = [sys.executable, str(YARDSTICK / "core_yardstick.py"), "--sdist", str(sdist(version)), "--python", sys.executable, "--list"]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        listed = subprocess.run(
            [*words, "--scratch", folder, "--out", f"{folder}/out.json"], check=True, capture_output=True, text=True
        )
    fail_on_stock = (YARDSTICK / "stock-fails.txt").read_text().split()
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    return [name for name, reason in rows if not reason and name not in fail_on_stock]


def run(targets: list[str], out: pathlib.Path, *more: str) -> dict[str, str]:
    """Run those of them that the installed ansible-core has; what each came to, by name."""
    version = importlib.metadata.version("ansible-core")
    with tarfile.open(sdist(version)) as packed:
        there = {
            name.split("/")[4] for name in packed.getnames() if name.count("/") > 4 and "/integration/targets/" in name
        }
    targets = [name for name in targets if name in there]
    subprocess.run(
        [
            sys.executable, str(YARDSTICK / "core_yardstick.py"), "--sdist", str(sdist(version)), "--python", sys.executable,
            "--targets", ",".join(targets), "--ansible-playbook", "python -m forkless playbook", "--ansible", "python -m forkless adhoc",
            "--timeout", "600", "--out", str(out), *more,
        ],
        check=False,
    )  # fmt: skip
    found = json.loads(out.read_text())
    return {name: row["status"] for name, row in found["results"].items()}


def main(argv: list[str]) -> int:
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    from runner_suites import heed_signals

    heed_signals()
    which = argv[0] if argv else "fast"
    if not YARDSTICK.is_dir():
        print(f"the yardstick is not at {YARDSTICK}; it comes with the project's shared folder")
        return 2
    if which != "quick" and sys.prefix != str(folder := environment()):
        python = prepare(folder)
        os.execv(python, [str(python), __file__, *argv])  # noqa: S606  # the same program, in that environment
    if which == "quick":
        targets = list(QUICK)
    elif which == "fast":
        targets = (YARDSTICK / "fast.txt").read_text().split()
    else:
        targets = supported(importlib.metadata.version("ansible-core"))
    targets = [name for name in targets if name not in DIFFERENT_BY_DESIGN]
    with tempfile.TemporaryDirectory() as made:
        found = run(targets, pathlib.Path(made) / "out.json", "--jobs", "2", "--wheelhouse", str(wheelhouse()))
    bad = {name: status for name, status in found.items() if status != "pass"}
    for name, status in sorted(bad.items()):
        print(f"{status}: {name}")
    print(f"{len(found) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
