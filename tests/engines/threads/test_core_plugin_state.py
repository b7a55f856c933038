# SPDX-License-Identifier: GPL-3.0-or-later
"""
State that ansible-core's own plugins and commands keep in modules: each worker has its own of it, as with forked workers, and each run,
whichever name of a plugin a play uses.
"""

from __future__ import annotations

import os

import pytest

import forkless
from engines_support import messages
from forkless.core import versions
from forkless.patching import seams

pytestmark = pytest.mark.spawns

HOSTS = [f"h{number}" for number in range(1, 7)]
MINOR = versions.nearest(seams.version())

LOOKUP = """
from ansible import constants as C
from ansible.plugins import loader
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        host = variables["inventory_hostname"]
        {body}
"""


def lookup(project, body, term="x"):
    project.write("lookup_plugins/asks.py", LOOKUP.replace("{body}", body.strip().replace("\n", "\n        ")))
    return f"- debug: {{msg: \"{{{{ lookup('asks', '{term}') }}}}\"}}\n"


@pytest.mark.skipif(MINOR in versions.since("2.21"), reason="since 2.21 ansible-core has no paramiko_ssh")
@pytest.mark.parametrize(
    "name", ["paramiko_ssh", "ansible.builtin.paramiko_ssh", "ansible.legacy.paramiko_ssh", "imported"]
)
@pytest.mark.matrix
def test_connections_that_paramiko_ssh_keeps_are_the_workers_own_by_any_name(project, name):
    """It keeps them by address and user: a host behind another port of the address would be answered by the first one."""
    body = """
if terms[0] == "imported":
    from ansible.plugins.connection.paramiko_ssh import SSH_CONNECTION_CACHE as kept
else:
    kept = loader.connection_loader.get(terms[0], class_only=True)._connect.__globals__["SSH_CONNECTION_CACHE"]
found, kept["an address"] = dict(kept), host
return [found]
"""
    result = project.run(lookup(project, body, name) * 2, forks=2)
    assert result.rc == 0, result.stdout
    found = [event.event_data["res"]["msg"] for event in result.events if event.event == "runner_on_ok"]
    assert found == [{}] * 2 * len(HOSTS)


PLUGINS = {
    "action_loader": "debug",
    "become_loader": "sudo",
    "cache_loader": "memory",
    "callback_loader": "minimal",
    "connection_loader": "ssh",
    "inventory_loader": "ini",
    "lookup_loader": "file",
    "shell_loader": "sh",
    "strategy_loader": "free",
    "vars_loader": "host_group_vars",
}


@pytest.mark.matrix
def test_a_plugin_of_ansible_core_is_one_module_by_its_short_and_by_its_full_name(project):
    """What is replaced in it is replaced under both names."""
    body = f"""
modules = {{}}
for which, name in {PLUGINS}.items():
    for before in ("", "ansible.builtin.", "ansible.legacy."):
        found = getattr(loader, which).get(before + name, class_only=True)
        modules.setdefault(which, set()).add(found.__module__)
return [{{which: sorted(names) for which, names in modules.items()}}]
"""
    result = project.run(lookup(project, body), limit="h1", forks=1)
    found = messages(result)["h1"]
    kinds = {which: which.removesuffix("_loader") for which in PLUGINS}
    assert found == {which: [f"ansible.plugins.{kinds[which]}.{name}"] for which, name in PLUGINS.items()}


@pytest.mark.parametrize("name", ["host_group_vars", "ansible.builtin.host_group_vars"])
def test_files_of_variables_are_looked_for_in_each_run_by_any_name_of_the_plugin(project, name):
    tasks, env = "- debug: {msg: '{{ color | default(\"none\") }}'}\n", {"ANSIBLE_VARS_ENABLED": name}
    assert messages(project.run(tasks, limit="h1", env=env)) == {"h1": "none"}
    project.write("host_vars/h1.yml", "color: red\n")
    assert messages(project.run(tasks, limit="h1", env=env)) == {"h1": "red"}
    project.write("host_vars/h1.yml", "color: blue\n")
    assert messages(project.run(tasks, limit="h1", env=env)) == {"h1": "blue"}


def test_a_strategy_by_its_full_name_runs_the_play(project):
    result = project.run("- debug: {msg: hi}\n- debug: {msg: ho}\n", head="strategy: ansible.builtin.free\n")
    assert messages(result) == dict.fromkeys(HOSTS, "ho")


def ad_hoc(project, word, *args):
    return {
        **project.spec(),
        "playbook": None,
        "module": "debug",
        "module_args": {"msg": word},
        "hosts": "h1",
        "args": ("--playbook-dir", str(project.folder), *args),
        "engine": "threads",
    }


@pytest.mark.matrix_ends
def test_each_ad_hoc_run_writes_into_the_tree_that_it_names(project, tmp_path):
    for word in ("one", "two"):
        result = forkless.run(**ad_hoc(project, word, "--tree", str(tmp_path / word)))
        assert result.rc == 0, result.stdout
    for word in ("one", "two"):
        assert os.listdir(tmp_path / word) == ["h1"]
        assert word in (tmp_path / word / "h1").read_text()


