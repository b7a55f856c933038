# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of a run, each kind of them: as a reference that the worker resolves, and as a value that travels sealed."""

from __future__ import annotations

import json

import pytest

from queue_support import launch, playbook

pytestmark = pytest.mark.spawns
# What each secret is, in the words of --secret.
VALUES = {
    "vault": "tr0ub4dor-vault",
    "become": "tr0ub4dor-become",
    "connection": "tr0ub4dor-connection",
    "extra_vars.token": "tr0ub4dor-token",
    "env.CLOUD_KEY": "tr0ub4dor-key",
}
# An action plugin sees the passwords that Ansible gives to its connection and become plugins.
REVEAL = """
import json
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        found = dict(self._task.args, connection=self._play_context.password, become=self._play_context.become_pass)
        path = found.pop("path")
        with open(path, "w") as file:
            json.dump(found, file)
        return {"changed": False}
"""

REVEAL_KEY = """
import json, os
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        key = self._play_context.private_key_file
        with open(key) as file, open(self._task.args["path"], "w") as out:
            json.dump({"key": key, "is": file.read(), "agent": os.environ.get("SSH_AUTH_SOCK")}, out)
        return {"changed": False}
"""


def reveal(project, path):
    """A playbook that writes all that it was given into a file outside of the project."""
    from ansible.constants import DEFAULT_VAULT_ID_MATCH
    from ansible.parsing.vault import VaultLib, VaultSecret

    vault = VaultLib([(DEFAULT_VAULT_ID_MATCH, VaultSecret(VALUES["vault"].encode()))])
    (project / "closed.yml").write_bytes(vault.encrypt("inside: opened\n"))
    (project / "action_plugins").mkdir()
    (project / "action_plugins/reveal.py").write_text(REVEAL)
    given = {"extra_vars.token": "{{ token }}", "env.CLOUD_KEY": "{{ lookup('env', 'CLOUD_KEY') }}"}
    told = json.dumps({"path": str(path), "vault": "{{ inside }}"} | given)
    playbook(project, tasks=["- include_vars: closed.yml\n  no_log: true", f"- reveal: {told}\n  no_log: true"])


def references(tmp_path, monkeypatch):
    """The secrets as the worker has them: in its environment, in a file and from a command."""
    monkeypatch.setenv("OF_THE_WORKER", VALUES["become"])
    monkeypatch.setenv("ANOTHER", VALUES["env.CLOUD_KEY"])
    (tmp_path / "vault.pass").write_text(VALUES["vault"] + "\n")
    (tmp_path / "connection").write_text(VALUES["connection"])
    (tmp_path / "token").write_text(VALUES["extra_vars.token"])
    return {
        "vault": f"file:{tmp_path}/vault.pass",
        "become": "env:OF_THE_WORKER",
        "connection": f"cmd:cat {tmp_path}/connection",
        "extra_vars.token": f"cmd:cat {tmp_path}/token; echo",
        "env.CLOUD_KEY": "env:ANOTHER",
    }


@pytest.mark.parametrize("kind", ["references", "values"])
def test_every_kind_of_secret_reaches_the_run_and_no_table_log_or_event(
    url, database, workers, project, tmp_path, monkeypatch, kind
):
    revealed = tmp_path / "revealed"
    reveal(project, revealed)
    named = references(tmp_path, monkeypatch)
    workers.make_key(url)
    workers.start()
    if kind == "references":
        number = launch(url, project, secrets=named)
    else:
        spec = {
            "vault_password": VALUES["vault"],
            "passwords": {"conn_pass": VALUES["connection"], "become_pass": VALUES["become"]},
            "extra_vars": {"token": VALUES["extra_vars.token"]},
            "env": {"CLOUD_KEY": VALUES["env.CLOUD_KEY"]},
        }
        number = launch(url, project, spec=spec)
    ended = database.wait_for(number, "successful", "failed", "lost")
    assert ended == "successful", database.one("SELECT sentence FROM forkless.run WHERE id = %s", number)
    assert json.loads(revealed.read_text()) == VALUES | {"vault": "opened"}
    tables = database.all("SELECT table_name FROM information_schema.tables WHERE table_schema = 'forkless'")
    kept = "".join(str(database.all(f"SELECT * FROM forkless.{table}")) for (table,) in tables)
    kept += "".join(str(event) for event in database.stream(number)) + workers.log()
    assert "tr0ub4dor" not in kept
    # What is a value is known by its name, in the open.
    assert database.one("SELECT sealed IS NOT NULL FROM forkless.run WHERE id = %s", number) == (kind == "values")


def test_ssh_keys_and_the_agent_are_the_workers_own(url, database, workers, project, tmp_path, monkeypatch):
    """The launch names the key's file, which the launcher need not have; the agent is that of the worker's environment."""
    revealed, key = tmp_path / "revealed", tmp_path / "of the worker" / "id"
    (project / "action_plugins").mkdir()
    (project / "action_plugins/reveal.py").write_text(REVEAL_KEY)
    playbook(project, tasks=[f"- reveal: path={revealed}"])
    monkeypatch.setenv("SSH_AUTH_SOCK", "/of/the/launcher")
    number = launch(url, project, spec={"args": ["--private-key", str(key)]})
    key.parent.mkdir()
    key.write_text("tr0ub4dor")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/of/the/worker")
    workers.start()
    assert database.wait_for(number, "successful", "failed", "lost") == "successful"
    assert json.loads(revealed.read_text()) == {"agent": "/of/the/worker", "key": str(key), "is": "tr0ub4dor"}
    kept = str(database.all("SELECT * FROM forkless.run")) + str(database.all("SELECT * FROM forkless.event_batch"))
    assert "/of/the/launcher" not in kept
    assert database.one("SELECT sealed IS NULL FROM forkless.run WHERE id = %s", number)  # a path is no secret
