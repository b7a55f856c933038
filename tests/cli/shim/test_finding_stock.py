# SPDX-License-Identifier: GPL-3.0-or-later
"""Which command the shim replaces, and that stock's command gets everything as if there were no shim."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest

import shim_support
from forkless.cli.commands import shim as shim_command
from forkless.cli.shim import launch
from forkless.core.errors import SpecError
from shim_support import call, environ, environment, script, shim

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]

# Stands for a stock command in an environment without forkless.
TELLS = """
import json, os, sys
told = {"argv": sys.argv, "environ": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid(), "stdin": sys.stdin.read()}
told["descriptors"] = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
told["three"] = os.read(3, 100).decode() if 3 in told["descriptors"] else ""
print(json.dumps(told))
sys.stderr.write("to stderr\\n")
sys.stdout.flush()
if "--die" in sys.argv:
    os.kill(os.getpid(), 15)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The bin of an environment without forkless, whose ansible-playbook tells what it was given."""
    bin_ = environment(tmp_path_factory.mktemp("bare") / "env", forkless=False)
    script(bin_ / "ansible-playbook", f"#!{bin_}/python\n{TELLS}")
    return bin_


def told(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def with_descriptor(words, env, cwd, die=False):
    """Calls with stdin and one more descriptor."""
    reading, writing = os.pipe()
    os.write(writing, b"by descriptor")
    os.close(writing)
    try:
        return subprocess.run(
            ["bash", "-c", f'exec 3<&{reading} {reading}<&-; exec "$@"', "sh", *words, *(["--die"] if die else [])],
            env=env, cwd=cwd, input="by stdin", capture_output=True, text=True, check=False, pass_fds=[reading],
        )  # fmt: skip
    finally:
        os.close(reading)


@pytest.mark.parametrize("switch", [{}, {"FORKLESS": "0"}], ids=["not importable", "switched off"])
def test_stock_gets_the_same_arguments_descriptors_environment_and_gives_the_exit_code(bare, tmp_path, switch):
    words = ["ansible-playbook", "a b", "", "-e", 'x="$HOME" *', "ü"]
    folder = shim(tmp_path / "shim")
    ours = with_descriptor(words, environ(tmp_path, folder, bare, **switch), tmp_path)
    theirs = with_descriptor(words, environ(tmp_path, bare, **switch), tmp_path)
    assert ours.returncode == theirs.returncode == 7
    first, second = told(ours), told(theirs)
    first["environ"].pop("PATH"), second["environ"].pop("PATH"), first.pop("pid"), second.pop("pid")
    assert first == second
    assert first["three"] == "by descriptor"
    assert first["stdin"] == "by stdin"
    assert ours.stderr.endswith("\nto stderr\n") or ours.stderr == "to stderr\n"
    died = with_descriptor(words, environ(tmp_path, folder, bare, **switch), tmp_path, die=True)
    assert died.returncode == -signal.SIGTERM


def test_the_shim_is_replaced_and_not_a_parent_of_stock(bare, tmp_path):
    """A signal that is sent to the process that was started reaches stock."""
    env = environ(tmp_path, shim(tmp_path / "shim"), bare)
    with subprocess.Popen(
        [shutil.which("ansible-playbook", path=env["PATH"])], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as started:  # fmt: skip
        assert json.loads(started.stdout.read())["pid"] == started.pid


def stands_for(tmp_path, bare):
    """By name: what is on PATH, and what is called."""
    folder = shim(tmp_path / "shim")
    link = tmp_path / "link"
    link.symlink_to(folder)
    other = shim(tmp_path / "another shim")
    by_name = tmp_path / "elsewhere"
    by_name.mkdir()
    (by_name / "ansible-playbook").symlink_to(folder / "ansible-playbook")
    gone = script(tmp_path / "gone" / "ansible-playbook", f"#! {tmp_path}/removed/bin/python -I\n").parent
    return {
        "once": ([folder, bare], "ansible-playbook"),
        "twice": ([folder, folder, bare, folder], "ansible-playbook"),
        "through a link to the folder": ([link, folder, bare], "ansible-playbook"),
        "through a link to the file": ([by_name, folder, bare], "ansible-playbook"),
        "two shims": ([folder, other, bare], "ansible-playbook"),
        "by its path, and not on PATH": ([bare], str(folder / "ansible-playbook")),
        "by its path, and behind stock": ([bare, folder], str(folder / "ansible-playbook")),
        "behind a script whose interpreter is gone": ([folder, gone, bare], "ansible-playbook"),
        "with an empty entry and a missing folder": (["", folder, tmp_path / "missing", bare], "ansible-playbook"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "once", "twice", "through a link to the folder", "through a link to the file", "two shims", "by its path, and not on PATH",
        "by its path, and behind stock", "behind a script whose interpreter is gone", "with an empty entry and a missing folder",
    ],
)  # fmt: skip
def test_stock_is_found(bare, tmp_path, case):
    path, command = stands_for(tmp_path, bare)[case]
    done = call([command, "site.yml"], environ(tmp_path, *path), tmp_path)
    assert told(done)["argv"] == [str(bare / "ansible-playbook"), "site.yml"]
    assert not [name for name in told(done)["environ"] if name.startswith("FORKLESS_SHIM")]  # found at once
    assert done.returncode == 7


def test_a_script_whose_interpreter_is_gone_fails_as_it_does_without_the_shim(tmp_path):
    gone = script(tmp_path / "gone" / "ansible-playbook", "#!/nonexistent/python\n").parent
    codes = [
        call(["ansible-playbook"], environ(tmp_path, *path), tmp_path)
        for path in ([gone], [shim(tmp_path / "shim"), gone])
    ]
    assert [one.returncode for one in codes] == [127, 127]
    assert "not found" in codes[1].stderr


def test_the_first_behind_the_shim_is_the_one_that_is_replaced(bare, tmp_path):
    second = environment(tmp_path / "second", forkless=False)
    script(second / "ansible-playbook", f"#!{second}/python\n{TELLS}")
    folder = shim(tmp_path / "shim")
    for path in ([folder, second, bare], [bare, folder, second]):
        command = str(folder / "ansible-playbook")
        assert told(call([command], environ(tmp_path, *path), tmp_path))["argv"] == [str(second / "ansible-playbook")]


@pytest.mark.parametrize("kind", ["pip", "uv", "env", "flag", "spaces"])
def test_the_first_lines_that_installers_write_are_understood(tmp_path, kind):
    """The interpreter of the script that is replaced runs: it finds no forkless, and says so with its own path."""
    place = tmp_path / ("a folder" if kind in ("pip", "uv") else "folder")
    bin_ = environment(place, forkless=False)
    head = {
        "pip": f"#!/bin/sh\n'''exec' \"{bin_}/python\" \"$0\" \"$@\"\n' '''\n",
        "uv": f"#!/bin/sh\n'''exec' '{bin_}/python' \"$0\" \"$@\"\n' '''\n",
        "env": "#!/usr/bin/env python3\n",
        "flag": f"#!{bin_}/python -sE\n",
        "spaces": f"#!  {bin_}/python   -s\n",
    }[kind]
    script(bin_ / "ansible-playbook", head + TELLS)
    done = call(["ansible-playbook", "x y"], environ(tmp_path, shim(tmp_path / "shim"), bin_), tmp_path)
    assert told(done)["argv"] == [str(bin_ / "ansible-playbook"), "x y"]
    assert f"forkless cannot be imported by {bin_}/python" in done.stderr


def test_the_python_of_an_environment_that_may_be_moved_is_found(tmp_path):
    bin_ = environment(tmp_path / "a folder", forkless=False)
    head = """#!/bin/sh\n'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"\n' '''\n"""
    stock = script(bin_ / "ansible-playbook", head + TELLS)
    done = call(["ansible-playbook", "x y"], environ(tmp_path, shim(tmp_path / "shim"), bin_), tmp_path)
    assert told(done)["argv"] == [str(stock), "x y"]
    assert f"forkless cannot be imported by {bin_}/python" in done.stderr
    links = tmp_path / "links"
    links.mkdir()
    (links / "ansible-playbook").symlink_to(stock)  # sh alone cannot find the folder of the file: stock's runs
    (links / "python").symlink_to(sys.executable)
    done = call(["ansible-playbook", "x y"], environ(tmp_path, shim(tmp_path / "shim"), links), tmp_path)
    assert told(done)["argv"] == [str(links / "ansible-playbook"), "x y"]
    assert done.stderr == "to stderr\n"


