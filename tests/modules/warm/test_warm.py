# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules in forks of an interpreter that is kept warm: the same results as cold, and nothing left of it afterwards."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import forkless
import sshd_targets
from forkless.modules import dispatch
from forkless.modules.warm import execution, program

HERE = pathlib.Path(__file__).parents[1]
SOURCE = HERE.parent.parent / "src"
STOCK = [str(pathlib.Path(sys.executable).parent / "ansible-playbook")]
OURS = [sys.executable, "-m", "forkless", "playbook"]
MARK = "sys,zlib"  # in the command line of every warm interpreter

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]


def call(command, book, work, *more, **environ):
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_NOCOLOR": "1", **environ}
    extra = {"work": str(work), "ansible_python_interpreter": sys.executable}
    return subprocess.run(
        [*command, "-i", "localhost,", "-e", json.dumps(extra), *more, str(book)],
        env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def plain(value, work):
    """Without what no two runs have in common."""
    if isinstance(value, dict):
        left_out = {"start", "end", "delta", "ansible_job_id", "results_file", "elapsed", "frame"}
        return {key: plain(one, work) for key, one in value.items() if key not in left_out}
    if isinstance(value, list):
        return [plain(one, work) for one in value]
    if isinstance(value, str):
        value = value.replace(str(work), "WORK")
        return re.sub(r"Traceback.*?(?=\n\w)", "Traceback", value, flags=re.DOTALL)
    return value


@pytest.mark.matrix_newest
def test_modules_with_odd_ways_end_as_they_do_on_stock(one_python_for_each_minor, tmp_path):
    found = {}
    for name, command in (("theirs", STOCK), ("ourown", OURS)):
        (tmp_path / name).mkdir()
        done = call(command, HERE / "odd" / "odd.yml", tmp_path / name, ANSIBLE_PIPELINING="1")
        assert done.returncode == 0, done.stdout + done.stderr
        found[name] = plain(json.loads((tmp_path / f"{name}.json").read_text()), tmp_path / name)
    different = {
        name: (found["theirs"][name], found["ourown"][name])
        for name in found["theirs"]
        if found["theirs"][name] != found["ourown"][name]
    }
    # Whether a file that a module never closed was written to its end is up to how an interpreter ends; ours never loses it.
    assert base64.b64decode(found["ourown"]["unclosed2"]["content"]) == b"flushed at the end"
    different.pop("unclosed2", None)
    assert not different, json.dumps(different, indent=1)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "module_utils").mkdir()

    def write(tasks):
        (tmp_path / "play.yml").write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}")
        (tmp_path / "hosts").write_text(
            f"a ansible_connection=local ansible_python_interpreter={sys.executable}\n"
            f"b ansible_connection=local ansible_python_interpreter={sys.executable}\n"
        )
        return {"playbook": "play.yml", "inventory": "hosts", "engine": "threads", "cwd": tmp_path}

    write.folder = tmp_path
    return write


MODULE = """#!/usr/bin/python
import os, time
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.mine import VALUE
module = AnsibleModule({"path": {"type": "str"}})
if module.params["path"]:
    with open(module.params["path"], "a") as file:
        file.write("%d %d\\n" % (os.getpid(), os.getppid()))
    time.sleep(60)
module.exit_json(value=VALUE, mine=1, parent=os.getppid())
"""


def values(result, key):
    return [
        event.event_data["res"][key]
        for event in result.events
        if event.event == "runner_on_ok" and key in event.event_data["res"]
    ]


def test_one_interpreter_serves_all_hosts_of_this_machine(project):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    result = forkless.run(**project("    - mine:\n    - mine:\n"))
    result.raise_for_failures()
    parents = values(result, "parent")
    assert len(parents) == 4
    assert len(set(parents)) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(parents[0], 0)


def test_a_changed_module_and_a_changed_module_util_are_seen_by_the_next_run(project):
    (project.folder / "library/mine.py").write_text(MODULE)
    util = project.folder / "module_utils/mine.py"
    util.write_text("VALUE = 1\n")
    spec = project("    - mine:\n")
    assert set(values(forkless.run(**spec), "value")) == {1}
    util.write_text("VALUE = 2\n")
    assert set(values(forkless.run(**spec), "value")) == {2}
    (project.folder / "library/mine.py").write_text(MODULE.replace("mine=1", "mine=2"))
    assert set(values(forkless.run(**spec), "mine")) == {2}


