# SPDX-License-Identifier: GPL-3.0-or-later
"""What a bench measured becomes a table and a picture; later files win; another shape is refused."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

pytestmark = pytest.mark.spawns

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def results(path, name, ours, **rest):
    measures = {"wall": {"stock": [9.0, 10.0, 30.0], "forkless": ours}}
    row = {
        "name": name,
        "title": "a < b",
        "unit": "s",
        "subject": "forkless",
        "goals": {"stock": 5.0},
        "measures": measures,
    }
    path.write_text(json.dumps({"shape": 1, "made": {"python": "3"}, "rows": [row], **rest}))
    return str(path)


def bench(*arguments, rc=0):
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    assert done.returncode == rc, done.stderr
    return done.stdout + done.stderr


def test_medians_ratios_and_goals_are_told_and_the_later_file_wins(tmp_path):
    old = results(tmp_path / "old.json", "row", [5.0])
    new = results(tmp_path / "new.json", "row", [1.0, 2.0, 3.0])
    said = bench("table", old, new)
    assert "stock 10 | forkless 2   5.00x against stock (goal 5: met)" in said
    assert "2.00x against stock (goal 5: missed)" in bench("table", old)
    assert "| a < b | wall, s | stock 10, forkless 5 | 2.00x against stock (goal 5x) |" in bench(
        "table", old, "--markdown"
    )


def test_the_picture_is_one_and_has_every_ratio(tmp_path):
    bench("plot", results(tmp_path / "r.json", "row", [2.0]), "--svg", str(tmp_path / "r.svg"))
    drawn = ET.parse(tmp_path / "r.svg").getroot()
    texts = [node.text for node in drawn.iter() if node.tag.endswith("text")]
    assert "a < b" in texts
    assert "5.00x" in texts


def test_results_of_another_shape_are_refused(tmp_path):
    said = bench("table", results(tmp_path / "r.json", "row", [2.0], shape=99), rc=1)
    assert "has shape 99, and this bench reads shape 1" in said
