# SPDX-License-Identifier: GPL-3.0-or-later
"""An installed ansible-core whose code differs from the tested releases: refused, used without a seam, or used as it is."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spawns]

SPEED = "ansible.playbook.base:FieldAttributeBase.dump_attrs"
LATE = "ansible.module_utils.urls:urllib"
CORRECTNESS = "ansible.plugins.strategy:StrategyBase._queue_task"
PLAY = "- hosts: localhost\n  gather_facts: false\n  tasks:\n  - ansible.builtin.debug: {msg: it ran}\n"


@pytest.fixture
def core(tmp_path):
    """A copy of the installed ansible-core that comes first on the path, its files to be changed."""
    import ansible

    package = pathlib.Path(ansible.__file__).parent
    copy = tmp_path / "core"
    copy.mkdir()
    shutil.copytree(package, copy / "ansible", ignore=shutil.ignore_patterns("__pycache__", "modules", "galaxy"))
    (copy / "ansible" / "modules").symlink_to(package / "modules")
    (copy / "ansible" / "galaxy").symlink_to(package / "galaxy")
    (tmp_path / "site.yml").write_text(PLAY)
    return copy / "ansible"


def change(file, pattern, replacement):
    text, count = re.subn(pattern, replacement, file.read_text(), count=1)
    assert count == 1, "the copy has nothing to change"
    file.write_text(text)


def python(core, *arguments):
    path = os.pathsep.join([str(core.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments], cwd=core.parents[1], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path}, timeout=240,
    )  # fmt: skip


def forkless(core, *arguments):
    return python(core, "-m", "forkless", *arguments)


def line_of(done, site):
    (line,) = [line for line in done.stdout.splitlines() if f" {site}  (" in line]
    return line.split()


def test_an_unchanged_copy_is_as_good_as_the_original(core):
    done = forkless(core, "doctor", "--seams")
    assert ", 0 moved" in done.stdout, done.stdout + done.stderr
    assert line_of(done, SPEED)[:2] == ["ok", "speed"]
    assert line_of(done, CORRECTNESS)[:2] == ["ok", "correctness"]


@pytest.mark.matrix_ends
def test_a_seam_for_speed_is_left_out_if_its_target_has_changed_at_all(core):
    change(core / "playbook/base.py", r"( +)(def dump_attrs\(self\)[^\n]*\n)", r"\1\2\1    changed = 1\n")
    done = forkless(core, "playbook", "-i", "localhost,", "-c", "local", "site.yml")
    assert done.returncode == 0, done.stderr
    assert "it ran" in done.stdout
    script = (
        "from forkless.engines.threads import importing; from forkless.engines.threads.patches import table\n"
        "from forkless.patching import seams; importing.import_ansible(ours=False)\n"
        "from ansible.playbook.base import FieldAttributeBase as base\n"
        "dump, copy = base.dump_attrs, base.copy\n"
        "with seams.installed(table.SEAMS): print(base.dump_attrs is dump, base.copy is copy)\n"
    )
    said = python(core, "-c", script)
    assert said.stdout.split() == ["True", "False"], said.stderr
    told = forkless(core, "doctor", "--seams")
    assert line_of(told, SPEED)[:3] == ["left", "out", "speed"]
    assert re.search(r"runs are right, but slower: .*dump_attrs", told.stdout)


@pytest.mark.matrix_ends
def test_a_run_is_refused_if_the_target_of_a_seam_for_correctness_has_another_shape(core):
    change(core / "plugins/strategy/__init__.py", r"def _queue_task\(self, host,", "def _queue_task(self, lane, host,")
    done = forkless(core, "playbook", "-i", "localhost,", "-c", "local", "site.yml")
    assert done.returncode not in (0, 2)
    assert "it ran" not in done.stdout
    assert f"  - {CORRECTNESS}: has changed: it was function (self, host," in done.stderr, done.stderr
    assert "and is function (self, lane, host," in done.stderr
    assert "Traceback" not in done.stderr
    told = forkless(core, "doctor", "--seams")
    assert told.returncode == 1
    assert line_of(told, CORRECTNESS)[:2] == ["moved", "correctness"]


def test_a_target_for_correctness_whose_shape_is_kept_is_used_and_named_by_the_doctor(core):
    change(core / "plugins/strategy/__init__.py", r"( +)(def _queue_task\([^\n]*\n)", r"\1\2\1    changed = 1\n")
    done = forkless(core, "playbook", "-i", "localhost,", "-c", "local", "site.yml")
    assert (done.returncode, "it ran" in done.stdout) == (0, True), done.stderr
    told = forkless(core, "doctor", "--seams")
    assert line_of(told, CORRECTNESS)[:2] == ["changed", "correctness"]


def test_a_late_seam_whose_target_has_moved_is_refused_before_the_run_begins(core):
    change(core / "module_utils/urls.py", r"\Z", "\nimport urllib.parse as urllib\n")
    done = forkless(core, "playbook", "-i", "localhost,", "-c", "local", "site.yml")
    assert done.returncode not in (0, 2)
    assert "it ran" not in done.stdout
    assert f"  - {LATE}: has changed: it was module urllib, and is module urllib.parse" in done.stderr, done.stderr


def test_a_late_seam_whose_target_moves_after_that_is_refused_when_it_is_imported(core):
    """An upgrade while the process lives: the files were compared when the first run began."""
    script = (
        "import pathlib, sys\n"
        "from forkless.engines.threads import importing; from forkless.engines.threads.patches import table\n"
        "from forkless.patching import seams; importing.import_ansible(ours=False)\n"
        "from forkless import SeamError\n"
        "seams.check(table.SEAMS)\n"
        "with seams.installed(table.SEAMS):\n"
        "    assert 'ansible.module_utils.urls' not in sys.modules\n"
        "    file = pathlib.Path(sys.argv[1], 'module_utils/urls.py')\n"
        "    file.write_text(file.read_text() + '\\nimport urllib.parse as urllib\\n')\n"
        "    try: import ansible.module_utils.urls\n"
        "    except SeamError as error: print(error)\n"
        "    assert 'ansible.module_utils.urls' not in sys.modules\n"
    )
    said = python(core, "-c", script, str(core))
    assert f"  - {LATE}: has changed: it was module urllib, and is module urllib.parse" in said.stdout, said.stderr
