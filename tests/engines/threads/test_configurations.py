# SPDX-License-Identifier: GPL-3.0-or-later
"""Each run has the configuration of its own project, whatever ran, or was imported, before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import yaml

from engines_support import messages
from forkless.engines.threads import config_gate, engine

pytestmark = pytest.mark.spawns

NAME = "- debug: {msg: '{{ inventory_hostname }}'}\n"


def in_process(code, cwd):
    """What a program of its own prints as JSON."""
    source = "import json, os, sys\nimport forkless\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def until(true):
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def hosts(run):
    return sorted(messages(run))


def test_a_relative_inventory_in_the_environment_is_that_of_each_runs_folder(projects):
    for who in ("one", "two", "one"):
        project = projects(who)
        project.write("mine", f"{who} ansible_connection=local\n")
        assert hosts(project.run(NAME, env={"ANSIBLE_INVENTORY": "mine"}, inventory=None)) == [who]


def test_a_shared_configuration_that_names_the_current_folder_means_each_runs_own(projects, tmp_path):
    shared = tmp_path / "shared.cfg"
    shared.write_text("[defaults]\ninventory = {{CWD}}/mine\n")
    for who in ("one", "two", "one"):
        project = projects(who)
        project.write("mine", f"{who} ansible_connection=local\n")
        assert hosts(project.run(NAME, env={"ANSIBLE_CONFIG": str(shared)}, inventory=None)) == [who]


@pytest.mark.matrix_ends
def test_a_configuration_that_names_a_variable_means_each_runs_own(projects, tmp_path):
    shared = tmp_path / "shared.cfg"
    shared.write_text("[defaults]\ninventory = ${WHERE}/mine\n")
    for who in ("one", "two", "one"):
        project = projects(who)
        project.write("mine", f"{who} ansible_connection=local\n")
        env = {"ANSIBLE_CONFIG": str(shared), "WHERE": str(project.folder)}
        assert hosts(project.run(NAME, env=env, inventory=None)) == [who]


def test_a_configuration_file_counts_by_what_is_in_it(project):
    path = project.write("ansible.cfg", "[defaults]\ninventory = aaa\n")
    project.write("aaa", "one ansible_connection=local\n")
    project.write("bbb", "two ansible_connection=local\n")
    assert hosts(project.run(NAME, inventory=None)) == ["one"]
    times = path.stat()
    path.write_text("[defaults]\ninventory = bbb\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    assert hosts(project.run(NAME, inventory=None)) == ["two"]


def test_only_what_counts_from_the_folder_makes_the_folder_part_of_a_configuration(tmp_path, monkeypatch):
    def same(environ):
        environ = {"HOME": "/nowhere", **environ}
        return config_gate.configuration(environ, str(tmp_path / "a"), ()) == config_gate.configuration(
            environ, str(tmp_path / "b"), ()
        )

    for who in ("a", "b"):
        (tmp_path / who).mkdir()
    assert same({})
    assert same({"ANSIBLE_FORKS": "5", "ANSIBLE_STDOUT_CALLBACK": "minimal", "ANSIBLE_ROLES_PATH": "/x:~/y"})
    assert not same({"ANSIBLE_ROLES_PATH": "/x:y"})
    assert not same({"ANSIBLE_INVENTORY": "hosts"})
    assert not same({"ANSIBLE_LOG_PATH": "log"})
    assert not same({"ANSIBLE_ROLES_PATH": "{{CWD}}/x"})
    monkeypatch.setattr(config_gate, "_path_settings", lambda: None)
    assert not same({"ANSIBLE_FORKS": "5"}), "what cannot be looked up may be a path"


def test_which_settings_are_paths_is_known_without_the_c_part_of_yaml(monkeypatch):
    known = config_gate._path_settings()
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert "ANSIBLE_ROLES_PATH" in known
    assert config_gate._path_settings.__wrapped__() == known


def test_an_ansible_cfg_that_is_written_while_a_run_waits_is_the_one_that_counts(projects):
    first, second = projects("first"), projects("second")
    os.mkfifo(first.folder / "gate")
    first.write("ansible.cfg", "[defaults]\n# first\n")
    second.write("ansible.cfg", "[defaults]\ninventory = aaa\n")
    second.write("aaa", "old ansible_connection=local\n")
    second.write("bbb", "new ansible_connection=local\n")
    running = first.start(f"- command: cat {first.folder}/gate\n", args=["--limit", "h1"])
    with open(first.folder / "gate", "w"):
        waiting = second.start(NAME, inventory=None)
        until(lambda: engine._config_gate._queue)
        second.write("ansible.cfg", "[defaults]\ninventory = bbb\n")
    assert running.wait().ok
    assert hosts(waiting.wait()) == ["new"]
    # What was imported for it is not kept under the name of what it was when the run came.
    second.write("ansible.cfg", "[defaults]\ninventory = aaa\n")
    assert hosts(second.run(NAME, inventory=None)) == ["old"]


@pytest.mark.parametrize(
    "imported",
    [
        "from ansible.parsing.vault import VaultLib, VaultSecret",
        "from ansible.config.manager import ConfigManager",
        "import ansible.constants",
        "import ansible.release",
    ],
)
def test_a_program_that_imported_ansible_before_still_gets_each_projects_configuration(projects, imported):
    folders = []
    for who in ("one", "two"):
        project = projects(who)
        project.write("ansible.cfg", f"[defaults]\ninventory = mine\n# {who}\n")
        project.write("mine", f"{who} ansible_connection=local\n")
        project.spec(NAME)
        folders.append(str(project.folder))
    found = in_process(
        f"""
        {imported}
        mine = {{name: module for name, module in sys.modules.items() if name.partition('.')[0] == 'ansible'}}
        os.chdir({folders[0]!r})  # as a program that goes into its project after it has started
        said = []
        for folder in ({folders[0]!r}, {folders[1]!r}, {folders[0]!r}):
            result = forkless.run('play.yml', cwd=folder, engine='threads')
            said.append([e.host for e in result.events if e.event == 'runner_on_ok'])
        now = {{name: module for name, module in sys.modules.items() if name.partition('.')[0] == 'ansible'}}
        print(json.dumps([said, now == mine]))
        """,
        cwd="/",
    )
    assert found == [[["one"], ["two"], ["one"]], True]


@pytest.mark.matrix_ends
def test_what_a_program_has_of_ansible_goes_on_working_during_and_after_runs(project):
    project.write("ansible.cfg", "[defaults]\n# of the project\n")
    os.mkfifo(project.folder / "gate")
    project.spec("- command: cat gate\n  args: {chdir: '{{ playbook_dir }}'}\n")
    found = in_process(
        f"""
        from ansible.parsing.dataloader import DataLoader
        from ansible.parsing.vault import VaultLib, VaultSecret
        from ansible.errors import AnsibleError
        from ansible.plugins.loader import init_plugin_loader, lookup_loader
        init_plugin_loader([])
        vault = VaultLib([('default', VaultSecret(b'word'))])

        def works():
            text = vault.encrypt('text')
            try:
                VaultLib([('default', VaultSecret(b'other'))]).decrypt(text)
            except AnsibleError:
                refused = True
            from ansible.errors import AnsibleError as Again
            return [vault.decrypt(text).decode(), refused, type(vault) is VaultLib, DataLoader().load('a: 1')]

        finders = list(sys.meta_path), list(sys.path_hooks)
        # Each copy of six that comes with ansible-core puts its importer in the place of the one before, so it is compared by name.
        names = [type(one) is type and one or type(one).__name__ for one in sys.meta_path]
        said = [works()]
        run = forkless.start('play.yml', inventory='hosts.ini', limit='h1', cwd={str(project.folder)!r}, engine='threads')
        with open({str(project.folder / "gate")!r}, 'w'):
            said.append(works())
            from ansible.galaxy.role import GalaxyRole  # nothing imported it before
        assert run.wait().ok
        said.append(works())
        import ansible.errors
        import ansible.galaxy.role
        same = [
            ansible.errors.AnsibleError is AnsibleError,
            ansible.galaxy.role.GalaxyRole is GalaxyRole,
            ansible.galaxy.role.AnsibleError is AnsibleError,
            [type(one) is type and one or type(one).__name__ for one in sys.meta_path] == names,
            list(sys.path_hooks) == finders[1],
            lookup_loader.get('env') is not None,
        ]
        print(json.dumps([said, same]))
        """,
        cwd="/",
    )
    assert found == [[["text", True, True, {"a": 1}]] * 3, [True] * 6]


@pytest.mark.matrix_ends
def test_each_runs_lines_land_in_its_own_log(project, tmp_path):
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    for round_ in range(2):
        for who, log in zip(("one", "two"), logs, strict=True):
            result = project.run(
                f"- debug: {{msg: 'round {round_} of {who}'}}\n", env={"ANSIBLE_LOG_PATH": str(log)}, limit="h1"
            )
            assert result.ok, result.stdout
    one, two = (log.read_text() for log in logs)
    assert "round 0 of one" in one
    assert "round 1 of one" in one
    assert "of two" not in one
    assert "round 1 of two" in two
    assert "of one" not in two


def test_a_log_that_was_moved_away_between_two_runs_is_begun_anew(project, tmp_path):
    log = tmp_path / "log"
    for word in ("first", "second"):
        assert project.run(f"- debug: {{msg: {word}}}\n", env={"ANSIBLE_LOG_PATH": str(log)}, limit="h1").ok
        assert word in log.read_text()
        log.rename(tmp_path / f"log.{word}")
    assert "second" not in (tmp_path / "log.first").read_text()
    assert not [name for name in os.listdir("/proc/self/fd") if _target(name).startswith(str(tmp_path))]


def _target(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


@pytest.mark.matrix
def test_what_ansible_says_of_its_configuration_is_said_in_every_run(projects, capfd):
    """And in none of a project to which it does not apply, nor on the program's stderr."""
    told, untold = projects("told"), projects("untold")
    told.write("ansible.cfg", "[defaults]\nforks = 3\n")
    told.folder.chmod(0o777)  # Ansible does not use ansible.cfg of such a folder, and says so
    counts = [project.run(NAME, limit="h1").stdout.count("world writable") for project in (told, told, untold, told)]
    assert counts == [1, 1, 0, 1]
    assert "world writable" not in capfd.readouterr().err


