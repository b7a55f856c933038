# SPDX-License-Identifier: GPL-3.0-or-later
"""`ansible-playbook`, `ansible` and `ansible-console` of the shim against stock's: output, exit codes, signals, and when stock runs after all."""

from __future__ import annotations

import os
import pathlib
import re
import select
import shutil
import signal
import stat
import sys
import sysconfig
import textwrap

import pytest

import shim_support
from forkless.cli.commands import exec as exec_command
from forkless.cli.shim import files
from shim_support import PLAY, call, environ, environment, seen, shim
from terminal import Terminal

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The shim, and the bin of an environment with forkless."""
    folder = tmp_path_factory.mktemp("places")
    return shim(folder / "bin-shim"), environment(folder / "env")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "hosts").write_text(
        "one ansible_connection=local\ntwo ansible_connection=local\n[all:vars]\nansible_python_interpreter=/usr/bin/python3\n"
    )
    (tmp_path / "fails.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - command: 'false'\n      ignore_errors: true\n    - raw: echo {{ x | default(1) }}\n"
        "    - fail: {msg: 'on purpose ü'}\n"
    )
    return tmp_path


def program(done):
    """The command whose process the play ran in."""
    found = re.search(r"program=(\S+?)\"", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]


# -- forkless, or stock -------------------------------------------------------------------------------------------


@pytest.mark.matrix_ends
def test_it_runs_in_forkless_and_switched_off_in_stock_and_says_so_once(places, folder):
    path, bin_ = places
    words = ["ansible-playbook", "-i", "hosts", "play.yml"]
    env = environ(folder, path, bin_)
    done = call(words, env, folder)
    assert program(done) == str(path / "ansible-playbook")
    assert done.stderr == ""
    off = {**env, "FORKLESS": "0"}
    first, second = call(words, off, folder), call(words, off, folder)
    assert program(first) == program(second) == str(bin_ / "ansible-playbook")
    assert first.stderr == "forkless shim: FORKLESS=0 is set; stock ansible-playbook runs\n"
    assert second.stderr == ""  # said once in this session
    shutil.rmtree(folder / "home" / ".cache")
    assert call(words, {**off, "FORKLESS_SHIM_QUIET": "1"}, folder).stderr == ""


def test_the_environment_of_the_command_that_is_replaced_decides(places, folder):
    path, first = places
    second = environment(folder / "second")
    bare = environment(folder / "bare", forkless=False)
    for order, chosen in (([first, second], first), ([second, first], second), ([bare, first], bare)):
        done = call(["ansible", "--version"], environ(folder, path, *order), folder)
        assert f"({chosen}/python)" in done.stdout, done.stdout
        assert f"executable location = {chosen}/ansible\n" in done.stdout
    done = call(["ansible-playbook", "-i", "hosts", "play.yml"], environ(folder, path, bare, first), folder)
    assert done.returncode == 0
    assert program(done) == str(bare / "ansible-playbook")
    assert f"forkless cannot be imported by {bare}/python" in done.stderr


# ansible-core without one of the names that forkless replaces.
LOSES_A_NAME = """
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "ansible.executor.task_queue_manager":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def without_a_name(module):
            execute(module)
            del module.FinalQueue
        spec.loader.exec_module = without_a_name
        return spec
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("why", ["unknown ansible-core", "a seam that moved", "green threads", "no threads"])
def test_where_forkless_cannot_stock_runs(places, folder, why):
    path, _ = places
    unknown = why == "unknown ansible-core"
    bin_ = environment(folder / "own", version="9.9.1" if unknown else "")
    (site,) = (folder / "own").glob("lib/*/site-packages")
    # What the shim's own process finds, and stock's command, which does without, does not.
    sentence, code = {
        "unknown ansible-core": ("forkless does not know ansible-core 9.9.1", ""),
        "a seam that moved": ("is a known version, but the installed copy differs", LOSES_A_NAME),
        "green threads": ("gevent", "import gevent.monkey\ngevent.monkey.patch_all()"),
        "no threads": (
            "no thread can be started here",
            "import threading\ndef start(self):\n    raise RuntimeError('no')\nthreading.Thread.start = start",
        ),
    }[why]
    # Not sitecustomize: a Python of Debian has one of its own. The name sorts behind that of the file with the shared packages.
    (site / "so_that_it_cannot.pth").write_text("import so_that_it_cannot\n")
    (site / "so_that_it_cannot.py").write_text(
        "import os\nif 'FORKLESS_SHIM_STOCK' in os.environ:\n" + textwrap.indent(code or "pass", "    ")
    )
    done = call(["ansible-playbook", "-i", "hosts", "play.yml"], environ(folder, path, bin_), folder)
    assert done.returncode == 0, done.stderr
    assert program(done) == str(bin_ / "ansible-playbook")
    assert sentence in done.stderr
    assert done.stderr.endswith("; stock ansible-playbook runs\n")
    assert done.stderr.count("\n") == 1


