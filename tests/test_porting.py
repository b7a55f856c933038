# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m forkless.porting: what moved is told with its diff, and so are new lines that no fingerprint shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from forkless import porting
from forkless.core import versions
from forkless.patching import fingerprints, seams

pytestmark = [pytest.mark.spawns]


def made(version, **fields):
    return porting.Survey(version, "", **fields)


@pytest.mark.matrix_ends
def test_a_survey_finds_every_place_of_the_installed_ansible_core():
    done = subprocess.run(
        [sys.executable, "-m", "forkless.porting", "--survey"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    seen = porting.Survey(**json.loads(done.stdout.splitlines()[-1]))
    assert seen.version == seams.version()
    minor = versions.minor_of(seen.version)
    assert [site for site, look in seen.looks.items() if look not in fingerprints.looks(minor, site)] == []
    assert seen.worker_arguments[0] == "self"
    assert set(seen.worker_arguments) <= {*seen.our_arguments, "args", "kwargs"}
    assert "def run" in seen.sources["ansible.plugins.strategy:WorkerProcess"]


def test_a_seam_that_moved_is_told_with_a_diff_of_its_function():
    site = "ansible.cli:CLI.run"
    known = made("2.21.5", looks={site: "one"}, sources={site: "def run(self):\n    pass\n"})
    new = made(
        "2.22.0", looks={site: "two"}, sources={site: "def run(self):\n    start()\n"}, reasons={site: "a reason"}
    )
    lines, diffs = porting.compare(known, new)
    assert lines == [f"{site}: has changed (a reason)"]
    assert diffs[:2] == [f"--- 2.21.5 {site}", f"+++ 2.22.0 {site}"]
    assert diffs[-2:] == ["-    pass", "+    start()"]


@pytest.mark.matrix_ends
def test_a_seam_that_is_gone_and_an_argument_that_our_worker_lacks_are_told():
    site = "ansible.cli:CLI.run"
    new = made(
        "2.22.0",
        looks={site: "missing"},
        reasons={site: "a reason"},
        worker_arguments=["self", "trace"],
        our_arguments=["self"],
    )
    lines, _ = porting.compare(made("2.21.5", looks={site: "one"}), new)
    assert lines[0] == f"{site}: is missing (a reason)"
    assert lines[1].startswith("WorkerProcess takes 'trace'")


def test_a_seam_of_the_new_minor_only_is_told_when_it_is_gone():
    site = "ansible.module_utils._internal._debug:signal"
    known = made("2.21.5", looks={site: fingerprints.MISSING})
    lines, _ = porting.compare(known, made("2.22.0", looks={site: fingerprints.MISSING}, reasons={site: "a reason"}))
    assert lines == [f"{site}: is missing (a reason)"]


NEW = """\
os.fork()
signal.signal(signal.SIGUSR1, dump)
'a global function'
global cache
plain = 1
"""


def test_new_lines_that_touch_the_whole_process_are_told(tmp_path):
    for name, text in (("old", "os.fork()\n"), ("new", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "debug.py").write_text(text)
    (tmp_path / "new/modules").mkdir()
    (tmp_path / "new/modules/ping.py").write_text("os._exit(1)\n")
    told = porting.risky_lines(str(tmp_path / "old"), str(tmp_path / "new"))
    assert told == ["debug.py: signal.signal(signal.SIGUSR1, dump)", "debug.py: global cache"]


@pytest.mark.parametrize(
    ("minor", "before"),
    [("2.22", versions.CORES[-2].newest), ("2.99", versions.CORES[-1].newest), ("2.18", versions.CORES[-1].newest)],
)
def test_it_is_compared_with_the_minor_before(minor, before):
    assert porting._before(minor) == before


def test_fingerprints_of_a_release_that_is_not_tested_are_not_written():
    assert porting._write(None, "2.19.0.dev0").startswith("no fingerprints were written: of 2.19 2.19.0 and 2.19.")


def test_who_names_nothing_is_told_what_to_name(capsys):
    assert porting.main([]) == 2
    assert "name a release of ansible-core" in capsys.readouterr().err
