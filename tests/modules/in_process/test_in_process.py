# SPDX-License-Identifier: GPL-3.0-or-later
"""A module that is a call keeps to itself what a process would have kept to itself."""

from __future__ import annotations

import builtins
import concurrent.futures
import importlib.metadata
import locale
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from forkless import modules
from forkless.core import versions
from forkless.core.errors import SpecError


@pytest.mark.matrix_ends
def test_what_it_exits_with_is_its_result(run_module):
    result = run_module("module.exit_json(changed=True, got=module.params['a'])", {"a": "é\n"}, spec="{'a': {}}")
    assert (result["changed"], result["got"]) == (True, "é\n")


@pytest.mark.matrix_ends
def test_what_it_fails_with_is_its_result(run_module):
    result = run_module("module.fail_json(msg='no', rc=7)")
    assert (result["failed"], result["msg"], result["rc"]) == (True, "no", 7)


def test_an_error_it_lets_through_is_a_failed_result_with_its_words(run_module):
    result = run_module("raise ValueError('out of cheese')")
    assert result["failed"]
    assert "out of cheese" in str(result)


def test_leaving_without_a_result_is_a_failure(run_module):
    result = run_module("import sys; sys.exit('just so')")
    assert result["failed"]
    assert "just so" in result["module_stderr"]


def test_not_leaving_at_all_is_a_failure(run_module):
    result = run_module("pass")
    assert result["failed"]
    assert "did not handle its own exit" in str(result)


@pytest.mark.matrix_ends
def test_an_argument_it_does_not_know_is_refused_as_ever(run_module):
    result = run_module("module.exit_json()", {"b": 1}, spec="{'a': {}}")
    assert "Unsupported parameters" in result["msg"]


@pytest.mark.matrix_ends
def test_values_that_must_not_be_logged_are_taken_out_of_the_result_or_named_in_it(run_module):
    result = run_module(
        "module.exit_json(echo='the ' + module.params['word'])", {"word": "xyzzy"}, spec="{'word': {'no_log': True}}"
    )
    if versions.nearest(importlib.metadata.version("ansible-core")) in versions.since("2.22"):
        # The one who shows it masks it.
        assert result["echo"] == "the xyzzy"
        assert result["_ansible_new_secrets"] == ["xyzzy"]
        return
    assert result["echo"] == "the ********"
    assert "xyzzy" not in str(result)


@pytest.mark.matrix_ends
def test_check_and_diff_mode_interrupt_it(run_module):
    result = run_module(
        "module.exit_json(modes=[module.check_mode, module._diff])",
        {"_ansible_check_mode": True, "_ansible_diff": True},
    )
    assert result["modes"] == [True, True]


@pytest.mark.matrix_ends
def test_warnings_and_deprecations_travel_in_its_result_and_in_no_other(run_module):
    body = "module.warn('mind the gap'); module.deprecate('so 2019', version='9.9'); module.exit_json()"
    result = run_module(body)
    assert "mind the gap" in str(result.get("warnings")), result
    assert "so 2019" in str(result["deprecations"])
    assert "warnings" not in run_module("module.exit_json()")


def test_its_temporary_folder_is_gone_when_it_is_over(run_module, tmp_path):
    result = run_module("module.exit_json(where=module.tmpdir)", {"_ansible_remote_tmp": str(tmp_path)})
    assert result["where"].startswith(str(tmp_path))
    assert not os.path.exists(result["where"])


def test_what_it_prints_is_not_printed_by_us(run_module, capfd):
    result = run_module("print('chatter'); import sys; sys.stdout.write('more\\n'); module.exit_json(x=1)")
    assert result["failed"]  # as for any host: chatter before the result is for the caller to filter
    assert "chatter\nmore\n" in result["module_stdout"]
    assert capfd.readouterr() == ("", "")


def test_its_environment_is_its_own_and_nobody_elses(run_module, monkeypatch):
    monkeypatch.setenv("OURS", "here")
    body = """
    import os, urllib.request
    os.environ['LEFT'] = 'behind'
    module.exit_json(seen=[os.environ.get('OURS'), os.getenv('TASK'), urllib.request.getproxies().get('http')],
                     names=sorted(os.environ))
    """
    result = run_module(body, environ={"TASK": "its", "http_proxy": "http://p:1"})
    assert result["seen"] == [None, "its", "http://p:1"]
    assert "LEFT" not in os.environ
    assert os.environ["OURS"] == "here"


