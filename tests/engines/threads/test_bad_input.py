# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input: stock's message and exit code, and the program lives on."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import subprocess
import sys

import pytest

import forkless
from forkless.core.result import complaint

pytestmark = pytest.mark.spawns

STOCK = pathlib.Path(sys.executable).with_name("ansible-playbook")

PLUGINS = {
    "action_plugins/exits.py": "import sys\nfrom ansible.plugins.action import ActionBase\nclass ActionModule(ActionBase):\n    def run(self, tmp=None, task_vars=None):\n        sys.exit(3)\n",
    "action_plugins/really_exits.py": "import os\nfrom ansible.plugins.action import ActionBase\nclass ActionModule(ActionBase):\n    def run(self, tmp=None, task_vars=None):\n        os._exit(3)\n",
    "action_plugins/throws.py": "from ansible.plugins.action import ActionBase\nclass Odd(BaseException): pass\nclass ActionModule(ActionBase):\n    def run(self, tmp=None, task_vars=None):\n        raise Odd('odd')\n",
    "action_plugins/unpicklable.py": "from ansible.plugins.action import ActionBase\nclass ActionModule(ActionBase):\n    def run(self, tmp=None, task_vars=None):\n        return dict(msg=lambda: 1)\n",
    "callback_plugins/bad.py": "from ansible.plugins.callback import CallbackBase\nclass CallbackModule(CallbackBase):\n    CALLBACK_VERSION = 2.0\n    CALLBACK_NAME = 'bad'\n    CALLBACK_TYPE = 'notification'\n    def v2_runner_on_ok(self, result):\n        raise ValueError('bad callback')\n",
}
PLAYS = {
    "missing playbook": None,
    "yaml error": "- hosts: [all\n",
    "no such host": "- hosts: nosuch\n  tasks: [{debug: {msg: hi}}]\n",
    "undefined variable": "- hosts: h1\n  gather_facts: false\n  tasks: [{debug: {msg: '{{ nosuch }}'}}]\n",
    "unreachable": "- hosts: h1\n  gather_facts: false\n  connection: ssh\n  vars: {ansible_host: 127.0.0.1, ansible_port: 1, ansible_connection: ssh}\n  tasks: [{ping: }]\n",
    "unknown module": "- hosts: h1\n  gather_facts: false\n  tasks: [{nosuchmodule: {}}]\n",
    "failing": "- hosts: h1\n  gather_facts: false\n  tasks: [{fail: {msg: as asked}}]\n",
    "sys.exit in a plugin": "- hosts: h1\n  gather_facts: false\n  tasks: [{exits: }]\n",
    "os._exit in a plugin": "- hosts: h1\n  gather_facts: false\n  tasks: [{really_exits: }]\n",
    "BaseException in a plugin": "- hosts: h1\n  gather_facts: false\n  tasks: [{throws: }]\n",
    "unpicklable result": "- hosts: h1\n  gather_facts: false\n  tasks: [{unpicklable: }]\n",
    "callback that raises": "- hosts: h1\n  gather_facts: false\n  tasks: [{debug: {msg: hi}}]\n",
    "bad limit": "- hosts: h1\n  tasks: []\n",
    "bad vault password": "- hosts: h1\n  gather_facts: false\n  vars_files: [secret.yml]\n  tasks: []\n",
}
# Words that both must say, where a test needs more than the same exit code.
WORDS = {
    "missing playbook": "could not be found",
    "undefined variable": "is undefined",
    "unreachable": "UNREACHABLE",
    "failing": "as asked",
    "sys.exit in a plugin": "A worker was found in a dead state",
    "os._exit in a plugin": "A worker was found in a dead state",
    "BaseException in a plugin": "A worker was found in a dead state",
    "callback that raises": "bad callback",
    "bad limit": "Specified inventory, host pattern and/or --limit leaves us with no hosts to target",
    "bad vault password": "Decryption failed",
}


def prepared(project, what):
    for name, text in PLUGINS.items():
        if not name.startswith("callback") or what == "callback that raises":
            project.write(name, text)
    if what == "bad vault password":
        from ansible.parsing.vault import VaultLib, VaultSecret

        secret = VaultSecret(b"right")
        secret.load()
        project.write("secret.yml", VaultLib([("default", secret)]).encrypt("a: 1", secret=secret).decode())
        project.write("pw", "wrong")
    if PLAYS[what] is not None:
        project.write("play.yml", PLAYS[what])
    args = {"bad limit": ["-l", "nosuch"], "bad vault password": ["--vault-password-file", "pw"]}
    return args.get(what, [])


