# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that people use most give the same result in this process as in one of their own, word for word."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import pathlib
import pwd
import re
import subprocess
import sys
import tarfile
import threading
import zipfile

import pytest

import prepare_collections

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
ANSIBLE_PLAYBOOK = pathlib.Path(sys.executable).parent / "ansible-playbook"

# What no two runs have in common, whoever runs them.
VOLATILE = {
    "atime", "mtime", "ctime", "inode", "elapsed", "date", "last_modified", "start", "end", "delta", "backup", "backup_file",
    "module_stderr", "exception", "version",
}  # fmt: skip


# The names are folders, too, and of one length: some results say how long a path is.
WAYS = {
    "theirs": [str(ANSIBLE_PLAYBOOK)],
    "within": [sys.executable, "-m", "forkless", "playbook", "--modules", "in-process"],
    "warmed": [sys.executable, "-m", "forkless", "playbook", "--modules", "warm"],
}


@pytest.fixture
def world(tmp_path):
    """Files to work on, archives, and a web server."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "a.txt").write_text("over http")
    (served / "a.json").write_text('{"x": 1}')
    archives = tmp_path / "archives"
    archives.mkdir()
    (archives / "member").write_text("m")
    os.utime(archives / "member", (1_600_000_000, 1_600_000_000))
    with zipfile.ZipFile(archives / "a.zip", "w") as file:
        file.write(archives / "member", "zipped")
    with tarfile.open(archives / "a.tar", "w") as file:
        file.add(archives / "member", "tarred")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=served))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {
        "archives": str(archives),
        "url": f"http://127.0.0.1:{server.server_address[1]}",
        "checksum": "sha256:" + hashlib.sha256(b"over http").hexdigest(),
        "here": str(HERE),
    }
    server.shutdown()
    server.server_close()
    thread.join()


def results(command, world, work, book="proven.yml", **more):
    work.mkdir()
    (work / "vars.yml").write_text("included: true\n")
    environ = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "1",
    }  # ours sends no files ahead; so stock does not either
    environ.update(more)
    extra = {**world, "work": str(work), "ansible_python_interpreter": sys.executable}
    done = subprocess.run(
        [*command, "-i", "localhost,", "-e", json.dumps(extra), str(HERE / book)],
        env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(pathlib.Path(f"{work}.json").read_text()), done.stdout


def plain(value, work, key=""):
    """A result without what no two runs have in common: times, inodes, random names, the folder it worked in."""
    if isinstance(value, dict):
        return {k: plain(v, work, k) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        items = [plain(one, work) for one in value]
        return sorted(items, key=repr) if key in ("files", "ansible_env") else items
    if isinstance(value, str):
        value = value.replace(str(work), "WORK")
        value = re.sub(
            r"ansible-tmp-[\d.]+-\d+-\d+|\.?ansible\.\w+|source-?\w*|tmp\w{6,}|ansible-local-\w+(/run-\w+)?|ansible-moduletmp-[\d.]+-\w+|ansible_\w+_payload_\w+",
            "RANDOM",
            value,
        )
        return re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(@)?|\d+\.\d{3,}", "TIME", value)
    return value


@pytest.mark.spawns
@pytest.mark.timeout(900)  # stock starts some eighty programs, on a machine that may be busy
@pytest.mark.matrix_newest
def test_every_module_of_the_proven_set_gives_the_result_that_stock_ansible_gives(
    one_python_for_each_minor, world, tmp_path
):
    found = {}
    for name, command in WAYS.items():
        found[name] = facts = plain(results(command, world, tmp_path / name)[0], tmp_path / name)
        # A shell between the two adds to the environment; what the task and the program gave must be the same.
        env = facts["r_setup"]["ansible_facts"]["ansible_env"]
        for variable in ("_", "SHLVL", "OLDPWD", "PWD", "LC_CTYPE"):
            env.pop(variable, None)
    stock = found.pop("theirs")
    for name, ours in found.items():
        assert set(stock) == set(ours)
        different = {key: (stock[key], ours[key]) for key in stock if stock[key] != ours[key]}
        assert not different, f"{name}: {json.dumps(different, indent=1)}"


@pytest.mark.spawns
@pytest.mark.timeout(300)
def test_where_unshare_is_denied_the_proven_set_gives_the_same_results(world, tmp_path):
    ways = {"within": WAYS["within"], "denied": [sys.executable, str(HERE / "without_unshare.py")]}
    found = []
    for name, command in ways.items():
        facts = plain(results(command, world, tmp_path / name)[0], tmp_path / name)
        facts["r_setup"]["ansible_facts"]["ansible_env"].pop("PWD", None)
        found.append(facts)
    assert {key: (found[0][key], found[1][key]) for key in found[0] if found[0][key] != found[1][key]} == {}


@pytest.mark.spawns
@pytest.mark.timeout(300)
def test_where_home_is_not_the_passwd_home_a_tilde_means_what_it_means_on_stock(world, tmp_path):
    home, name = tmp_path / "home", f"forkless-test-{os.getpid()}"
    home.mkdir()
    ways = {
        "theirs": [str(ANSIBLE_PLAYBOOK)],
        "ourown": [sys.executable, "-m", "forkless", "playbook", "--modules", "in-process"],
    }
    found = [
        results(command, world | {"name": name}, tmp_path / way, "tilde.yml", HOME=str(home))[0]
        for way, command in ways.items()
    ]
    # An action asks for the home of its user, a module goes by HOME.
    by_user = f"{pwd.getpwuid(os.getuid()).pw_dir}/.{name}"
    expected = {"r_copy": by_user, "r_template": by_user, "r_stat": str(home), "r_file": f"{home}/.{name}"}
    assert found == [expected, expected]


@pytest.mark.spawns
@pytest.mark.timeout(900)
def test_modules_of_real_collections_give_the_result_that_stock_ansible_gives(
    one_python_for_each_minor, world, tmp_path
):
    if not prepare_collections.there():
        pytest.skip(prepare_collections.MISSING)
    where = {"ANSIBLE_COLLECTIONS_PATH": str(prepare_collections.FOLDER)}
    found = {
        name: plain(results(command, world, tmp_path / name, "collections.yml", **where)[0], tmp_path / name)
        for name, command in WAYS.items()
    }
    assert found["theirs"]["r_ini"]["changed"]
    # A module_util tells of its deprecated imports as it is imported (2.22). Stock imports it for each task; what is imported here serves several.
    for answers in found.values():
        for answer in answers.values():
            answer.pop("deprecations", None)
    assert found["theirs"] == found["within"]
    assert found["theirs"] == found["warmed"]