@pytest.fixture(scope="module")
def able(tmp_path_factory):
    """The bin of an environment in which forkless can run."""
    return environment(tmp_path_factory.mktemp("able") / "env")


@pytest.mark.parametrize("kind", ["wrapper", "archive", "wrapper for pull", "archive for test"])
def test_a_script_that_does_more_than_start_ansible_and_an_archive_run_as_they_are(able, tmp_path, kind):
    """forkless could run in this environment; the variables that a wrapper sets and the packages in an archive would be missing."""
    command = {"wrapper for pull": "ansible-pull", "archive for test": "ansible-test"}.get(kind, "ansible-playbook")
    stock = tmp_path / "bin" / command
    if kind.startswith("wrapper"):
        script(stock, f"#!{able}/python\nfrom ansible.cli.playbook import main\n{TELLS}")
    else:
        stock.parent.mkdir()
        with zipfile.ZipFile(stock, "w") as archive:
            archive.writestr("__main__.py", TELLS)
        stock.write_bytes(f"#!{able}/python\n".encode() + stock.read_bytes())
        stock.chmod(0o755)
    done = call([command, "x y"], environ(tmp_path, shim(tmp_path / "shim"), stock.parent), tmp_path)
    assert told(done)["argv"] == [str(stock), "x y"]
    assert done.returncode == 7
    said = f"forkless shim: {stock} may do more than start Ansible; stock ansible-playbook runs\n"
    assert done.stderr == (said if command == "ansible-playbook" else "") + "to stderr\n"