@pytest.mark.spawns
def test_a_program_that_it_starts_gets_its_environment_and_its_folder(run_module, tmp_path):
    body = """
    import subprocess
    rc, out, err = module.run_command('echo $TASK; pwd; umask', use_unsafe_shell=True, umask=0o027)
    module.exit_json(out=out.split(), direct=subprocess.check_output('echo $TASK', shell=True, text=True))
    """
    result = run_module(body, environ={**os.environ, "TASK": "its"}, cwd=str(tmp_path))
    assert result["out"] == ["its", str(tmp_path), "0027"]
    assert result["direct"] == "its\n"


def test_folder_and_umask_are_its_own_while_others_run(run_module, tmp_path):
    here, mask = os.getcwd(), os.umask(0o022)
    os.umask(mask)
    folders = [tmp_path / str(number) for number in range(8)]
    body = """
    import os, time
    os.umask(0o077); time.sleep(0.1)
    open('mark', 'w').close()
    os.chdir('/')
    module.exit_json(mode=os.stat(module.params['at'] + '/mark').st_mode & 0o777)
    """
    for folder in folders:
        folder.mkdir()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda f: run_module(body, {"at": str(f)}, spec="{'at': {}}", cwd=str(f)), folders))
    assert [result["mode"] for result in results] == [0o600] * 8
    assert os.getcwd() == here
    assert os.umask(mask) == mask


def test_where_threads_share_a_folder_they_take_turns(run_module, tmp_path, monkeypatch):
    monkeypatch.setattr(modules.in_process.cwd_and_environ, "has_own_folder", lambda: False)
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir()
    body = "import os, time; time.sleep(0.02); open('mark', 'w').close(); module.exit_json(at=os.getcwd())"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda f: run_module(body, cwd=str(f)), folders))
    assert [result["at"] for result in results] == list(map(str, folders))


@pytest.mark.matrix_ends
def test_forty_at_once_each_get_their_own_arguments(run_module):
    body = "import time; module.warn(module.params['n']); time.sleep(0.01); module.exit_json(n=module.params['n'])"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: run_module(body, {"n": str(n)}, spec="{'n': {}}"), range(40)))
    assert [result["n"] for result in results] == [str(n) for n in range(40)]
    assert [str(n) in str(r["warnings"]) for n, r in enumerate(results)] == [True] * 40


def test_the_locale_of_the_program_stays(run_module):
    before = locale.setlocale(locale.LC_ALL)
    run_module("module.exit_json()", environ={"LC_ALL": "nonsense.UTF-8"})
    assert locale.setlocale(locale.LC_ALL) == before


@pytest.mark.matrix_ends
def test_a_module_that_wants_a_program_says_which_and_starts_none(builtin):
    result = builtin("command", {"_raw_params": "uptime --pretty"}, programs=False)
    assert result["failed"]
    assert "needs the program 'uptime'" in result["msg"]


def test_a_module_that_looks_for_a_program_finds_none_and_says_so(builtin):
    result = builtin("getent", {"database": "passwd"}, programs=False)
    assert "needs the program 'getent'" in result["msg"]


@pytest.mark.matrix_ends
def test_a_module_that_starts_one_by_itself_is_kept_from_it(run_module):
    result = run_module("import subprocess; subprocess.run(['uname', '-a']); module.exit_json()", programs=False)
    assert "needs the program 'uname'" in result["msg"]


@pytest.mark.matrix_ends
def test_facts_are_gathered_without_a_program(builtin):
    facts = builtin("setup", {"gather_subset": ["all"]}, programs=False)["ansible_facts"]
    assert facts["ansible_system"] == os.uname().sysname
    assert facts["ansible_memtotal_mb"] > 0


def test_a_module_that_was_changed_is_read_anew(tmp_path):
    path = tmp_path / "changing.py"
    text = "from ansible.module_utils.basic import AnsibleModule\nAnsibleModule(argument_spec={{}}).exit_json(n={})\n"
    with modules.installed():
        for number in (1, 22):
            path.write_text(text.format(number))
            assert modules.run(str(path), {})["n"] == number