# -- as stock -----------------------------------------------------------------------------------------------------

CASES = {
    "a failure": ["ansible-playbook", "-i", "hosts", "fails.yml", "-e", "x=3"],
    "an unreachable host": ["ansible-playbook", "-i", "gone,", "-e", "ansible_port=1 ansible_host=127.0.0.1", "fails.yml"],
    "a syntax error": ["ansible-playbook", "-i", "hosts", "broken.yml"],
    "a file that is not there": ["ansible-playbook", "-i", "hosts", "no such.yml"],
    "a flag that is not there": ["ansible-playbook", "--no-such-flag"],
    "help": ["ansible-playbook", "--help"],
    "version": ["ansible-playbook", "--version"],
    "a list of tasks": ["ansible-playbook", "-i", "hosts", "fails.yml", "--list-tasks"],
    "an inventory on stdin": ["ansible-playbook", "-i", "/dev/stdin", "fails.yml", "--syntax-check"],
    "a vault password by a script": ["ansible-playbook", "-i", "hosts", "vault.yml", "--vault-id", "dev@./password.sh"],
    "steps, without a terminal": ["ansible-playbook", "-i", "hosts", "fails.yml", "--step"],
    "an abbreviation": ["ansible-playbook", "-i", "hosts", "fails.yml", "--pr", "key", "--list-tasks"],
    "options at -vvvv": ["ansible-playbook", "-i", "hosts", "empty.yml", "-vvvv"],
    "ansible.cfg and variables": ["ansible-playbook", "fails.yml", "-v"],
    "one module": ["ansible", "all", "-i", "hosts", "-m", "command", "-a", "echo {{ inventory_hostname }}", "-f", "1"],
    "one module's help": ["ansible", "--help"],
    "a folder that cannot be made": ["ansible", "one", "-i", "hosts", "-m", "ping"],
    "a console": ["ansible-console", "-i", "hosts", "one"],
}  # fmt: skip
STDIN = {
    "an inventory on stdin": "[web]\none ansible_connection=local\n",
    "steps, without a terminal": "y\nc\n",
    "a console": "ping\n!echo hello\nnot_a_module_but_a_program\nverbosity 2\ncd two\nlist\n",
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_program_reads_is_stocks_byte_for_byte(places, folder, case):
    path, bin_ = places
    words = CASES[case]
    (folder / "empty.yml").write_text("- hosts: all\n  gather_facts: false\n")
    (folder / "broken.yml").write_text("- hosts: all\n  tasks:\n    - debug: {\n")
    env = environ(folder, bin_, ANSIBLE_LOCAL_TEMP=str(folder / "local"), ANSIBLE_VAULT_ENCRYPT_IDENTITY="dev")
    if "script" in case:
        (folder / "password.sh").write_text("#!/bin/sh\nread -r nothing\necho secret\n")
        (folder / "password.sh").chmod(0o755)
        vault = str(bin_.parent / "bin" / "python")
        code = "import sys; from ansible.cli.vault import VaultCLI; VaultCLI.cli_executor()"
        done = call(
            [vault, "-c", code, "encrypt_string", "hush", "-n", "x", "--vault-id", "dev@./password.sh"], env, folder
        )
        assert done.returncode == 0, done.stderr
        play = "- hosts: one\n  gather_facts: false\n  vars:\n" + textwrap.indent(done.stdout, "    ")
        (folder / "vault.yml").write_text(play + "  tasks:\n    - debug: {var: x}\n")
    if "cfg" in case:
        (folder / "ansible.cfg").write_text("[defaults]\ninventory = hosts\nforks = 1\ndisplay_failed_stderr = true\n")
        env["ANSIBLE_SHOW_CUSTOM_STATS"] = "1"
        env["ANSIBLE_CHECK_MODE_MARKERS"] = "1"
    if "cannot be made" in case:
        env["ANSIBLE_REMOTE_TEMP"] = "/dev/null/tmp"
    stdin = STDIN.get(case, "")
    theirs = call(words, env, folder, stdin)
    ours = call(words, {**env, "PATH": f"{path}:{env['PATH']}"}, folder, stdin)
    assert ordered(ours) == ordered(theirs)


def ordered(done):
    """Hosts answer in any order, a command tells how long it took, and names of temporary folders are made up."""
    told: list[object] = [done.returncode]
    for text in (done.stdout, done.stderr):
        text = re.sub(r"ansible-tmp-[\d.-]+", "ansible-tmp-X", text)
        lines = re.sub(r'"(start|end|delta)": "[^"]*"', r'"\1": "T"', text).split("\n")
        hosts = [line for line in lines if re.match(r"(ok|changed|fatal|skipping|failed): \[", line)]
        told += [[line for line in lines if line not in hosts], sorted(hosts)]
    return told


def wait_until_gone(pid):
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 60)[0], f"{pid} still runs"
    finally:
        os.close(process)


