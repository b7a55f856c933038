# SPDX-License-Identifier: GPL-3.0-or-later
"""What counts as a difference between stock and forkless, when integration targets of collections are compared."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from collection_targets import Ended, targets_of, verdict

SAID = """TASK [one] ****
ok: [testhost] => {"path": "/root/.ansible/tmp/ansible-local-12ab/tmpx1y2", "at": "2026-01-01 10:00:00.5"}
PLAY RECAP ****
testhost : ok=1 changed=0 unreachable=0 failed=0
"""


def ended(text=SAID, code=0, errors=""):
    return Ended(code, text, errors, 1.0)


@pytest.mark.parametrize(
    ("ours", "word"),
    [
        (ended(), "same"),
        (ended(SAID.replace("ansible-local-12ab/tmpx1y2", "ansible-local-99zz/tmpq8").replace("10:00", "11:07")), "same"),
        (ended(code=2), "exit code"),
        (ended(SAID.replace("changed=0", "changed=1")), "recap"),
        (ended(SAID.replace("/root/", "/home/")), "output"),
        (ended(errors="[WARNING]: something that stock does not say\n"), "output"),
    ],
    ids=["nothing", "names and times", "exit code", "recap", "a path", "a warning"],
)  # fmt: skip
def test_a_difference_is_told_by_its_kind(ours, word):
    assert verdict(ended(), ended(), ours)[0] == word


def test_where_two_runs_of_stock_differ_only_tasks_and_states_are_compared():
    again = ended(SAID.replace("/root/", "/var/"))
    assert verdict(ended(), again, ended(SAID.replace("/root/", "/home/")))[0] == "same"
    assert verdict(ended(), again, ended(SAID.replace("ok: [", "changed: [")))[0] == "output"


def test_a_target_that_fails_on_stock_is_not_compared():
    assert verdict(ended(code=2), ended(code=2), ended())[0] == "stock fails"


def test_a_target_that_stock_does_not_finish_in_time_is_told_apart_from_one_that_fails():
    assert verdict(ended(code=None), ended(code=None), ended())[0] == "too slow"


def test_targets_that_cannot_run_here_are_left_out(tmp_path):
    for name, aliases in {
        "runs": "azp/posix/1\n",
        "cloudy": "cloud/x\n",
        "setup_x": "",
        "off": "unsupported\n",
    }.items():
        folder = tmp_path / "tests/integration/targets" / name
        (folder / "tasks").mkdir(parents=True)
        (folder / "aliases").write_text(aliases)
    assert targets_of(tmp_path) == ["runs"]
