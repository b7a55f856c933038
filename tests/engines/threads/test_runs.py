# SPDX-License-Identifier: GPL-3.0-or-later
"""Run after run, and runs at once, in one process: each obeys its own."""

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import inspect
import locale
import os
import signal
import subprocess
import sys
import threading
import types
import warnings

import pytest

import forkless
from engines_support import messages, shown, world_of_runs
from forkless.patching import seams

pytestmark = pytest.mark.spawns

SAYS = '- debug: {msg: "{{ %s }}"}\n'


@pytest.mark.matrix
def test_extra_vars_check_diff_tags_limit_forks_and_verbosity_are_each_runs_own(project):
    tasks = """
        - debug: {msg: "{{ who | default('nobody') }} {{ ansible_check_mode }} {{ ansible_diff_mode }} {{ ansible_forks }} {{ ansible_verbosity }} {{ ansible_limit | default('all') }}"}
        - debug: {msg: tagged}
          tags: [special]
    """
    first = project.run(
        tasks, extra_vars={"who": "first"}, check=True, diff=True, forks=2, verbosity=1, limit="h1", skip_tags="special"
    )
    second = project.run(tasks, limit="h2")
    third = project.run(tasks, tags="special")
    assert messages(first) == {"h1": "first True True 2 1 h1"}
    assert messages(second) == {"h2": "tagged"}
    assert [e.event_data["res"]["msg"] for e in second.events if e.event == "runner_on_ok"][
        0
    ] == "nobody False False 5 0 h2"
    assert set(messages(third).values()) == {"tagged"}
    assert len([e for e in third.events if e.event == "runner_on_ok"]) == 6


def encrypted(text, password):
    from ansible.parsing.vault import VaultLib, VaultSecret

    secret = VaultSecret(password.encode())
    secret.load()
    return VaultLib([("default", secret)]).encrypt(text, secret=secret).decode()


@pytest.mark.matrix
def test_vault_secrets_of_one_run_do_not_open_the_next_ones_vault(project):
    project.run("- debug: {msg: hi}\n")  # so that Ansible is imported
    project.write("secret.yml", encrypted("word: treasure\n", "right"))
    tasks = SAYS % "word"
    opened = project.run(tasks, head="vars_files: [secret.yml]", vault_password="right", limit="h1")
    assert messages(opened) == {"h1": shown("treasure")}, opened.stdout
    for password in ("wrong", None):
        refused = project.run(tasks, head="vars_files: [secret.yml]", vault_password=password, limit="h1")
        assert refused.rc != 0
        assert "treasure" not in refused.stdout


def test_the_inventory_and_group_vars_are_read_anew(project):
    project.write("group_vars/all.yml", "colour: red\n")
    tasks = SAYS % "colour"
    assert set(messages(project.run(tasks)).values()) == {"red"}
    project.write("group_vars/all.yml", "colour: blue\n")
    assert set(messages(project.run(tasks)).values()) == {"blue"}
    (project.folder / "group_vars/all.yml").unlink()
    assert project.run(tasks).rc == 2
    project.write("group_vars/all/new.yml", "colour: green\n")
    assert set(messages(project.run(tasks)).values()) == {"green"}


MODULE = "#!/usr/bin/python\nfrom ansible.module_utils.basic import AnsibleModule\nAnsibleModule(argument_spec={}).exit_json(msg='%s')\n"
PLUGIN = (
    "from ansible.plugins.action import ActionBase\nclass ActionModule(ActionBase):\n"
    "    def run(self, tmp=None, task_vars=None):\n        return dict(msg='%s')\n"
)
CALLBACK = (
    "from ansible.plugins.callback import CallbackBase\nclass CallbackModule(CallbackBase):\n    CALLBACK_VERSION = 2.0\n"
    "    CALLBACK_TYPE = 'notification'\n    CALLBACK_NAME = 'told'\n"
    "    def v2_playbook_on_start(self, playbook):\n        self._display.display('callback of %s')\n"
)