# -- at a terminal ------------------------------------------------------------------------------------------------


def test_prompts_steps_and_passwords_are_asked_at_a_terminal(places, folder):
    path, bin_ = places
    (folder / "asks.yml").write_text(
        "- hosts: one\n  gather_facts: false\n  vars_prompt:\n    - {name: who, prompt: Who are you, private: false}\n"
        "  tasks:\n    - debug: {msg: 'got {{ who }} {{ ansible_become_password }}'}\n      vars: {ansible_become_password: x}\n"
    )
    words = ["-i", "hosts", "asks.yml", "-K", "-k", "--step", "--plain"]
    env = environ(folder, path, bin_)
    with Terminal(*words, cwd=folder, env=env, program=[str(path / "ansible-playbook")]) as terminal:
        terminal.until("SSH password:")
        terminal.type("one\n")
        terminal.until("BECOME password[defaults to SSH password]:")
        terminal.type("two\n")
        terminal.until("Who are you:")
        terminal.type("bob\n")
        terminal.until("Perform task: TASK: debug (N)o/(y)es/(c)ontinue:")
        terminal.type("y\n")
        terminal.until("got bob")
        assert terminal.wait() == 0
        assert "one" not in terminal.screen.replace("[one]", "").replace("one    ", "")


@pytest.mark.parametrize("switch", [["--plain"], [], None])
def test_the_live_view_is_at_a_terminal_only_and_can_be_switched_off(places, folder, switch):
    path, bin_ = places
    env = environ(folder, path, bin_, **({} if switch != [] else {"ANSIBLE_FORKLESS_PLAIN": "1"}))
    (folder / "waits.yml").write_text(
        "- hosts: one\n  gather_facts: false\n  tasks:\n"
        f"    - {{name: wait, raw: 'while [ ! -e {folder}/gate ]; do sleep 0.1; done'}}\n"
    )
    words = ["-i", "hosts", "waits.yml", *(switch or [])]
    erased = b"\r\x1b[J"  # the live view removes itself before it is drawn anew
    with Terminal(*words, cwd=folder, env=env, program=[str(path / "ansible-playbook")]) as terminal:
        terminal.until("TASK [wait]" if switch is not None else lambda: erased in terminal.raw)
        (folder / "gate").touch()
        assert terminal.wait() == 0
        live = erased in terminal.raw
    assert live is (switch is None)


def test_the_console_keeps_its_interpreters_and_ctrl_c_ends_a_command_only(places, folder):
    path, bin_ = places
    out = folder / "out"
    with Terminal(
        "-i", "hosts", "one", cwd=folder, env=environ(folder, path, bin_), program=[str(path / "ansible-console")]
    ) as terminal:
        terminal.until("@one (1)")
        for number in (1, 2):
            terminal.type(f"!ps -o ppid= -p $PPID > {out}{number}; echo end{number * 7}\n")
            terminal.until(f"\nend{number * 7}")
        os.mkfifo(folder / "pid")
        terminal.type(f"!echo $$ > {folder / 'pid'}; exec sleep 1000\n")
        task = int((folder / "pid").read_text())
        terminal.type("\x03")
        terminal.until("User interrupted execution")
        terminal.type("!echo still $((6 * 7))\n")
        terminal.until("still 42")
        wait_until_gone(task)
        terminal.type("exit\n")
        assert terminal.wait() == 0
    assert (folder / "out1").read_text() == (folder / "out2").read_text()  # the same interpreter on the host


