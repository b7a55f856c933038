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


def race_results(path):
    """A row with goals of one measure, one contender that failed and one that is slower in one measure."""
    row = {
        "name": "race-2",
        "title": "2 hosts",
        "goals": {"wall stock": 8.0, "wall pyinfra": 1.0},
        "measures": {
            "wall first": {"stock": [9.0], "pyinfra": [1.0], "forkless": [2.0], "forkless.core.ssh": [1.0]},
            "cpu first": {"stock": [4.0], "pyinfra": [1.0], "forkless": [2.0], "forkless.core.ssh": [1.0]},
            "kB sent first": {"stock": [900.0], "forkless": [9.0]},
        },
        "failed": {"Mitogen": "exit status 4: timed out"},
        "others": [0.1, 1.9, 1.8],
    }
    path.write_text(json.dumps({"shape": 1, "made": {"python": "3"}, "rows": [row]}))
    return str(path)


def test_the_race_is_published_as_a_table_and_a_picture_and_twice_the_same(tmp_path):
    file, page, svg = race_results(tmp_path / "race.json"), tmp_path / "page.md", tmp_path / "race.svg"
    begin, end = "<!-- race: made by python -m bench publish -->", "<!-- end of race -->"
    page.write_text(f"# Head\n\n{begin}\n| old |\n{end}\n\nTail\n")
    bench("publish", file, "--page", str(page), "--svg", str(svg))
    text, drawn = page.read_text(), svg.read_text()
    assert text.startswith(f"# Head\n\n{begin}\n| row |")
    assert text.endswith(f"{end}\n\nTail\n")
    assert "| old |" not in text
    wall = next(line for line in text.splitlines() if "| wall first, s |" in line)
    assert wall == (
        "| `race-2` | wall first, s | 9 | failed | 1 | 2 | 1 "
        "| 4.5x stock (goal 8x: missed by 1.8x); 0.5x pyinfra (goal 1x: missed by 2.0x) | 1.8 cores |"
    )
    assert "- `race-2`: Mitogen failed, exit status 4: timed out" in text
    assert "| `race-2` | kB sent first | 900 | failed | - | 9 | - | - | 1.8 cores |" in text
    bars = {one.get("class") for one in ET.fromstring(drawn).iter() if one.tag.endswith("rect")}
    assert "busy machine" in drawn
    assert "wall first" not in drawn, "wall times of a busy machine were drawn"
    assert len(bars) == 3  # stock, pyinfra and forkless.core.ssh have a colour each
    bench("publish", file, "--page", str(page), "--svg", str(svg))
    assert (page.read_text(), svg.read_text()) == (text, drawn)


def test_rows_of_one_kind_stand_together_and_a_quiet_machine_is_drawn_by_its_wall_times(tmp_path):
    names = ("giant-9", "race-100", "far-80", "race-25-forks-5", "race-25", "far-5", "other")
    measures = {"wall": {"stock": [4.0], "forkless": [2.0]}, "cpu": {"stock": [9.0], "forkless": [3.0]}}
    rows = [{"name": name, "title": name, "measures": measures, "others": [0.1]} for name in names]
    file, page, svg = tmp_path / "race.json", tmp_path / "page.md", tmp_path / "race.svg"
    file.write_text(json.dumps({"shape": 1, "made": {"python": "3"}, "rows": rows}))
    page.write_text("<!-- race: made by python -m bench publish -->\n<!-- end of race -->\n")
    bench("publish", str(file), "--page", str(page), "--svg", str(svg))
    table = [line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    assert list(dict.fromkeys(table)) == [
        "race-25",
        "race-100",
        "race-25-forks-5",
        "far-5",
        "far-80",
        "giant-9",
        "other",
    ]
    drawn = [one.text for one in ET.fromstring(svg.read_text()).iter() if one.tag.endswith("text")]
    assert "wall, against stock" in drawn
    assert "cpu, against stock" not in drawn


def test_the_figures_of_network_devices_are_published_beside_the_race_without_a_picture(tmp_path):
    row = {
        "name": "network-2",
        "title": "2 devices",
        "goals": {"cpu stock, libssh": 20.0, "cpu nornir": 0.5},
        "measures": {
            "cpu": {"stock, libssh": [90.0], "forkless": [3.0, 2.0, 4.0], "nornir": [1.0, 1.0, 1.0]},
            "logins": {"stock, libssh": [2.0], "forkless": [2.0, 2.0, 2.0]},
        },
    }
    file, page = tmp_path / "network.json", tmp_path / "page.md"
    file.write_text(json.dumps({"shape": 1, "made": {"python": "3"}, "rows": [row]}))
    race = "<!-- race: made by python -m bench publish -->\n| race |\n<!-- end of race -->\n"
    begin, end = "<!-- network: made by python -m bench publish -->", "<!-- end of network -->"
    page.write_text(f"{race}{begin}\n| old |\n{end}\n")
    bench("publish", str(file), "--page", str(page))
    text = page.read_text()
    assert text.startswith(f"{race}{begin}\n| row |")
    assert (
        "| `network-2` | cpu, s (3 rounds) | 90 | - | 3 | - | - | 1 | - "
        "| 30x stock, libssh (goal 20x: met); 0.33x nornir (goal 0.5x: missed by 1.5x) | - |"
    ) in text
    assert "| `network-2` | logins (3 rounds) | 2 | - | 2 | - | - | - | - | - | - |" in text
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".svg"] == []


def test_a_page_without_a_place_for_the_table_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Head\n")
    said = bench(
        "publish", race_results(tmp_path / "race.json"), "--page", str(page), "--svg", str(tmp_path / "r.svg"), rc=1
    )
    assert "has no place for the table" in said
    assert page.read_text() == "# Head\n"


def test_results_of_another_shape_are_refused(tmp_path):
    said = bench("table", results(tmp_path / "r.json", "row", [2.0], shape=99), rc=1)
    assert "has shape 99, and this bench reads shape 1" in said


FIGURES = """\
import pathlib, sys
from bench._figures import Figures
for speed in ("5 runs/s", "9 runs/s"):
    figures = Figures("queue", "The queue")
    figures.add("runs", speed)
    figures.publish(pathlib.Path(sys.argv[1]))
"""


def test_figures_are_a_table_in_the_page_that_a_later_one_replaces(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Speed\n\n## Where the limit is\n\nHere.\n")
    done = subprocess.run([sys.executable, "-c", FIGURES, str(page)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nruns: ") == 2
    text = page.read_text()
    assert (text.count("## The queue"), text.count("| runs | 9 runs/s |"), "5 runs/s" in text) == (1, 1, False)
    assert text.index("9 runs/s") < text.index("## Where the limit is\n\nHere.\n")