def words(text):
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("what", PLAYS)
def test_same_message_and_exit_code_as_stock(project, what, capfd):
    args = prepared(project, what)
    stock = subprocess.run(
        [str(STOCK), "-i", "hosts.ini", *args, "play.yml"],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )
    ours = forkless.run("play.yml", cwd=project.folder, inventory="hosts.ini", args=args, engine="threads")
    assert ours.rc == stock.returncode, ours.stdout + stock.stdout + stock.stderr
    said = WORDS.get(what)
    if said:
        assert said in words(stock.stdout + stock.stderr)
        assert said in words(ours.stdout)
    assert capfd.readouterr() == ("", "")
    after = forkless.run(
        module="debug", module_args="msg=alive", hosts="h1", inventory="hosts.ini", cwd=project.folder, engine="threads"
    )
    assert after.rc == 0, after.stdout


def test_a_bad_flag_is_refused_in_ansibles_words_without_reaching_stderr(project, capfd):
    result = project.run("- debug: {msg: hi}\n", args=["--nosuchflag"])
    assert result.rc == 2
    assert "--nosuchflag" in result.stdout
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "either a playbook or a module"),
        ({"playbook": "a.yml", "module": "ping", "hosts": "all"}, "not both"),
        ({"module": "ping"}, "needs hosts="),
        ({"playbook": "a.yml", "forks": 0}, "forks"),
        ({"playbook": "a.yml", "timeout": -1}, "timeout"),
        ({"playbook": "a.yml", "extra_vars": ["a"]}, "mapping"),
        ({"playbook": "a.yml", "extra_vars": {"a": object()}}, "JSON"),
        ({"playbook": "a.yml", "env": {"A=B": "c"}}, "env"),
        ({"playbook": "a.yml", "ident": "../x"}, "ident"),
        ({"playbook": 7}, "path"),
        ({"playbook": "a\0.yml"}, "playbook must be a path"),
        ({"playbook": "a.yml", "cwd": b"/"}, "cwd must be a path"),
        ({"playbook": "a.yml", "cwd": 7}, "cwd must be a path"),
        ({"playbook": "a.yml", "artifacts": "a\0"}, "artifacts must be a path"),
        ({"playbook": "a.yml", "artifacts": 7}, "artifacts must be a path"),
        ({"playbook": "a.yml", "env": {"A": "\ud800"}}, "cannot hold"),
        ({"playbook": "a.yml", "extra_vars": {"a": functools.reduce(lambda a, _: [a], range(100_000), [])}}, "JSON"),
        ({"playbook": "a.yml", "engine": "steam"}, "steam"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_one_sentence(fields, word):
    with pytest.raises(forkless.SpecError, match=word) as caught:
        forkless.run(**fields)
    assert "\n" not in str(caught.value)


def test_a_configuration_that_cannot_be_opened_is_an_error_of_ours(project):
    (project.folder / "ansible.cfg").unlink(missing_ok=True)
    (project.folder / "ansible.cfg").mkdir()
    with pytest.raises(forkless.SpecError, match=r"does not start with this configuration: .*Is a directory"):
        project.run("- debug: {msg: hi}\n")


def test_an_error_with_a_long_traceback_is_told_in_a_sentence():
    last = (
        "[ERROR]: Unexpected\nTraceback (most recent call last):\n"
        + "  File x\n" * 1000
        + "RecursionError: too deep\n\n"
    )
    assert complaint(last[-4096:]) == "RecursionError: too deep"


@pytest.mark.matrix
def test_a_log_that_cannot_be_written_is_said_in_the_output_of_the_run(project, capfd):
    nowhere = str(project.folder / "none" / "log")
    result = project.run("- debug: {msg: hi}\n", env={"ANSIBLE_LOG_PATH": nowhere})
    assert f"[WARNING]: log file at '{nowhere}' is not writeable" in result.stdout
    assert result.ok
    assert capfd.readouterr() == ("", "")