def test_a_deprecated_setting_is_told_of_once_in_every_run(projects):
    """ansible-core tells of it when it is imported, and again when the setting is read, unless it remembers that."""
    project = projects("told")
    project.write("ansible.cfg", "[defaults]\njinja2_extensions = jinja2.ext.do\n")
    counts = [project.run(NAME, limit="h1").stdout.count("JINJA2_EXTENSIONS") for _ in range(2)]
    assert counts == [1, 1]


@pytest.mark.matrix
def test_a_deprecated_setting_that_one_task_reads_is_not_told_of_by_the_next(projects):
    """ansible-core collects what it will tell of a setting in lists of the process, and a worker's next plugin empties them."""
    project = projects("managed")
    project.write("ansible.cfg", "[defaults]\nansible_managed = by us\n")
    project.write("text.j2", "{{ ansible_managed }}\n")
    written = "- template: {src: text.j2, dest: '{{ playbook_dir }}/text'}\n- ping: {}\n- ping: {}\n"
    run = project.run(written, limit="h1")
    assert run.rc == 0, run.stdout
    assert (project.folder / "text").read_text() == "by us\n"
    ends = [one.event_data["res"] for one in run.events if one.event == "runner_on_ok"]
    assert len(ends) == 3
    assert [res["deprecations"] for res in ends if res.get("deprecations")] == []
    assert run.stdout.count("MANAGED_STR") <= 1  # from 2.19 on, when ansible-core is imported


def test_runs_at_once_are_both_told_of_their_configuration(projects):
    project = projects("told")
    project.write("ansible.cfg", "[defaults]\nforks = 3\n")
    project.folder.chmod(0o777)
    waits = f"- wait_for: {{path: '{project.folder}/go on'}}\n"
    first = project.start(waits, limit="h1")
    try:
        next(event for event in first.events() if event.event == "runner_on_start")
        second = project.run(NAME, name="second.yml", limit="h1")
    finally:
        project.write("go on", "")
    assert [one.stdout.count("world writable") for one in (first.wait(), second)] == [1, 1]
