# SPDX-License-Identifier: GPL-3.0-or-later
"""Completions, by the shells themselves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

import docs_blocks
from terminal import Terminal

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("completion")]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """All three and the flags that they are made from, made once, and a `forkless` on the way to be completed."""
    folder = tmp_path_factory.mktemp("completion")
    code = """
import json, pathlib, sys
from forkless.cli.commands.completion import flags, script
folder = pathlib.Path(sys.argv[1])
for shell in ("bash", "zsh", "fish"):
    (folder / f"c.{shell}").write_text(script(shell))
(folder / "flags.json").write_text(json.dumps({command: [name for flag in its for name in flag.names] for command, its in flags().items()}))
"""
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=200)
    (folder / "site.yml").write_text("")
    return folder


def needs(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"missing: {shell} (apt-get install {shell})")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pl"], {"playbook"}),
        (["playbook", "--che"], {"--check"}),
        (["playbook", "--rep"], {"--report"}),
        (["adhoc", "--module-n"], {"--module-name"}),
        (["playbook", "--format", "js"], {"jsonl", "json"}),
        (["playbook", "si"], {"site.yml"}),
        (["playbook", "--sli"], {"--slices", "--slices-anyway"}),
        (["jobs", "cl"], {"cleanup"}),
        (["jobs", "cleanup", "--old"], {"--older-than"}),
        (["run", "--rot"], {"--rotate-artifacts"}),
        (["watch", "--no-f"], {"--no-follow"}),
        (["users", "rol"], {"role"}),
        (["serve", "--por"], {"--port"}),
        (["completion", "z"], {"zsh"}),
    ],
)
def test_bash_offers(scripts, words, offered):
    needs("bash")
    line = f"source ./c.bash; COMP_WORDS=(forkless {' '.join(words)}); COMP_CWORD={len(words)}; _forkless; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", line], cwd=scripts, capture_output=True, text=True, check=True, timeout=240)
    assert set(done.stdout.split()) == offered


def test_bash_completes_at_a_terminal(scripts):
    needs("bash")
    with Terminal("--norc", "-i", program=["bash"], cwd=scripts, env={"PS1": "> "}) as shell:
        shell.type("source ./c.bash\n")
        shell.type("forkless playbook --che\t")
        shell.until("forkless playbook --check")


def test_zsh_completes_at_a_terminal(scripts):
    needs("zsh")
    with Terminal("-f", "-i", program=["zsh"], cwd=scripts) as shell:
        shell.type("autoload -U compinit; compinit -u -D; source ./c.zsh; echo rea''dy\n")
        shell.until("ready")
        shell.type("forkless playbook --che\t")
        shell.until("forkless playbook --check")


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("forkless playbook --che", "--check"),
        ("forkless do", "doctor"),
        ("forkless jobs cleanup --older", "--older-than"),
    ],
)
def test_fish_offers(scripts, line, first):
    needs("fish")
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source c.fish; complete -C '{line}'"],
        cwd=scripts, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert [one.split("\t")[0] for one in done.stdout.splitlines()] == [first]


def test_the_pages_name_only_flags_that_there_are(scripts):
    known = json.loads((scripts / "flags.json").read_text())
    seen, wrong = 0, []
    for page in docs_blocks.pages():
        for line in (docs_blocks.ROOT / page).read_text().splitlines():
            # A command ends where the shell or the sentence ends it, and where a remark begins.
            for found in re.finditer(r"(?<![\w./-])forkless ([a-z]+(?: [a-z]+)?)([^`|;&#)]*?)(?:  |[`|;&#)]|$)", line):
                words = found[1].split()
                command = next((name for name in (found[1], words[0]) if name in known), "exec")
                for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", found[2] if command != "exec" else ""):
                    seen += 1
                    if flag not in known[command]:
                        wrong.append(f"{page}: forkless {command} {flag}")
    assert wrong == []
    assert seen > 40
