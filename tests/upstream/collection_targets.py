# SPDX-License-Identifier: GPL-3.0-or-later
"""
Integration targets of collections, on stock ansible-playbook and on `forkless playbook`: the same exit codes, recaps and output.

    python tests/upstream/collection_targets.py [COLLECTION ...] [--targets NAME,NAME] [--limit SECONDS] [--out FILE.json]

Nothing of them is stored here: they come with the sdist of the package `ansible` on PyPI. Modules run in the default mode, and pipelining is
left as it is by default. Every target runs in namespaces of its own (mounts, network, processes) on a throw-away copy of the root: it
needs root on Linux. A target that does not pass on stock is left out of the comparison. Stock runs twice: where its own
two outputs differ, only tasks and their states are compared.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "collections"
# What the modules and plugins of the targets import; a target that misses a library fails on stock, and nothing is compared.
LIBRARIES = ("cryptography", "jmespath", "jsonschema", "lxml", "netaddr", "prettytable", "textfsm", "ttp", "xmltodict", "jc", "hashids",
             "jsonpatch", "passlib", "legacycrypt; python_version >= '3.13'", "pycdlib", "petname", "dnspython", "semantic_version")  # fmt: skip
PACKAGE = {"2.18": "ansible>=11,<12", "2.19": "ansible>=12,<13", "2.20": "ansible>=13,<14", "2.21": "ansible>=14,<15"}
NEEDED = ("community.general", "ansible.posix", "community.crypto", "ansible.utils", "community.internal_test_tools")
NOT_HERE = ("hidden", "disabled", "unsupported", "unstable", "cloud/", "needs/httptester", "windows", "network/")

# Quick ones that need neither a network nor a service.
QUICK = {
    "community.general": """
        archive alternatives callback_default_without_diff callback_log_plays callback_timestamp callback_yaml cronvar deploy_helper
        dpkg_divert filesize filter_counter filter_dict filter_from_csv filter_groupby_as_dict filter_keep_keys filter_lists
        filter_lists_mergeby filter_path_join_shim filter_random_mac filter_remove_keys filter_replace_keys filter_reveal_ansible_type
        filter_time filter_to_prettytable filter_unicode_normalize filter_version_sort git_config interfaces_file
        listen_ports_facts lookup_cartesian lookup_dependent lookup_flattened
        lookup_merge_variables lookup_random_string module_helper read_csv sudoers test_ansible_type
        python_requirements_info wakeonlan xattr
    """.split(),
    "ansible.posix": "authorized_key mount patch sysctl seboolean selinux synchronize".split(),
    "community.crypto": "crypto_info filter_parse_serial filter_to_serial filter_split_pem lookup_gpg_fingerprint openssl_privatekey_info".split(),
    "ansible.utils": "utils_keep_keys utils_remove_keys utils_replace_keys utils_get_path utils_to_paths".split(),
}  # fmt: skip

# Differences with a reason each.
EXPLAINED: dict[str, str] = {
    "community.general.archive": "for tar archives the module compares headers, which have whole seconds: a file of the same size that was "
    "changed and archived again within one second is not seen, and here that is quick enough. The target asserts it for zip only",
}

ENTER = """\
set -e
mount --make-rprivate /
mount -t tmpfs -o size=4g none "$STAGE"
mkdir "$STAGE/upper" "$STAGE/work" "$STAGE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$STAGE/upper,workdir=$STAGE/work" "$STAGE/root"
for folder in sys dev; do mount --rbind "/$folder" "$STAGE/root/$folder"; done
mount -t proc proc "$STAGE/root/proc"
echo "$VISIBLE" | tr ':' '\\n' | while read -r folder; do
    if [ ! -e "$STAGE/root$folder" ]; then mkdir -p "$STAGE/root$folder"; mount --rbind "$folder" "$STAGE/root$folder"; fi