# -- forkless shim, forkless exec ---------------------------------------------------------------------------------


def forkless(folder, *words, path=(), **more):
    env = shim_support.with_source(environ(folder, *path, **more))
    return call(shim_support.forkless(*words), env, folder)


def test_the_line_that_install_prints_is_all_that_is_needed(places, folder):
    _, bin_ = places
    target = folder / "it's here"
    done = forkless(folder, "shim", "install", str(target))
    assert done.returncode == 0
    names = {"ansible-playbook", "ansible", "ansible-console", "ansible-pull", "ansible-test"}
    assert {path.name for path in target.iterdir()} == names
    line = done.stdout.splitlines()[-1]
    env = environ(folder, bin_)
    for shell in filter(shutil.which, ("sh", "bash", "zsh", "fish")):
        said = call(
            [shell, "-c", f"{line}\ncommand -v ansible-playbook; command -v ansible; command -v cat"], env, folder
        )
        found = [str(target / "ansible-playbook"), str(target / "ansible"), shutil.which("cat", path="/usr/bin:/bin")]
        assert said.stdout.splitlines() == found, shell
    said = call(["sh", "-c", f"{line}\ncommand -v ansible-doc || :"], env, folder)
    assert str(target / "ansible-doc") not in said.stdout
    status = call(
        ["sh", "-c", f"{line}\nexec {sys.executable} -m forkless shim status"], shim_support.with_source(env), folder
    )
    assert status.returncode == 0
    assert f"replaces   {bin_}/ansible-playbook" in status.stdout
    assert status.stdout.endswith("runs in    forkless\n")
    off = call(
        ["sh", "-c", f"{line}\nFORKLESS=0 exec {sys.executable} -m forkless shim status"],
        shim_support.with_source(env),
        folder,
    )
    assert off.stdout.endswith("runs in    stock Ansible: FORKLESS=0 is set\n")
    assert forkless(folder, "shim", "remove", str(target)).returncode == 0
    assert not target.exists()


def test_what_is_no_shim_is_neither_replaced_nor_removed(folder):
    theirs = shim_support.script(folder / "bin" / "ansible", "#!/bin/sh\n")
    done = forkless(folder, "shim", "install", str(folder / "bin"))
    assert done.returncode == 2
    assert done.stderr == (
        f"forkless shim: {theirs} is not a shim, and is not replaced; name a folder of its own for the shim\n"
    )
    assert [path.name for path in (folder / "bin").iterdir()] == ["ansible"]
    assert forkless(folder, "shim", "remove", str(folder / "bin")).returncode == 2
    assert theirs.exists()
    theirs.unlink()
    (folder / "bin" / "notes").write_text("mine")
    forkless(folder, "shim", "install", str(folder / "bin"))
    assert forkless(folder, "shim", "remove", str(folder / "bin")).returncode == 0
    assert [path.name for path in (folder / "bin").iterdir()] == ["notes"]


def test_the_usual_folder_is_below_the_home_and_status_tells_of_a_shim_that_is_not_used(places, folder):
    _, bin_ = places
    done = forkless(folder, "shim", "install", path=[bin_])
    target = folder / "home/.local/share/forkless/shim"
    assert str(target) in done.stdout
    assert stat.S_IMODE((target / "ansible-playbook").stat().st_mode) == 0o755
    status = forkless(folder, "shim", "status", path=[bin_, target])
    assert status.returncode == 1
    assert f"{bin_} stands before the shim on PATH, so the shim is not used" in status.stdout
    assert forkless(folder, "shim", "remove").returncode == 0
    assert not target.exists()
    again = forkless(folder, "shim", "remove")
    assert (again.returncode, again.stderr) == (2, "forkless shim: there is no shim in its usual folder, nor on PATH\n")