def test_a_script_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "old.sh"
    path.write_text("#!/bin/sh\necho '{}'\n")
    with pytest.raises(SpecError, match="new style"), modules.installed():
        modules.run(str(path), {})


@pytest.mark.matrix_ends
def test_everything_is_as_it_was_when_the_stand_ins_are_out():
    from ansible.module_utils import basic
    from ansible.module_utils.common import process, warnings

    def now():
        return (
            [dict(vars(one)) for one in (basic, process, warnings)],
            dict(vars(basic.AnsibleModule)),
            type(os.environ),
        )

    before = now()
    with modules.installed(actions=True):
        assert now() != before
    assert now() == before


def test_an_error_of_the_stopping_kind_goes_through_it(run_module):
    class Stop(BaseException):
        pass

    import builtins

    builtins.ForTheTest = Stop
    try:
        with pytest.raises(Stop):
            run_module("try:\n    raise ForTheTest\nexcept Exception:\n    module.exit_json()")
    finally:
        del builtins.ForTheTest
    assert type(os.environ).__name__ == "_Environ"


def test_a_module_may_start_threads(run_module):
    body = """
    import threading
    got = []
    t = threading.Thread(target=got.append, args=(1,)); t.start(); t.join()
    module.exit_json(got=got)
    """
    assert run_module(body)["got"] == [1]
    assert not [t for t in threading.enumerate() if t.name.startswith("forkless-module")]


def test_arguments_that_cannot_travel_are_refused_before_the_module_starts(run_module):
    with pytest.raises((TypeError, Exception), match=r"(?i)serializ|JSON|type"):
        run_module("module.exit_json()", {"a": pathlib.Path("/")}, spec="{'a': {'type': 'raw'}}")


@pytest.mark.matrix_ends
def test_what_a_module_util_says_as_it_is_imported_is_said_to_every_module(run_module, tmp_path, monkeypatch):
    import ansible.module_utils

    (tmp_path / "outdated.py").write_text(
        "from ansible.module_utils.common.warnings import deprecate\ndeprecate('use another', version='9.9')\n"
    )
    monkeypatch.setattr(ansible.module_utils, "__path__", [*ansible.module_utils.__path__, str(tmp_path)])
    if versions.nearest(importlib.metadata.version("ansible-core")) == "2.18":
        pytest.skip("2.18 keeps what is said in a list")
    for _ in range(2):  # the second finds it imported
        result = run_module("module.exit_json()", head="import ansible.module_utils.outdated")
        assert str(result["deprecations"]).count("use another") == 1


# -- its own process, which is the program


@pytest.fixture
def sent(monkeypatch):
    """What would have reached the program, in place of doing it: it would end the test."""
    found = []
    for module, names in ((os, ("kill", "killpg", "abort", "_exit")), (signal, ("raise_signal", "pthread_kill"))):
        for name in names:
            monkeypatch.setattr(module, name, lambda *args, name=name: found.append((name, *args)))
    return found


ENDS = {
    "os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
    "os.kill(0, signal.SIGKILL)": -signal.SIGKILL,
    "os.kill(-os.getpgrp(), signal.SIGHUP)": -signal.SIGHUP,
    "os.killpg(os.getpgrp(), signal.SIGTERM)": -signal.SIGTERM,
    "signal.raise_signal(signal.SIGUSR1)": -signal.SIGUSR1,
    "signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)": -signal.SIGSEGV,
    "kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
    "signal.signal(signal.SIGUSR1, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGUSR1)": -signal.SIGUSR1,
    "os.kill(os.getpid(), signal.SIGINT)": -signal.SIGINT,
    "os.abort()": -signal.SIGABRT,
    "os._exit(3)": 3,
}


@pytest.mark.parametrize("act", ENDS)
def test_a_signal_or_an_exit_that_ends_its_process_ends_it_and_not_the_program(run_module, sent, act):
    head = "import os, signal, threading\nimport os.path\nfrom os import kill"
    result = run_module(f"{act}\nmodule.exit_json(went='on')", head=head)
    assert (result["failed"], result["rc"]) == (True, ENDS[act]), result
    assert sent == []