ACTION = """
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        shell = self._connection._shell
        first = shell.tmpdir
        self._execute_module("ansible.builtin.ping", module_args={}, task_vars=task_vars)
        if not self._task.args["asks"]:
            return {"first": first}
        folder = shell.tmpdir
        if folder is None:
            return {"first": first, "folder": None}
        self._transfer_data(shell.join_path(folder, "text"), "sent")
        said = self._low_level_execute_command("cat %stext; ls -ld %s" % (folder, folder))
        return {"first": first, "folder": folder, "said": said["stdout"], "again": shell.tmpdir}
"""


@pytest.mark.matrix
def test_an_action_finds_the_folder_that_stock_makes_for_its_module(project):
    (project.folder / "action_plugins").mkdir()
    (project.folder / "action_plugins/puts.py").write_text(ACTION)
    tmp = project.folder / "tmp"
    spec = project(
        f"    - puts: {{asks: '{{{{ item }}}}'}}\n      loop: [true, false, true]\n      vars: {{ansible_remote_tmp: {tmp}}}\n    - ping:\n"
    )
    result = forkless.run(**spec)
    result.raise_for_failures()
    found = [each for results in values(result, "results") for each in results]
    assert [each["first"] for each in found] == [None] * 6
    asked = [each for each in found if "folder" in each]
    assert len({each["folder"] for each in asked}) == 4
    for each in asked:
        assert each["folder"].startswith(f"{tmp}/ansible-tmp-")
        assert each["said"].startswith("sentdrwx------")
        assert each["again"] == each["folder"]
    assert list(tmp.iterdir()) == []


def test_with_pipelining_an_action_finds_no_folder_as_with_stock(project):
    (project.folder / "action_plugins").mkdir()
    (project.folder / "action_plugins/puts.py").write_text(ACTION)
    result = forkless.run(**project("    - puts: {asks: true}\n      vars: {ansible_pipelining: true}\n"))
    result.raise_for_failures()
    assert values(result, "folder") == [None, None]


@pytest.mark.parametrize("way", ["cold", "FORKLESS_DISABLE"])
def test_it_can_be_switched_off(project, way):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    off = {"modules": "cold"} if way == "cold" else {"env": {"FORKLESS_DISABLE": "user-cache,warm-modules"}}
    result = forkless.run(**project("    - mine:\n    - mine:\n"), **off)
    result.raise_for_failures()
    assert len(set(values(result, "parent"))) == 4


