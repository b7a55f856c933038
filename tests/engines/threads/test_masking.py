# SPDX-License-Identifier: GPL-3.0-or-later
"""Since 2.22 ansible-core masks secrets wherever they are shown: those of a run, in that run, and whatever a stop interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import forkless
from engines_support import messages
from forkless.core import versions
from forkless.core.run_context import SCOPE
from forkless.engines.threads import context
from forkless.engines.threads.patches import secret_masker
from forkless.engines.threads.workers import interrupt
from forkless.patching import seams

pytestmark = [
    pytest.mark.spawns,
    pytest.mark.matrix,
    pytest.mark.skipif(
        versions.nearest(seams.version()) not in versions.since("2.22"), reason="this ansible-core has no masker"
    ),
]


def test_a_secret_of_one_run_is_masked_in_that_run_only(project):
    project.write("sesame.yml", "word: open-sesame\n")
    head = "vars_files: [sesame.yml]"
    first = project.run("- debug: {msg: '{{ word | register_secret }}'}\n", head=head, limit="h1")
    second = project.run("- debug: {msg: '{{ word }}'}\n", head=head, limit="h1")
    assert messages(first) == {"h1": "$REDACTED$"}, first.stdout
    assert messages(second) == {"h1": "open-sesame"}, second.stdout


def test_passwords_that_a_run_was_given_are_masked_as_if_they_had_been_typed(project):
    given = {"conn_pass": "hush-conn", "become_pass": "hush-become"}
    tasks = "- debug: {msg: 'hush-conn hush-become hush-vault'}\n"
    result = project.run(tasks, limit="h1", passwords=given, vault_password="hush-vault")
    assert result.rc == 0, result.stdout
    assert messages(result) == {"h1": "$REDACTED$ $REDACTED$ $REDACTED$"}
    assert "hush" not in result.stdout


def test_secrets_of_our_ssh_plugin_are_masked_in_every_run_that_gives_them_to_it(project):
    """The second run finds the plugin and its options in caches."""
    tasks = """
    - ping:
      ignore_errors: true
      ignore_unreachable: true
      vars:
        ansible_connection: forkless.core.ssh
        ansible_host: 127.0.0.1
        ansible_port: 1
        ansible_password: hush-word
        ansible_private_key: hush-key
        ansible_private_key_passphrase: hush-phrase
    - debug: {msg: 'hush-word hush-key hush-phrase'}
    """
    for _ in range(2):
        result = project.run(textwrap.dedent(tasks), limit="h1")
        assert messages(result)["h1"] == "$REDACTED$ $REDACTED$ $REDACTED$", result.stdout
        assert "hush" not in result.stdout


def test_what_a_task_prints_is_masked_while_it_runs_and_so_is_its_name(project):
    project.write("said.txt", "the word is open-sesame\n")
    tasks = """
    - set_fact: {word: "{{ 'open-sesame' | register_secret }}"}
      no_log: true
    - name: "say {{ word }}"
      shell: cat said.txt; sleep 0.5; cat said.txt
      args: {chdir: "{{ playbook_dir }}"}
    """
    result = project.run(textwrap.dedent(tasks), limit="h1", live_output=True)
    printed = [event for event in result.events if event.event == "runner_on_output"]
    assert result.rc == 0, result.stdout
    assert [event.event_data["text"] for event in printed] == ["the word is $REDACTED$"] * 2
    assert not [event for event in printed if "open-sesame" in json.dumps(event.as_dict())]


def test_a_secret_in_a_path_a_role_or_a_pattern_is_masked_in_events_and_artifacts(project, tmp_path):
    project.write("parts/open-sesame/one.yml", "- {name: inside, command: echo hi, notify: tell}\n")
    project.write("roles/open-sesame/tasks/main.yml", "- {name: in the role, command: echo hi}\n")
    tasks = """
    - set_fact: {word: "{{ 'open-sesame' | register_secret }}"}
      no_log: true
    - include_tasks: "parts/{{ word }}/one.yml"
    - include_role: {name: "{{ word }}"}
    """
    handlers = "handlers:\n  - {name: tell, debug: {msg: told}}"
    options = {"limit": "h1", "live_output": True, "artifacts": tmp_path / "artifacts"}
    result = project.run(textwrap.dedent(tasks), head=handlers, **options)
    assert result.rc == 0, result.stdout
    paths = {event.event_data.get("task_path", "") for event in result.events if event.task == "inside"}
    assert {path.removeprefix(str(project.folder)) for path in paths} == {"/parts/$REDACTED$/one.yml:1"}
    assert {event.event_data.get("role") for event in result.events if event.task == "in the role"} == {"$REDACTED$"}
    assert not [event.event for event in result.events if "open-sesame" in json.dumps(event.as_dict())]
    written = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not [path for path in written if "open-sesame" in path.read_text()]


def test_a_secret_in_the_arguments_of_a_task_is_masked_in_every_event_that_shows_them(project):
    """Ansible shows arguments as they stand in the playbook if it was told to; stock prints them masked."""
    tasks = """
    - set_fact: {word: "{{ ('open-' ~ 'sesame') | register_secret }}"}
      no_log: true
    - name: Say
      shell: echo one; sleep 0.5; true open-sesame
    """
    env = {"ANSIBLE_DISPLAY_ARGS_TO_STDOUT": "1"}
    result = project.run(textwrap.dedent(tasks), limit="h1", live_output=True, env=env)
    assert result.rc == 0, result.stdout
    shown = {event.event: event.event_data["task_args"] for event in result.events if event.task == "Say"}
    masked = "_raw_params=echo one; sleep 0.5; true $REDACTED$"
    assert shown == dict.fromkeys(
        ("playbook_on_task_start", "runner_on_start", "runner_on_output", "runner_on_ok"), masked
    )
    assert "open-sesame" not in result.stdout


def test_lines_of_a_secret_that_only_the_controller_knows_are_masked_while_a_task_prints_them(project):
    long = "x" * 4090 + "0123456789" * 10  # is cut in its middle
    project.write("key.txt", "first of the key\nsecond of the key\n")
    project.write("long.txt", f"{long}\n")
    tasks = f"""
    - set_fact: {{word: "{{{{ lookup('file', 'key.txt') | register_secret }}}}{{{{ '{long[10:]}' | register_secret }}}}"}}
      no_log: true
    - name: Say
      shell: head -1 key.txt; sleep 0.5; sed 's/^/    /; s/$/\\r/' key.txt; sleep 0.5; cat long.txt
      args: {{chdir: "{{{{ playbook_dir }}}}"}}
    """
    result = project.run(textwrap.dedent(tasks), limit="h1", live_output=True)
    assert result.rc == 0, result.stdout
    printed = [event.event_data["text"] for event in result.events if event.event == "runner_on_output"]
    assert "\n".join(printed).split("\n") == ["$REDACTED$", *["    $REDACTED$"] * 2, "xxxxxxxxxx$REDACTED$\u2026"]


def test_the_name_of_a_task_that_is_stuck_is_told_without_secrets(project):
    gate = project.folder / "gate"
    tasks = f"""
    - set_fact: {{word: "{{{{ 'open-sesame' | register_secret }}}}"}}
      no_log: true
    - name: "say {{{{ word }}}}"
      wait_for: {{path: {gate}, timeout: 300}}
    """
    run = project.start(textwrap.dedent(tasks), limit="h1", stuck_after=0.5)
    event = next(event for event in run.events() if event.event == "worker_stuck")
    gate.touch()
    assert run.wait(240).rc == 0
    assert event.event_data["task"] == "say $REDACTED$"


def test_a_program_that_names_secrets_is_started_for_the_run_and_what_it_names_is_masked(project):
    script = "#!/bin/sh\necho '{version: 1, secrets: ['$OF_THIS_RUN']}'\n"
    path = project.write("names", script, mode=0o755)
    result = project.run(
        "- debug: {msg: open-sesame}\n",
        limit="h1",
        env={"_ANSIBLE_SECRETS_INPUT_FILES": str(path), "OF_THIS_RUN": "open-sesame"},
    )
    assert messages(result) == {"h1": "$REDACTED$"}, result.stdout


def test_a_program_that_names_secrets_ends_with_a_run_that_is_cancelled(project):
    pipe = project.folder / "begun"
    os.mkfifo(pipe)
    path = project.write("names", f"#!/bin/sh\necho $$ > {pipe}\nexec sleep 600\n", mode=0o755)
    run = project.start("- debug: {msg: hi}\n", limit="h1", env={"_ANSIBLE_SECRETS_INPUT_FILES": str(path)})
    pid = int(pipe.read_text())  # waits until the program opens it
    run.cancel()
    assert run.wait(60).status is forkless.Status.CANCELED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_list_of_trackers_does_not_grow_with_the_tasks(project):
    project.write(
        "filter_plugins/trackers.py",
        """
        from ansible.module_utils._internal._secrets import _secret_masker

        class FilterModule:
            def filters(self):
                return {"trackers": lambda _: len(_secret_masker._new_secret_trackers)}
        """,
    )
    tasks = "- debug: {msg: '{{ 1 | trackers }}'}\n" * 12
    result = project.run(tasks)
    assert max(messages(result).values()) < 36, result.stdout  # of 72 tasks; those in cycles wait for the collector


class Held(context.ThreadScope):
    """A worker that holds a lock, as far as it matters for being interrupted."""

    def __init__(self, lock):
        self.interrupt = interrupt.Interrupt()
        self.inside, self.go, self.ended = threading.Event(), threading.Event(), []
        self._lock = lock
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        SCOPE.set(self)
        try:
            self.interrupt.begin()
            with self._lock:
                self.inside.set()
                self.go.wait(240)
                self.ended.append("let go")
        except interrupt.WorkerStopped:
            self.ended.append("stopped")
        finally:
            self.interrupt.end()

    run_context = None

    @property
    def worker(self):
        return self


def test_a_worker_that_holds_the_maskers_lock_is_stopped_after_it_has_let_go():
    lock = secret_masker.MaskerLock()
    worker = Held(lock)
    worker.thread.start()
    assert worker.inside.wait(240)
    worker.interrupt.trigger(interrupt.WorkerStopped)
    worker.go.set()
    worker.thread.join(240)
    assert worker.ended == ["let go", "stopped"]
    with lock:
        pass


def test_every_worker_of_a_run_takes_that_lock(project):
    project.write(
        "filter_plugins/lock.py",
        """
        from ansible.module_utils._internal._secrets import _secret_masker

        class FilterModule:
            def filters(self):
                return {"lock": lambda _: type(_secret_masker._lock).__module__}
        """,
    )
    result = project.run("- debug: {msg: '{{ 1 | lock }}'}\n", limit="h1,h2")
    assert messages(result) == dict.fromkeys(("h1", "h2"), secret_masker.__name__), result.stdout


def test_importing_ansible_core_registers_nothing_with_the_programs_forks():
    line = (
        "import os\n"
        "os.register_at_fork = lambda **hooks: print('registered', *hooks.values())\n"
        "from forkless.engines.threads import importing\n"
        "importing.import_ansible(ours=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert "ForkSafeLock" not in done.stdout


def test_the_programs_action_for_sigusr1_stays_its_own(project):
    def mine(_number, _frame):
        raise AssertionError("nobody sent it")

    before = signal.signal(signal.SIGUSR1, mine)
    try:
        assert project.run("- ping:\n", limit="h1").rc == 0
        assert project.run("- ping:\n", limit="h1", modules="in-process").rc == 0
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_sigusr1_makes_the_command_write_its_stacks_as_stock_does(project, tmp_path):
    project.write(
        "filter_plugins/pid.py",
        """
        import os

        class FilterModule:
            def filters(self):
                return {"pid": lambda _: os.getppid()}  # a worker's parent is the play
        """,
    )
    spec = project.spec("- command: kill -USR1 {{ 1 | pid }}\n- debug: {msg: 'pid {{ 1 | pid }}.'}\n")
    home = tmp_path / "home"
    line = [sys.executable, "-m", "forkless", "playbook", "-i", spec["inventory"], "-l", "h1", spec["playbook"]]
    done = subprocess.run(
        line,
        cwd=spec["cwd"],
        env={**os.environ, "ANSIBLE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pid = done.stdout.partition("pid ")[2].partition(".")[0]
    assert "Thread stacktraces" in (home / "debug" / f"ansible-{pid}.debug").read_text()


def test_secrets_in_the_result_of_a_job_are_told_on_and_not_shown(monkeypatch):
    from ansible.module_utils import secrets

    from ansible_collections.forkless.core.plugins.module_utils import jobs

    told = []
    monkeypatch.setattr(secrets, "register_secrets", told.extend)
    body = json.dumps({"stdout": "open-sesame", "_ansible_new_secrets": ["open-sesame"]})
    assert jobs._object(body) == {"stdout": "open-sesame"}
    assert told == ["open-sesame"]