def test_exec_runs_a_command_with_the_shim_first_on_its_path(places, folder):
    _, bin_ = places
    done = forkless(folder, "exec", "--", "sh", "-c", "ansible-playbook -i hosts play.yml; exit 3", path=[bin_])
    assert done.returncode == 3
    assert "/.cache/forkless/shim-" in done.stdout
    assert program(done).endswith("/ansible-playbook")
    assert not (folder / "home/.local").exists()
    ended = forkless(folder, "exec", "sh", "-c", "kill -TERM $$", path=[bin_])
    assert ended.returncode == -signal.SIGTERM
    missing = forkless(folder, "exec", "--", "no-such-command", path=[bin_])
    assert (missing.returncode, missing.stderr) == (127, "forkless exec: no-such-command was not found\n")
    assert forkless(folder, "exec").returncode == 2


@pytest.fixture
def nowhere(monkeypatch):
    """No home, no cache, and no other place for files."""
    for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/dev/null/home")
    monkeypatch.setattr(files, "_PLACES", ("/dev/null",))


def test_without_a_home_exec_keeps_the_shim_among_temporary_files_of_its_own(nowhere, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = files.ready_folder()
    assert folder is not None
    assert pathlib.Path(folder).parent == tmp_path / f"forkless-shim-{os.geteuid()}"
    assert files.current(folder)
    assert files.ready_folder() == folder
    os.chmod(os.path.dirname(folder), 0o777)  # so somebody else could have put the commands there
    assert files.ready_folder() is None


def test_where_nothing_can_be_written_exec_runs_the_command_with_stocks(nowhere, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(os, "execvpe", lambda *words: started.append(words))
    exec_command.main(["--", "make", "deploy"])
    ((program, words, environ),) = started
    assert (program, words, environ["PATH"]) == ("make", ["make", "deploy"], os.environ["PATH"])
    said = "forkless exec: no folder for the shim can be written, so the command runs with stock's\n"
    assert capsys.readouterr().err == said


def test_ansible_pull_calls_what_lies_beside_it_which_is_the_shim(places, folder):
    path, bin_ = places
    repo = folder / "repo"
    repo.mkdir()
    (repo / "local.yml").write_text(PLAY.replace("hosts: all", "hosts: localhost"))
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", "-C", str(repo)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        assert call([*git, *words], environ(folder), folder).returncode == 0
    words = ["ansible-pull", "-U", f"file://{repo}", "-d", str(folder / "copy"), "-i", "localhost,"]
    done = call(words, environ(folder, path, bin_), folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert program(done) == str(path / "ansible-playbook")
    again = call(words, environ(folder, path, bin_, FORKLESS="0"), folder)
    assert program(again) == str(bin_ / "ansible-playbook")
    assert seen(again)[0] == 0


def test_ansible_test_runs_its_targets_in_forkless_though_it_copies_commands_from_ansible_core(places, folder):
    path, bin_ = places
    code = "import sys\nfrom ansible_test._util.target.cli.ansible_test_cli_stub import main\nsys.exit(main())\n"
    shim_support.script(bin_ / "ansible-test", f"#!{bin_}/python\n{code}")
    base = folder / "ansible_collections/ns/small"
    target, told = base / "tests/integration/targets/smoke", folder / "told"
    (target / "lookup_plugins").mkdir(parents=True)
    (base / "galaxy.yml").write_text("namespace: ns\nname: small\nversion: 1.0.0\nreadme: README.md\nauthors: [x]\n")
    (target / "lookup_plugins/engine.py").write_text(
        "import sys\nfrom ansible.plugins.lookup import LookupBase\nclass LookupModule(LookupBase):\n"
        "    def run(self, terms, variables=None, **kwargs):\n        return ['forkless' if 'forkless' in sys.modules else 'stock']\n"
    )
    (target / "play.yml").write_text(PLAY.replace("program=", "engine={{ lookup('engine') }} program="))
    shim_support.script(target / "runme.sh", f"#!/bin/sh\nexec ansible-playbook -i localhost, play.yml > '{told}'\n")
    words = ["ansible-test", "integration", "--python", sysconfig.get_python_version(), "smoke"]
    done = call(words, environ(folder, path, bin_), base)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        re.search(r"engine=(\w+) program=\S+/ansible-test-\w+-bin/ansible-playbook", told.read_text())[1] == "forkless"
    )