def test_an_ad_hoc_run_writes_into_its_own_tree_while_another_one_runs(project, tmp_path):
    lookup(
        project,
        """
import os, time
while not os.path.exists(terms[0]):
    time.sleep(0.01)
return ["first"]
""",
    )
    gone_on = tmp_path / "go on"
    waits = "{{ lookup('asks', '" + str(gone_on) + "') }}"
    first = forkless.start(**ad_hoc(project, waits, "--tree", str(tmp_path / "first")))
    try:
        next(event for event in first.events() if event.event == "runner_on_start")
        forkless.run(**ad_hoc(project, "second", "--tree", str(tmp_path / "second")))
    finally:
        gone_on.touch()
    assert first.wait().rc == 0, first.wait().stdout
    for word in ("first", "second"):
        assert word in (tmp_path / word / "h1").read_text()


def test_a_run_after_one_with_a_tree_writes_no_tree(project, tmp_path):
    env = {"HOME": str(tmp_path / "home")}  # for both: another HOME would be another configuration
    os.mkdir(env["HOME"])
    forkless.run(**ad_hoc(project, "one", "--tree", str(tmp_path / "one")), env=env)
    (tmp_path / "one" / "h1").unlink()
    result = project.run("- debug: {msg: hi}\n", limit="h1", env=env)
    assert result.rc == 0, result.stdout
    assert not os.listdir(tmp_path / "one")
    assert not (tmp_path / "home" / ".ansible" / "tree").exists()


def test_a_tree_that_the_configuration_names_is_used_after_one_of_the_command_line(project, tmp_path):
    env = {"ANSIBLE_CALLBACKS_ENABLED": "tree", "ANSIBLE_CALLBACK_TREE_DIR": str(tmp_path / "configured")}
    forkless.run(**ad_hoc(project, "one", "--tree", str(tmp_path / "one")), env=env)
    result = project.run("- debug: {msg: two}\n", limit="h1", env=env)
    assert result.rc == 0, result.stdout
    assert "one" in (tmp_path / "one" / "h1").read_text()
    assert "two" in (tmp_path / "configured" / "h1").read_text()


@pytest.fixture
def path_with(tmp_path):
    """PATH of a run that finds a program, which prints a text to stderr, before any other of its name; or finds no program at all."""

    def make(name=None, text=""):
        folder = tmp_path / f"bin {name} {text}"
        folder.mkdir()
        if name is None:
            return {"PATH": str(folder)}
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        program.chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    return make


@pytest.mark.skipif(MINOR in versions.since("2.20"), reason="since 2.20 the presence of sshpass is not remembered")
@pytest.mark.parametrize("name", ["ssh", "ansible.builtin.ssh"])
@pytest.mark.matrix_ends
def test_sshpass_is_looked_for_in_the_path_of_each_run(project, path_with, name):
    tasks = lookup(
        project, "return [loader.connection_loader.get(terms[0], class_only=True)._sshpass_available()]", name
    )
    there, absent = path_with("sshpass"), path_with()
    for env, expected in ((there, True), (absent, False), (there, True)):
        assert messages(project.run(tasks, limit="h1", env=env)) == {"h1": expected}


@pytest.mark.skipif(MINOR in versions.since("2.21"), reason="since 2.21 ansible-core does not ask for it")
@pytest.mark.matrix_ends
def test_control_persist_is_asked_of_the_ssh_of_each_run(project, path_with):
    body = "from ansible.utils.ssh_functions import check_for_controlpersist\nreturn [check_for_controlpersist('ssh')]"
    tasks = lookup(project, body)
    old, new = path_with("ssh", "Bad configuration option"), path_with("ssh", "fine")
    for env, expected in ((old, False), (new, True), (old, False)):
        assert messages(project.run(tasks, limit="h1", env=env)) == {"h1": expected}


@pytest.mark.skipif(MINOR in versions.since("2.20"), reason="since 2.20 there is no smart transport")
@pytest.mark.matrix_ends
def test_smart_is_decided_for_each_run(project, path_with):
    pytest.importorskip("paramiko")
    tasks = lookup(project, "return [C.DEFAULT_TRANSPORT]")
    old, new = path_with("ssh", "Bad configuration option"), path_with("ssh", "fine")
    for env, expected in ((old, "paramiko"), (new, "ssh"), (old, "paramiko")):
        run = project.run(tasks, limit="h1", env={**env, "ANSIBLE_TRANSPORT": "smart"})
        assert messages(run) == {"h1": expected}, run.stdout


@pytest.mark.skipif(MINOR in versions.since("2.19"), reason="since 2.19 the decoder has no passwords of its own")
@pytest.mark.matrix_ends
def test_passwords_of_the_json_decoder_are_those_of_the_run(project):
    body = """
from ansible.parsing.ajson import AnsibleJSONDecoder
found = "of another run" in AnsibleJSONDecoder._vaults
AnsibleJSONDecoder._vaults["of another run"] = 1
return [found]
"""
    tasks = lookup(project, body)
    assert [messages(project.run(tasks, limit="h1")) for _ in range(2)] == [{"h1": False}] * 2
