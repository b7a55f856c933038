# SPDX-License-Identifier: GPL-3.0-or-later
"""What ansible-core refuses to start with: the words and the exit code of ansible-playbook; in a program, an error of ours."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

import forkless

SOURCE = pathlib.Path(__file__).parent.parent.parent / "src"
STOCK = [str(pathlib.Path(sys.executable).parent / "ansible-playbook")]
OURS = [sys.executable, "-m", "forkless", "playbook"]
PLAY = "- hosts: localhost\n  gather_facts: false\n  tasks: [{debug: {msg: hello}}]\n"

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300)]

# By name: ansible.cfg, the environment, and what stock exits with.
CASES = {
    "a file of another kind": ("", {"ANSIBLE_CONFIG": "/dev/null"}, 5),
    "no section": ("forks = 1\n", {}, 5),
    "a section that is not closed": ("[defaults\nforks = 1\n", {}, 5),
    "an option that is given twice": ("[defaults]\nforks = 1\nforks = 2\n", {}, 5),
    "a value of the wrong type": ("[defaults]\nforks = many\n", {}, 5),
    "a variable of the wrong type": ("", {"ANSIBLE_FORKS": "many"}, 5),
    "a value that is no choice": ("", {"ANSIBLE_DUPLICATE_YAML_DICT_KEY": "perhaps"}, 5),
    "a home that cannot be": ("", {"ANSIBLE_HOME": "/dev/null/home"}, 5),
    "a locale that is not there": ("", {"LC_ALL": "xx_YY.UTF-8"}, 1),
    "a locale that is not UTF-8": ("", {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, 1),
    "a callback that is not there": ("[defaults]\nstdout_callback = no_such\n", {}, None),
    "bytes that are no text": ("[defaults]\n# \udce9\nforks = 2\n", {}, None),
}


def call(command, folder, environ):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "LC_"))}
    env |= {"PYTHONPATH": str(SOURCE), "ANSIBLE_LOCALHOST_WARNING": "0", **environ}
    done = subprocess.run(
        [*command, "-i", "localhost,", "-c", "local", "play.yml"],
        cwd=folder, env=env, capture_output=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


# One file and one variable that ansible-core refuses are enough on other pairs: for all of these it is one error, which has other words.
REFUSED_ALIKE = (
    "a file of another kind", "a section that is not closed", "an option that is given twice", "a value of the wrong type",
    "a value that is no choice",
)  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in REFUSED_ALIKE else pytest.mark.matrix_ends) for case in CASES]
)
def test_the_command_ends_as_ansible_playbook_does(tmp_path, case):
    text, environ, code = CASES[case]
    (tmp_path / "play.yml").write_text(PLAY)
    if text:
        (tmp_path / "ansible.cfg").write_text(text, "utf-8", "surrogateescape")
    theirs, ours = call(STOCK, tmp_path, environ), call(OURS, tmp_path, environ)
    assert ours == theirs
    assert code in (None, theirs[0])


def test_streams_that_do_not_block_are_refused_in_the_same_words(tmp_path):
    (tmp_path / "play.yml").write_text(PLAY)
    said = []
    for command in (STOCK, OURS):
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            done = subprocess.run(
                [*command, "play.yml"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SOURCE)},
                stdin=reading, capture_output=True, text=True, check=False,
            )  # fmt: skip
        finally:
            os.close(reading)
            os.close(writing)
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]
    assert said[0][0] == 1


@pytest.mark.parametrize(
    ("words", "code"), [(["completion", "bash"], 2), (["doctor", "--seams"], 1)], ids=["completion", "doctor"]
)
def test_a_command_that_only_asks_ansible_core_says_why_it_cannot(tmp_path, words, code):
    done = subprocess.run(
        [sys.executable, "-m", "forkless", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "ANSIBLE_FORKS": "many"},
    )  # fmt: skip
    assert done.returncode == code
    sentence = "ansible-core does not start with this configuration: Config 'DEFAULT_FORKS'"
    if words[0] == "doctor":  # one finding among others
        assert sentence in done.stdout
        assert done.stderr == ""
    else:
        assert re.fullmatch(rf"forkless completion: {sentence}.*\n", done.stderr)


def test_a_program_gets_an_error_of_ours_and_can_go_on(tmp_path, capfd):
    (tmp_path / "play.yml").write_text(PLAY)
    spec = {"playbook": "play.yml", "inventory": "localhost,", "cwd": tmp_path, "engine": "threads"}
    with pytest.raises(forkless.SpecError, match=re.compile("does not start with this configuration: .*DEFAULT_FORKS")):
        forkless.run(**spec, env={"ANSIBLE_FORKS": "many"})
    assert capfd.readouterr() == ("", "")
    result = forkless.run(**spec, env={"ANSIBLE_FORKS": "2"}, extra_vars={"ansible_connection": "local"})
    result.raise_for_failures()


@pytest.mark.parametrize("hidden_by", ["ansible.py", "ansible/__init__.py"])
def test_what_hides_ansible_core_is_named(tmp_path, hidden_by):
    hiding = tmp_path / hidden_by
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("__version__ = '0'\n")
    program = "import forkless\ntry: forkless.run('a.yml')\nexcept forkless.UnsupportedError as err: raise SystemExit(f'forkless: {err}')\n"
    for words in (["-m", "forkless", "playbook", "a.yml"], ["-c", program]):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode != 0
        assert done.stderr.startswith(f"forkless: 'import ansible' finds {hiding}, which is not a whole ansible-core")
        assert len(done.stderr.splitlines()) == 1


def test_a_command_in_a_folder_that_was_removed_says_so(tmp_path):
    program = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); from forkless.cli import main; sys.exit(main(['jobs', 'status', '-i', 'web1,']))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "forkless: the working directory does not exist\n")