OTHER_USER = """
    - {mine: , name: first, become: true, become_user: nobody, register: first}
    - {mine: , name: second, become: true, become_user: nobody}
    - {name: %s}
    - {mine: , name: third, become: true, become_user: nobody}
"""
OTHERS = {
    "another user": "other, stat: {path: '/proc/{{ first.parent }}'}",
    "a shell": "other, raw: 'test -e /proc/{{ first.parent }} && echo there', failed_when: false",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user without a password, which only root may")
@pytest.mark.parametrize("other", OTHERS)
def test_the_interpreter_of_a_user_who_may_be_removed_is_gone_before_anybody_else_comes(project, other):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    told = {"ansible_python_interpreter": "/usr/bin/python3"}
    result = forkless.run(
        **project(OTHER_USER % OTHERS[other]), limit="a", extra_vars=told, env={"ANSIBLE_PIPELINING": "1"}
    )
    result.raise_for_failures()
    first, second, third = values(result, "parent")
    assert first == second != third
    [seen] = [
        one.event_data["res"]
        for one in result.events
        if one.event == "runner_on_ok" and one.event_data["task"] == "other"
    ]
    assert "there" not in seen.get("stdout", "")
    assert not seen.get("stat", {}).get("exists")


@pytest.mark.matrix_ends
def test_become_is_given_as_much_time_as_by_ansible_itself(project):
    slow = project.folder / "slow"
    slow.write_text('#!/bin/sh\nsleep 4\nwhile [ $1 != /bin/sh ]; do shift; done\nexec "$@"\n')
    slow.chmod(0o755)
    told = {
        "ansible_become": True,
        "ansible_become_user": "nobody",
        "ansible_become_exe": str(slow),
        "ansible_local_become_success_timeout": 1,
    }
    project("    - ping:\n")
    # In a program of its own: Ansible leaves what it has given up to itself.
    line = [sys.executable, "-m", "forkless", "playbook", "-i", "hosts", "-l", "a", "-e", json.dumps(told), "play.yml"]
    said = []
    for off in ("", "warm-modules"):
        environ = {**os.environ, "ANSIBLE_TIMEOUT": "1", "ANSIBLE_PIPELINING": "1", "FORKLESS_DISABLE": off}
        done = subprocess.run(line, cwd=project.folder, env=environ, capture_output=True, text=True, check=False)
        said.append((done.returncode, re.sub(r"\b[a-z]{32}\b", "#", done.stdout)))
    assert said[0] == said[1]
    waits = importlib.metadata.version("ansible-core").startswith(
        "2.18."
    )  # who does not ask for a password has all the time there
    assert (said[0][0] == 0) is waits


@pytest.mark.skipif(os.geteuid() != 0, reason="makes and removes a user")
def test_a_user_whose_modules_ran_warm_can_be_removed(project):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    name = sshd_targets.account_name()
    tasks = f"""
    - user: {{name: {name}, create_home: false}}
    - mine:
      become: true
      become_user: {name}
    - user: {{name: {name}, state: absent}}
    """
    told = {"ansible_python_interpreter": "/usr/bin/python3"}
    try:
        with sshd_targets.accounts():
            result = forkless.run(**project(tasks), limit="a", extra_vars=told, env={"ANSIBLE_PIPELINING": "1"})
        assert result.ok, result.stdout
        assert values(result, "parent")
    finally:
        subprocess.run(["userdel", name], capture_output=True, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes and removes users")
def test_many_users_whose_modules_ran_warm_at_once_can_be_removed_at_once(project):
    """Each on a host of its own, which are one machine: whoever comes first ends the interpreters of all, and the others wait for it."""
    names = [sshd_targets.account_name() for _ in range(10)]
    hosts = "\n".join(f"u{number} who={name} ansible_connection=local" for number, name in enumerate(names))
    tasks = """
    - user: {name: '{{ who }}', create_home: false}
      throttle: 1
    - ping:
      become: true
      become_user: '{{ who }}'
    - command: userdel {{ who }}
      register: removed
      until: "removed.rc == 0 or 'lock' not in removed.stderr"
      retries: 50
      delay: 0.1
    """
    told = {"ansible_python_interpreter": "/usr/bin/python3"}
    try:
        spec = project(tasks)
        (project.folder / "hosts").write_text(hosts + "\n")
        with sshd_targets.accounts():
            result = forkless.run(**spec, forks=10, extra_vars=told, env={"ANSIBLE_PIPELINING": "1"})
        assert result.ok, result.stdout
    finally:
        for name in names:
            subprocess.run(["userdel", name], capture_output=True, check=False)


def test_the_command_line_is_shown_to_who_asks(project):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    result = forkless.run(**project("    - mine:\n"), limit="a", verbosity=3)
    result.raise_for_failures()
    shown = [line for line in result.stdout.splitlines() if "EXEC (warm)" in line]
    assert shown and all(
        sys.executable in line and "ansible.legacy.mine" in line and "zlib" not in line for line in shown
    ), shown


def wait_for(check, what):
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.05)  # looks again; the deadline is generous
    raise AssertionError(what)


def gone(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def pids(path):
    return [int(word) for word in path.read_text().split()] if path.exists() and path.read_text().endswith("\n") else []


def test_a_task_that_times_out_is_ended_with_all_it_started(project):
    where, script = project.folder / "pids", project.folder / "deaf.sh"
    script.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ > {where}\nsleep 300 & sleep 300\nsleep 300\n")
    script.chmod(0o755)
    result = forkless.run(**project(f"    - ping:\n    - command: {script}\n      timeout: 20\n"), limit="a")
    assert result.rc == 2
    (shell,) = pids(where)
    wait_for(lambda: gone(shell), "the shell is still there")


def test_a_run_that_is_cancelled_ends_what_its_modules_started(project):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    where = project.folder / "pids"
    run = forkless.start(**project(f"    - mine: {{path: {where}}}\n"), limit="a")
    module, warm = wait_for(lambda: pids(where), "the module did not start")
    run.cancel()
    run.wait()
    wait_for(lambda: gone(module) and gone(warm), "something is still there")


def test_a_host_whose_shell_does_not_exist_is_unreachable_as_with_stock(project):
    tasks = "    - ping:\n      vars: {ansible_shell_executable: /nonexistent/sh}\n"
    result = forkless.run(**project(tasks), limit="a")
    assert result.rc == 4, result.stdout
    assert "Failed to create temporary directory" in result.stdout


def test_a_module_whose_interpreter_went_away_is_unreachable_and_not_run_twice(project):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    where = project.folder / "pids"
    run = forkless.start(**project(f"    - mine: {{path: {where}}}\n"), limit="a")
    module, warm = wait_for(lambda: pids(where), "the module did not start")
    os.kill(warm, signal.SIGKILL)
    result = run.wait()
    os.kill(module, signal.SIGKILL)
    assert result.rc == 4
    assert len(pids(where)) == 2
    assert "went away while it ran" in result.stdout


@pytest.mark.parametrize("keeps", ['sleep 600 | {} "$@"', 'exec {} "$@" </dev/null'], ids=["open", "ended"])
def test_modules_run_cold_where_a_wrapper_of_python_keeps_stdin(project, monkeypatch, keeps):
    """`open`: the program and the order stay in the pipe for ever, and the wrapper's shell does not end either."""
    for module in (execution, program):
        monkeypatch.setattr(module, "BOOT", program.BOOT.replace(f"alarm({program.PATIENCE})", "alarm(1)"))
    wrapper, done = project.folder / "python", project.folder / "done"
    wrapper.write_text(
        f'#!/bin/sh\ncase $1 in -c) {keeps.format(sys.executable)};; *) exec {sys.executable} "$@";; esac\n'
    )
    wrapper.chmod(0o755)
    tasks = f"    - shell: echo once >> {done}\n    - ping:\n"
    variables = {"ansible_python_interpreter": str(wrapper)}
    result = forkless.run(**project(tasks), limit="a", extra_vars=variables, timeout=240)
    assert result.rc == 0, result.stdout
    assert done.read_text() == "once\n"


WRAPPER = """#!{python}
import os, signal, sys
{before}
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    "before",
    ["pass", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGUSR2])", "signal.signal(signal.SIGALRM, signal.SIG_IGN)"],
    ids=["as usual", "blocked", "ignored"],
)  # fmt: skip
def test_modules_inherit_what_a_wrapper_of_python_did_to_signals(project, before):
    """An interpreter has an alarm until it serves, which must leave no trace."""
    wrapper = project.folder / "python"
    wrapper.write_text(WRAPPER.format(python=sys.executable, before=before))
    wrapper.chmod(0o755)
    found = []
    for modules in ("warm", "cold"):
        tasks = "    - command: grep -E '^Sig(Blk|Ign)' /proc/self/status\n"
        variables = {"ansible_python_interpreter": str(wrapper)}
        result = forkless.run(**project(tasks), limit="a", extra_vars=variables, modules=modules, timeout=240)
        assert result.rc == 0, result.stdout
        found.append(values(result, "stdout_lines"))
    assert found[0] == found[1]


def test_an_interpreter_that_is_killed_between_two_tasks_is_started_again(project):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    # Dead before the next task comes, with the shell that may have started it and holds its stdin: of one that dies while it is given an
    # order nobody knows how far it got.
    over = (
        "s=$(cut -d' ' -f6 /proc/{{ r.parent }}/stat); kill -9 {{ r.parent }}; "
        "while grep -qs '^State:.[^Z]' /proc/{{ r.parent }}/status /proc/$s/status; do sleep 0.05; done"
    )
    tasks = f'    - mine:\n      register: r\n    - raw: "{over}"\n    - mine:\n'
    result = forkless.run(**project(tasks), limit="a")
    assert result.rc == 0, result.stdout
    first, second = values(result, "parent")
    assert first != second


def test_a_controller_that_is_killed_leaves_no_interpreter_behind(project):
    (project.folder / "library/mine.py").write_text(MODULE)
    (project.folder / "module_utils/mine.py").write_text("VALUE = 1\n")
    where = project.folder / "pids"
    project(f"    - mine: {{path: {where}}}\n")
    child = subprocess.Popen(
        [*OURS, "-i", "hosts", "-l", "a", "play.yml"], cwd=project.folder, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    module, warm = wait_for(lambda: pids(where), "the module did not start")
    child.kill()
    child.wait()
    wait_for(lambda: gone(warm), "the warm interpreter is still there")
    os.kill(module, signal.SIGKILL)


LYING = """#!/usr/bin/python
import os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({})
with open("/proc/self/cmdline") as file:
    module.exit_json(copied="AnsiballZ_mine.py" in file.read())
"""


def test_who_says_that_nothing_is_to_be_pipelined_gets_the_module_copied(project):
    (project.folder / "library/mine.py").write_text(LYING)
    said = "      vars: {ansible_pipelining: %s}\n"
    tasks = "    - mine:\n" + "".join("    - mine:\n" + said % value for value in ("false", "true", "'0'"))
    result = forkless.run(**project(tasks), limit="a")
    result.raise_for_failures()
    assert values(result, "copied") == [False, True, False, True]


@pytest.mark.parametrize(
    ("pipelined", "origin", "warm"),
    [
        (False, "default", True),
        (True, "default", True),
        (True, "env: ANSIBLE_PIPELINING", True),
        (False, "env: ANSIBLE_PIPELINING", False),
        (False, "/etc/ansible/ansible.cfg", False),
    ],
)
def test_only_what_was_said_counts_and_not_what_is_so_by_default(pipelined, origin, warm):
    class Connection:
        def get_option_and_origin(self, _name):
            return pipelined, origin

    assert dispatch._may_stay_away(Connection()) is warm