@pytest.mark.parametrize("act", [*ENDS, "signal.pthread_kill(own, signal.SIGSEGV)"])
@pytest.mark.parametrize("start", ["threading.Thread(target=act).start()", "ThreadPoolExecutor(1).submit(act)"])
def test_the_same_on_a_thread_that_it_has_started(run_module, sent, act, start):
    """It ends the module's process, and so the module, whatever its own thread is doing."""
    head = "import os, signal, threading, time\nimport os.path\nfrom os import kill\nfrom concurrent.futures import ThreadPoolExecutor"
    body = f"""
    def act():
        {act}
    own = threading.get_ident()
    {start}
    for _ in range(24000):
        time.sleep(0.01)
    module.exit_json(went='on')
    """
    result = run_module(body, head=head)
    assert (result["failed"], result["rc"]) == (True, ENDS.get(act, -signal.SIGSEGV)), result
    assert sent == []


def test_leaving_python_on_a_thread_that_it_has_started_ends_that_thread_only(run_module, sent):
    head = "import sys, threading"
    body = "t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join(); module.exit_json(went='on')"
    assert run_module(body, head=head)["went"] == "on"
    assert sent == []


def test_a_thread_of_a_module_that_has_ended_ends_nothing_else(run_module, sent):
    may_act, acted, before = threading.Event(), threading.Event(), set(threading.enumerate())
    builtins.may_act, builtins.acted = may_act, acted
    try:
        body = """
        def act():
            may_act.wait(240)
            try:
                os._exit(3)
            finally:
                acted.set()
        threading.Thread(target=act).start()
        module.exit_json(went='on')
        """
        assert run_module(body, head="import os, threading")["went"] == "on"
        may_act.set()
        assert acted.wait(240)
        for thread in set(threading.enumerate()) - before:
            thread.join(240)
    finally:
        del builtins.may_act, builtins.acted
    assert sent == []


def test_a_signal_to_its_own_process_calls_its_own_handler_and_no_other_one_has_it(run_module, sent):
    head = "import os, signal"
    body = """
        seen, number = [], signal.SIGUSR2
        before = signal.signal(number, lambda number, frame: seen.append(number))
        for step in (lambda: os.kill(os.getpid(), number), lambda: signal.raise_signal(number), lambda: os.kill(0, 0)):
            step()
        handler = callable(signal.getsignal(number))
        signal.signal(number, signal.SIG_IGN)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGCHLD)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            seen.append(0)
        module.exit_json(before=int(before), seen=seen, handler=handler)
    """
    for _ in range(2):
        result = run_module(body, head=head)
        assert (result["before"], result["handler"]) == (0, True), result
        assert result["seen"] == [signal.SIGUSR2, signal.SIGUSR2, 0]
    assert sent == []


def test_other_processes_get_the_signals_that_it_sends(run_module, sent):
    result = run_module("os.kill(1, 0); os.killpg(1, 0); module.exit_json()", head="import os")
    assert not result.get("failed"), result
    assert sent == [("kill", 1, 0), ("killpg", 1, 0)]


FORKING = """
import os, signal
from ansible.module_utils.basic import AnsibleModule
module, ends = AnsibleModule(argument_spec={}), []
for act in (lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: os._exit(5)):
    pid = os.fork()
    if not pid:
        act()
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
module.exit_json(ends=ends)
"""


@pytest.mark.spawns
def test_a_process_that_it_forks_ends_by_its_own_signal_and_its_own_exit(tmp_path):
    """In a program of its own: a test must not fork."""
    (tmp_path / "forking.py").write_text(FORKING)
    call = "import sys; from forkless import modules\nwith modules.installed():\n    print(modules.run(sys.argv[1], {})['ends'])"
    done = subprocess.run(
        [sys.executable, "-c", call, str(tmp_path / "forking.py")], capture_output=True, text=True, check=False, timeout=100
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (f"[{-signal.SIGTERM}, 5]\n", 0), done.stderr


def test_what_it_assigns_to_sys_and_os_is_its_own(run_module):
    body = """
        import io
        before = (sys.stdout.getvalue(), os.getlogin is os.getpid)
        sys.stdout = io.StringIO()
        print("aside")
        os.getlogin = os.getpid
        module.exit_json(before=before, aside=sys.stdout.getvalue(), same=os.getlogin is os.getpid)
    """
    real = os.getlogin
    for _ in range(2):
        result = run_module(body, head="import os, sys")
        assert (result["before"], result["aside"], result["same"]) == (["", False], "aside\n", True), result
    assert os.getlogin is real