@pytest.mark.matrix
def test_same_named_plugins_and_modules_of_two_projects_are_each_ones_own(projects):
    one, two, bare = projects("one"), projects("two"), projects("bare")
    for who in (one, two):
        name = who.folder.name
        who.write("library/samemod.py", MODULE % name)
        who.write("action_plugins/same.py", PLUGIN % name)
        who.write(
            "filter_plugins/samefilter.py",
            f"class FilterModule:\n    def filters(self):\n        return {{'same': lambda x: '{name}'}}\n",
        )
        who.write("callback_plugins/told.py", CALLBACK % name)
    tasks = "- samemod:\n- same:\n- debug: {msg: \"{{ 'x' | same }}\"}\n"
    for who in (one, two, one):
        result = who.run(tasks, limit="h1")
        assert result.rc == 0, result.stdout
        said = [e.event_data["res"]["msg"] for e in result.events if e.event == "runner_on_ok"]
        assert said == [who.folder.name] * 3
        assert f"callback of {who.folder.name}" in result.stdout
    result = bare.run("- debug: {msg: hi}\n", limit="h1")
    assert "callback of" not in result.stdout
    assert bare.run("- same:\n", limit="h1").rc != 0
    assert not [name for name in sys.modules if name.endswith((".same", ".samefilter", ".told"))]


def test_a_changed_plugin_is_seen_by_the_next_run(project):
    for word in ("before", "after"):
        project.write("action_plugins/same.py", PLUGIN % word)
        assert messages(project.run("- same:\n", limit="h1")) == {"h1": word}


def test_eight_runs_at_once_share_nothing(projects):
    """Different extra vars, vault passwords, inventories and outputs; twenty rounds."""
    projects("warm").run("- debug: {msg: hi}\n")
    crowd = []
    for n in range(8):
        who = projects(f"p{n}", hosts=2)
        who.write("hosts.ini", f"p{n}a\np{n}b\n[all:vars]\nansible_connection=local\n")
        who.write("secret.yml", encrypted(f"word: secret{n}\n", f"password{n}"))
        crowd.append(who)
    tasks = SAYS % "word ~ ' ' ~ number ~ ' ' ~ inventory_hostname ~ ' ' ~ ansible_check_mode"

    def one(n):
        who = crowd[n]
        return who.run(
            tasks,
            head="vars_files: [secret.yml]",
            vault_password=f"password{n}",
            extra_vars={"number": n},
            check=bool(n % 2),
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(int(os.environ.get("FORKLESS_ROUNDS", "20"))):
            results = list(pool.map(one, range(8)))
            for n, result in enumerate(results):
                assert result.rc == 0, result.stdout
                hosts = {f"p{n}a", f"p{n}b"}
                assert messages(result) == {host: f"secret{n} {n} {host} {bool(n % 2)}" for host in hosts}
                assert set(result.hosts) == hosts
                others = [f"secret{m}" for m in range(8) if m != n]
                assert not any(word in result.stdout for word in others)


BLOCKS = "- wait_for: {path: '%s', timeout: 60}\n"


def test_a_run_with_another_configuration_waits_its_turn_or_is_refused(projects):
    one, two = projects("one"), projects("two")
    two.write("ansible.cfg", "[defaults]\nforks = 3\n")
    gate = one.folder / "go"
    first = one.start(BLOCKS % gate, limit="h1")
    list(_until(first, "runner_on_start"))
    with pytest.raises(forkless.EngineBusyError, match=r"ansible\.cfg"):
        two.run(SAYS % "ansible_forks", limit="h1", wait=False)
    second = two.start(SAYS % "ansible_forks", limit="h1")
    same = one.start(SAYS % "ansible_forks", name="other.yml", limit="h1")
    assert not second.status.ended
    gate.touch()
    assert first.wait().rc == 0
    assert messages(second.wait()) == {"h1": 3}
    assert messages(same.wait()) == {"h1": 5}


def test_a_run_that_waits_its_turn_can_be_cancelled(projects):
    one, two = projects("one"), projects("two")
    two.write("ansible.cfg", "[defaults]\nforks = 3\n")
    gate = one.folder / "go"
    first = one.start(BLOCKS % gate, limit="h1")
    list(_until(first, "runner_on_start"))
    second = two.start(SAYS % "ansible_forks", limit="h1")
    second.cancel()
    assert second.wait().status is forkless.Status.CANCELED
    gate.touch()
    assert first.wait().rc == 0


def _until(run, name):
    for event in run.events():
        yield event
        if event.event == name:
            return


@pytest.mark.matrix
def test_settings_of_one_run_are_gone_in_the_next(project):
    tasks = SAYS % "ansible_forks"
    assert messages(project.run(tasks, env={"ANSIBLE_FORKS": "9"}, limit="h1")) == {"h1": 9}
    assert messages(project.run(tasks, limit="h1")) == {"h1": 5}
    assert "ANSIBLE_FORKS" not in os.environ


def test_alternating_configurations_are_imported_once_each(project):
    tasks = SAYS % "ansible_forks"
    seen = {3: set(), 4: set()}
    for turn in range(6):
        forks = 3 + turn % 2
        assert messages(project.run(tasks, env={"ANSIBLE_FORKS": str(forks)}, limit="h1")) == {"h1": forks}
        seen[forks].add(id(world_of_runs()["ansible.constants"]))
    assert [len(modules) for modules in seen.values()] == [1, 1]
    assert seen[3] != seen[4]


@pytest.mark.matrix
def test_the_program_is_untouched_during_and_after_a_run(project):
    def state():
        return {
            "stdio": (sys.stdout, sys.stderr, sys.stdin, sys.__stdout__),
            "inheritable": [os.get_inheritable(fd) for fd in (0, 1, 2)],
            "fds": [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)],
            "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
            "session": (os.getsid(0), os.getpgid(0)),
            "cwd": os.getcwd(),
            "environ": dict(os.environ),
            "locale": locale.setlocale(locale.LC_ALL),
            "filters": list(warnings.filters),
            "excepthook": (sys.excepthook, threading.excepthook),
            "functions": (os._exit, os.setsid, os.dup2, signal.signal),
            "starting threads": (threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit),
            "meta_path": list(sys.meta_path),
            "path_hooks": list(sys.path_hooks),
            "path": list(sys.path),
        }

    project.run("- debug: {msg: hi}\n", limit="h1")
    before = state()
    gate = project.folder / "go"
    run = project.start(BLOCKS % gate, limit="h1")
    list(_until(run, "runner_on_start"))
    during = state()
    gate.touch()
    assert run.wait().rc == 0
    after = state()
    # The collection finder is there while a play runs, and only then; so is what tells threads of plugins whose they are.
    for name in ("meta_path", "path_hooks", "starting threads"):
        during.pop(name)
        assert after[name] == before[name]
    assert during == {key: value for key, value in before.items() if key in during}
    assert after == before