INSTALLERS = {
    "pip": r"""# -*- coding: utf-8 -*-
import re
import sys
from ansible.cli.playbook import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit(main())
""",
    "uv": """# -*- coding: utf-8 -*-
import sys
from ansible.cli.playbook import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
""",
    "pip 25": """import sys
from ansible.cli.playbook import main
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(main())
""",
    "a long path": """'''exec' "/a b/python" "$0" "$@"
' '''
import sys
from ansible.cli.adhoc import main
if __name__ == '__main__':
    raise SystemExit(main())
""",
    "ansible-test": """import sys
from ansible_test._util.target.cli.ansible_test_cli_stub import main
sys.exit(main())
""",
    "old setuptools": """# EASY-INSTALL-ENTRY-SCRIPT: 'ansible-core==2.18.1','console_scripts','ansible-playbook'
import re
import sys
from importlib.metadata import distribution
""",
}
OTHERS = {
    "sets a variable": "import os\nos.environ['ANSIBLE_CONFIG'] = '/x'\nfrom ansible.cli.playbook import main\nmain()\n",
    "adds folders": "import sys\nsys.path[0:0] = ['/eggs']\nfrom ansible.cli.playbook import main\nsys.exit(main())\n",
    "another main": "import sys\nfrom ours.cli import main\nsys.exit(main())\n",
    "calls a program": "import os, sys\nos.execv('/opt/ansible', sys.argv)\n",
    "changes arguments": "import sys\nfrom ansible.cli.playbook import main\nsys.argv.append('--diff')\nmain()\n",
    "no Python": 'echo $PATH; exec ansible-playbook-2.18 "$@"\n',
    "empty": "",
    "no text": "\0PK",
}


@pytest.mark.parametrize("text", INSTALLERS.values(), ids=INSTALLERS)
def test_what_installers_write_is_known(tmp_path, text):
    assert launch.starts_ansible_only(str(script(tmp_path / "ansible-playbook", f"#!/usr/bin/python\n{text}")))


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_somebody_wrote_is_not_taken_for_an_installers_script(tmp_path, text):
    assert not launch.starts_ansible_only(str(script(tmp_path / "ansible-playbook", f"#!/usr/bin/python\n{text}")))


def test_ansible_cores_own_files_and_the_installed_commands_are_known():
    own = pathlib.Path(shim_support.PACKAGES) / "ansible" / "cli" / "playbook.py"
    assert launch.starts_ansible_only(str(own))
    for command in ("ansible", "ansible-playbook", "ansible-console", "ansible-pull", "ansible-test"):
        assert launch.starts_ansible_only(str(pathlib.Path(sys.executable).parent / command))


def test_packages_that_are_half_there_are_stocks_matter(monkeypatch, tmp_path):
    def broken(_name):
        raise KeyError("Version")

    class StockRuns(Exception):  # noqa: N818  # in place of a new program
        pass

    def run_stock(why):
        raise StockRuns(why)

    monkeypatch.setattr(launch.importlib.metadata, "version", broken)
    with pytest.raises(StockRuns, match="forkless cannot tell what is installed .KeyError"):
        launch.main("ansible-playbook", "", str(tmp_path / "shim"), run_stock)


def test_a_wrapper_that_looks_for_its_command_on_the_path_does_not_come_round_again(bare, tmp_path):
    wrapper = script(
        tmp_path / "wrapper" / "ansible-playbook",
        "#!/bin/bash\nfor one in $(type -ap ansible-playbook); do\n"
        '  [ "$one" = "$0" ] || exec "$one" --wrapped "$@"\ndone\n',
    )
    folder = shim(tmp_path / "shim")
    done = call(["ansible-playbook", "x"], environ(tmp_path, folder, wrapper.parent, bare), tmp_path)
    assert told(done)["argv"] == [str(bare / "ansible-playbook"), "--wrapped", "x"]