done
mkdir -p "$STAGE/root$HOME" "$STAGE/root$OUTPUT_DIR"
ip link set lo up
exec chroot "$STAGE/root" sh -c 'cd "$1"; shift; exec "$@"' sh "$FOLDER" "$@"
"""


@dataclass
class Ended:
    """What one run of a target came to."""

    code: int | None
    text: str
    errors: str
    seconds: float
    recap: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recap = re.findall(r"^\S+ +: (ok=.*?) *$", self.text, re.MULTILINE)


def sources() -> pathlib.Path:
    """A folder with `ansible_collections` in it, tests included, for the installed ansible-core."""
    minor = ".".join(importlib.metadata.version("ansible-core").split(".")[:2])
    folder = CACHE / minor
    if (folder / ".ready").exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    words = [
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "ansible",
        "--dest",
        str(folder),
        PACKAGE.get(minor, "ansible"),
    ]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (archive,) = folder.glob("ansible-*.tar.gz")
    wanted = tuple(f"ansible_collections/{name.replace('.', '/')}/" for name in NEEDED)
    with tarfile.open(archive) as packed:
        for member in packed:
            member.name = member.name.partition("/")[2]
            if member.name.startswith(wanted):
                packed.extract(member, folder, filter="data")  # ours, whoever packed it
    archive.unlink()
    (folder / ".ready").touch()
    return folder


def interpreter() -> pathlib.Path:
    """The Python of an environment with the libraries of the targets, the ansible-core of the tests, and this tree."""
    core = importlib.metadata.version("ansible-core")
    folder = CACHE / f"environment-{core}"
    if not (folder / ".ready").exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "-q", "--clear", "--seed", "--python", sys.executable, str(folder)], check=True)
        install = [*uv, "pip", "install", "-q", "--python", str(folder / "bin/python")]
        subprocess.run([*install, "-e", str(ROOT), f"ansible-core=={core}", *LIBRARIES], check=True)
        (folder / ".ready").touch()
    return folder / "bin/python"


def targets_of(base: pathlib.Path) -> list[str]:
    """Those that could run here, by what they say of themselves."""
    found = []
    for path in sorted((base / "tests/integration/targets").iterdir()):
        aliases = (path / "aliases").read_text().split("\n") if (path / "aliases").is_file() else []
        runs = (path / "runme.sh").is_file() or (path / "tasks").is_dir()
        if (
            runs
            and not path.name.startswith(("setup_", "prepare_"))
            and not any(a.startswith(NOT_HERE) for a in aliases)
        ):
            found.append(path.name)
    return found


class Runner:
    """Runs targets of one collection, each in a world of its own."""

    def __init__(self, root: pathlib.Path, collection: str, work: pathlib.Path, limit: float) -> None:
        self.base = root / "ansible_collections" / collection.replace(".", "/")
        self.root, self.work, self.limit = root, work, limit

    def shim(self, name: str) -> pathlib.Path:
        folder = self.work / f"bin-{name}"
        folder.mkdir(exist_ok=True)
        here = shlex.quote(sys.executable)
        commands = {"ansible-playbook": "playbook", "ansible": "adhoc"}
        for command, ours in commands.items():
            stock = shlex.quote(str(pathlib.Path(sys.executable).parent / command))
            line = f"{here} -m forkless {ours}" if name == "forkless" else f"{here} {stock}"
            (folder / command).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
            (folder / command).chmod(0o755)
        return folder

    def run(self, engine: str, target: str) -> Ended:
        integration = self.base / "tests/integration"
        here = integration / "targets" / target
        home, output = "/tmp/target-home", "/tmp/target-output"  # noqa: S108  # in a root of its own
        path = f"{self.shim(engine)}:{pathlib.Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environ = {
            "PATH": path, "HOME": home, "OUTPUT_DIR": output, "LC_ALL": "C.UTF-8", "ANSIBLE_COLLECTIONS_PATH": str(self.root),
            "ANSIBLE_ROLES_PATH": str(integration / "targets"), "ANSIBLE_FORCE_HANDLERS": "true", "ANSIBLE_HOST_KEY_CHECKING": "false",
            "ANSIBLE_DEPRECATION_WARNINGS": "false", "ANSIBLE_RETRY_FILES_ENABLED": "false", "ANSIBLE_CONFIG": str(self.work / "empty.cfg"),
            "ANSIBLE_TEST_PYTHON_INTERPRETER": sys.executable, "INVENTORY_PATH": str(self.work / "inventory"),
            "STAGE": str(self.work / "stage"), "VISIBLE": ":".join({sys.prefix, sys.base_prefix, str(ROOT), str(self.root), str(self.work)}),
        }  # fmt: skip
        if (here / "runme.sh").is_file():
            command, environ["FOLDER"] = ["bash", "./runme.sh"], str(here)
        else:
            play = [{"hosts": "testhost", "gather_facts": True, "vars": {"output_dir": output}, "roles": [target]}]
            book = f"{integration}/forkless-{target}.yml"  # written in the target's own root, not here
            write = f"printf %s {shlex.quote(json.dumps(play))} > {book}; exec ansible-playbook {book} -i {self.work}/inventory"
            command, environ["FOLDER"] = ["sh", "-c", write], str(integration)
        began = time.monotonic()
        words = [
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--",
            "sh",
            "-c",
            ENTER,
            "sh",
            *command,
        ]
        # Two pipes: which of a line on stdout and one on stderr comes first is up to the moment, on stock as well.
        process = subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
        try:
            out, errors = process.communicate(timeout=self.limit)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()  # and with it everything in its namespace of processes
            out, errors = process.communicate()
            code = None
        except BaseException:
            process.kill()
            process.wait()
            raise
        texts = (out.decode(errors="replace"), errors.decode(errors="replace"))
        return Ended(code, *texts, time.monotonic() - began)


_NOISE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"run-\w+/"), ""),
    (re.compile(r"(ansible-(?:tmp|local)-|tmp|payload_)[\w.-]+"), r"\1X"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\d{10,}(?:\.\d+)?"), "N"),
    (re.compile(r"0:00:\d\d\.\d+|\d+\.\d{3,}"), "N"),
    (re.compile(r"bin-(?:stock|forkless)"), "bin"),
    (re.compile(r"""(["']dev["']: )\d+"""), r"\1N"),  # of the root that each run gets: the kernel numbers them
)


def normalised(text: str) -> list[str]:
    for pattern, instead in _NOISE:
        text = pattern.sub(instead, text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def states(text: str) -> list[str]:
    """Tasks, and which state each host came to: what is left where results vary."""
    return [
        re.sub(r"( =>| \(item).*", "", line)
        for line in normalised(text)
        if re.match(r"(PLAY|TASK|RUNNING HANDLER|ok:|changed:|skipping:|failed:|fatal:|included:|\S+ +: ok=)", line)
    ]


def verdict(stock: Ended, again: Ended, ours: Ended) -> tuple[str, str]:
    """One or two words, and what differs."""
    if stock.code is None or again.code is None:
        return "too slow", "stock was not done by the limit"
    if stock.code != 0 or again.code != 0:
        return "stock fails", f"exit code {stock.code}: " + " | ".join(normalised(stock.text + stock.errors)[-2:])
    if ours.code != stock.code:
        return "exit code", f"{stock.code} became {ours.code}: " + " | ".join(normalised(ours.text + ours.errors)[-6:])
    if ours.recap != stock.recap:
        return "recap", f"{stock.recap} became {ours.recap}"
    compared = []
    for name in ("text", "errors"):
        theirs, second, mine = (getattr(one, name) for one in (stock, again, ours))
        look = next((how for how in (normalised, states, None) if how is None or how(theirs) == how(second)), None)
        if look is None:
            compared.append("nothing but exit code and recap: the order varies on stock")
            continue
        compared.append("output" if look is normalised else "tasks and states: results vary on stock")
        changes = difflib.unified_diff(look(theirs), look(mine), lineterm="", n=0)
        lines = [line for line in changes if not line.startswith(("---", "+++", "@@"))]
        if lines:
            return "output", "\n".join(lines[:12])
    return "same", "; ".join(dict.fromkeys(compared))


def compare(collection: str, targets: list[str], limit: float, work: pathlib.Path) -> dict[str, dict[str, object]]:
    rows: dict[str, dict[str, object]] = {}
    runner = Runner(sources(), collection, work, limit)
    for target in targets:
        if not (runner.base / "tests/integration/targets" / target).is_dir():
            continue  # not in this version of the collection
        stock = runner.run("stock", target)
        again = runner.run("stock", target) if stock.code == 0 else stock
        ours = runner.run("forkless", target) if stock.code == 0 else stock
        word, details = verdict(stock, again, ours)
        name = f"{collection}.{target}"
        rows[name] = {
            "verdict": word,
            "details": details,
            "stock": round(again.seconds, 1),
            "forkless": round(ours.seconds, 1),
        }
        if word in ("exit code", "recap", "output"):
            rows[name] |= {"stock_text": stock.text + stock.errors, "forkless_text": ours.text + ours.errors}
        print(
            f"{word:<12} {again.seconds:6.1f} s {ours.seconds:6.1f} s  {name}  {details if word != 'same' else ''}",
            flush=True,
        )
    return rows


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("collections", nargs="*", default=list(QUICK))
    parser.add_argument(
        "--targets", help="names, with commas between; `all` for every one that could run here; default: the quick ones"
    )
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one run of a target")
    parser.add_argument(
        "--out", type=pathlib.Path, help="a JSON file for all rows, with the outputs of those that differ"
    )
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what must be tidied up
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        print("each target gets a root of its own by mount namespaces: this needs root on Linux")
        return 2
    if sys.prefix != str((python := interpreter()).parents[1]):
        os.execv(python, [str(python), __file__, *argv])  # noqa: S606  # the same program, with the libraries
    rows: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="forkless-targets-") as folder:
        work = pathlib.Path(folder)
        (work / "stage").mkdir()
        (work / "empty.cfg").write_text("")
        (work / "inventory").write_text(
            f"testhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
        )
        for collection in given.collections:
            base = sources() / "ansible_collections" / collection.replace(".", "/")
            if given.targets == "all":
                names = targets_of(base)
            else:
                names = given.targets.split(",") if given.targets else QUICK[collection]
            for target in names:
                rows |= compare(collection, [target], given.limit, work)
                if given.out:  # after each one: a run that is interrupted keeps what it has
                    given.out.write_text(json.dumps(rows, indent=1))
    count = collections.Counter(str(row["verdict"]) for row in rows.values())
    print(", ".join(f"{number} {word}" for word, number in count.most_common()))
    unexplained = [
        name
        for name, row in rows.items()
        if row["verdict"] not in ("same", "stock fails", "too slow") and name not in EXPLAINED
    ]
    for name in unexplained:
        print(f"differs without a reason: {name}")
    for name in EXPLAINED.keys() & rows.keys():
        same = rows[name]["verdict"] == "same"
        print(f"{name} is the same now: take it out of EXPLAINED" if same else f"{name}: {EXPLAINED[name]}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