@pytest.mark.matrix
def test_importing_ansible_does_not_touch_the_program(tmp_path):
    """In a fresh interpreter: the first run is the one that imports."""
    import subprocess

    (tmp_path / "p.yml").write_text("- hosts: localhost\n  gather_facts: false\n  tasks: [{debug: {msg: hi}}]\n")
    code = f"""
import locale, logging, os, sys, signal
write, errors = sys.stdout.buffer.write, sys.stdout.errors
before = (locale.setlocale(locale.LC_ALL), sys.stdout, errors, list(logging.root.handlers), dict(os.environ), os.get_inheritable(1))
import forkless
result = forkless.run({str(tmp_path / "p.yml")!r}, env={{"ANSIBLE_LOG_PATH": {str(tmp_path / "log")!r}}})
after = (locale.setlocale(locale.LC_ALL), sys.stdout, sys.stdout.errors, list(logging.root.handlers), dict(os.environ), os.get_inheritable(1))
assert before == after, (before, after)
assert "write" not in vars(sys.stdout.buffer) if hasattr(sys.stdout.buffer, "__dict__") else True
assert result.rc == 0, result.stdout
assert "hi" in open({str(tmp_path / "log")!r}).read()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


def test_collections_that_the_program_imported_are_there_again_and_do_no_harm(project):
    # Another configuration first, so that an ansible-core is put aside when the next run comes.
    assert project.run("- debug: {msg: hi}\n", limit="h1", env={"ANSIBLE_FORCE_COLOR": "0"}).rc == 0
    import ansible_collections.forkless.core.plugins as own  # by the program's own import system, without Ansible's finder

    project.write(
        "play.yml",
        "- hosts: h1\n  gather_facts: false\n  tasks:\n    - include_role: {name: forkless.core.async_job_load}\n      vars: {async_job_load_job_name: none}\n",
    )
    result = project.run(limit="h1")
    assert result.rc == 0, result.stdout
    assert sys.modules["ansible_collections.forkless.core.plugins"] is own


def test_all_seams_come_out_again(project):
    from forkless.engines.threads import importing
    from forkless.engines.threads.patches import table

    project.run("- debug: {msg: hi}\n", limit="h1")
    give_back = importing.set_aside()
    try:
        sys.modules.update(world_of_runs())
        assert seams.moved(table.SEAMS, seams.version()) == []
    finally:
        importing.purge()
        give_back()


class MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def bytes_in_use() -> int:
    """
    What C code has allocated and not freed; 0 where glibc does not tell.

    The resident size would not do: it grows by megabytes while nothing is kept, as each new thread's arena is cut up anew.
    """
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = MallocInfo
    told = ask()
    return int(told.uordblks + told.hblkhd)


def test_a_hundred_runs_leave_nothing_behind(project):
    def kept():
        gc.collect()
        return sys.getallocatedblocks(), bytes_in_use()

    def descriptors_and_threads():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    spec = project.spec("- debug: {msg: hi}\n- set_fact: {a: 1}\n")
    for _ in range(20):
        assert forkless.run(engine="threads", **spec).rc == 0
    before, parts, then = descriptors_and_threads(), [], kept()
    for _ in range(3):
        for _ in range(30):
            assert forkless.run(engine="threads", **spec).rc == 0
        now = kept()
        parts.append([more - less for more, less in zip(now, then, strict=True)])
        then = now
    assert descriptors_and_threads() == before
    blocks, in_use = (min(part) for part in zip(*parts, strict=True))
    # What each run leaves is in every part. A table of the interpreter that is enlarged once, by a megabyte and more, is in one of them.
    assert blocks < 30 * 20, f"Python objects and bytes more after each 30 runs: {parts}"
    assert in_use < 30 * 10_000, f"Python objects and bytes more after each 30 runs: {parts}"


def test_a_run_that_never_came_to_a_recap_says_why_in_a_sentence(project):
    project.spec("- debug:\n")
    nobody = project.run(limit="nobody")
    assert "no hosts to target" in nobody.sentence, nobody
    with pytest.raises(forkless.RunFailed, match="no-such-book.yml could not be found"):
        project.run(name="no-such-book.yml").raise_for_failures()
    # Where there is a recap it is the hosts that tell.
    assert project.run("- fail: {msg: '[ERROR]: no'}\n", limit="h1").sentence == ""


def test_walking_a_stack_after_a_run_does_not_trip_over_collections_that_were_ansibles(project, monkeypatch):
    monkeypatch.setitem(inspect._filesbymodname, "ansible_collections", "/where/ansible/had/it")
    project.run("- debug: {msg: hi}\n", limit="h1").raise_for_failures()
    monkeypatch.setitem(sys.modules, "ansible_collections", types.ModuleType("ansible_collections"))
    sys.modules["ansible_collections"].__file__ = None  # as a package without an __init__ has it
    assert inspect.stack()[0].function.startswith("test_walking_a_stack")


@pytest.mark.matrix
def test_a_module_sees_the_environment_of_its_run_however_it_is_run(project):
    project.write(
        "library/look.py",
        """\
        #!/usr/bin/python
        import os
        from ansible.module_utils.basic import AnsibleModule
        AnsibleModule({}).exit_json(msg=os.environ.get("OF_THIS_RUN"))
        """,
    )
    for modules in ("in-process", "warm", "cold"):
        result = project.run("- look:\n", limit="h1", modules=modules, env={"OF_THIS_RUN": modules})
        assert messages(result) == {"h1": modules}, result.stdout


@pytest.mark.matrix
def test_importing_ansible_core_looks_for_no_network_card():
    line = (
        "import uuid\n"
        "uuid.getnode = lambda: print('a program may be started')\n"
        "from forkless.engines.threads import importing\n"
        "importing.import_ansible(ours=False)\n"
        "from ansible.utils import vars\n"
        "assert len(vars.node_mac) == 12, vars.node_mac\n"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.matrix
@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_what_a_flag_asks_is_answered_in_the_runs_output_and_not_in_the_programs(project, capfd, flag):
    result = project.run("- debug: {msg: hi}\n", args=[flag])
    assert result.rc == 0
    assert result.stdout.startswith({"--version": "ansible-playbook [core ", "--help": "usage: "}[flag])
    assert capfd.readouterr() == ("", "")