def test_a_play_that_calls_the_command_again_finds_the_one_that_its_own_call_found(bare, tmp_path):
    """A wrapper that is a shell script may set up an environment; the next command on PATH is another Ansible."""
    wrapper = script(
        tmp_path / "wrapper" / "ansible-playbook",
        '#!/bin/sh\n[ -n "$1" ] || { echo inner; exit 5; }\nsh -c "ansible-playbook; :"\nexit 7\n',
    )
    done = call(["ansible-playbook", "x"], environ(tmp_path, shim(tmp_path / "shim"), wrapper.parent, bare), tmp_path)
    assert (done.returncode, done.stdout) == (7, "inner\n")


def test_a_wrapper_that_never_finds_its_way_out_does_not_go_round_for_ever(bare, tmp_path):
    wrapper = script(
        tmp_path / "wrapper" / "ansible-playbook",
        '#!/bin/sh\necho round >&2\nsh -c \'ansible-playbook "$@"; exit $?\' sh "$@"\n',
    )
    env = environ(tmp_path, shim(tmp_path / "shim"), wrapper.parent, bare)
    done = call(["ansible-playbook", "x"], env, tmp_path)
    assert told(done)["argv"] == [str(bare / "ansible-playbook"), "x"]
    assert done.returncode == 7
    assert done.stderr.count("round") == 5


@pytest.mark.parametrize("closed", ["0", "1", "2"])
def test_a_closed_stream_is_no_reason_to_fail(bare, tmp_path, closed):
    """Stock need not write to it."""
    script(bare / "ansible", f"#!{bare}/python\nimport os\nopen({str(tmp_path / 'ran')!r}, 'w').close()\nos._exit(7)\n")
    env = environ(tmp_path, shim(tmp_path / "shim"), bare)
    for _ in range(2):
        done = call(["sh", "-c", f"exec ansible all {closed}>&-"], env, tmp_path)
        assert done.returncode == 7, done.stderr
    assert (tmp_path / "ran").exists()


def test_a_sentence_is_said_once_in_a_session_also_if_others_are_said_in_between(bare, tmp_path):
    stock = tmp_path / "stock"
    for command in ("ansible", "ansible-playbook"):
        script(stock / command, f"#!{bare}/python\n")
    env = environ(tmp_path, shim(tmp_path / "shim"), stock)

    def said(*words):
        lines = call([*words], env, tmp_path).stderr.splitlines()
        return [line.rpartition("; ")[2] for line in lines]

    both = ["stock ansible-playbook runs", "stock ansible runs"]
    line = "ansible-playbook; ansible; ansible-playbook; ansible"
    assert said("setsid", "-w", "sh", "-c", line) == both
    assert said("setsid", "-w", "sh", "-c", line) == both  # another session
    env["FORKLESS_SHIM_QUIET"] = "1"
    assert said("setsid", "-w", "sh", "-c", line) == []
    del env["FORKLESS_SHIM_QUIET"]
    env["XDG_CACHE_HOME"] = "cache"  # as for a user without a home, whose ~ is a relative path
    assert said("setsid", "-w", "sh", "-c", line) == both * 2
    assert not (tmp_path / "cache").exists()


def test_a_user_without_a_home_names_a_folder_for_the_shim(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(SpecError, match="no home for the shim; name a folder"):
        shim_command.main(["install"])
    assert not list(tmp_path.iterdir())


def test_completion_finds_the_mark_in_the_file_as_in_stocks(tmp_path):
    for command in ("ansible", "ansible-playbook", "ansible-console"):
        assert "PYTHON_ARGCOMPLETE_OK" in (shim(tmp_path / "shim") / command).read_text()[:1024]


def test_without_a_command_to_replace_the_environment_that_installed_the_shim_is_used(tmp_path):
    folder = shim(tmp_path / "shim")
    env = shim_support.with_source(environ(tmp_path, folder))
    done = call(["ansible-playbook", "--version"], env, tmp_path)
    assert f"({sys.executable})" in done.stdout, done.stderr
    for path in folder.iterdir():  # and if that environment is gone, there is a sentence
        path.write_text(path.read_text().replace(sys.executable, str(tmp_path / "gone")))
    done = call(["ansible-playbook", "--version"], env, tmp_path)
    assert done.returncode == 127
    assert (
        done.stderr == "forkless shim: ansible-playbook is not installed: there is no other ansible-playbook on PATH\n"
    )


def test_pip_install_alone_gives_nobody_another_ansible_playbook():
    import tomllib

    project = tomllib.loads((pathlib.Path(shim_support.SOURCE).parent / "pyproject.toml").read_text())
    assert set(project["project"]["scripts"]) == {"forkless"}
    assert "shared-data" not in project["tool"]["hatch"]["build"]["targets"]["wheel"]
