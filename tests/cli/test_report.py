# SPDX-License-Identifier: GPL-3.0-or-later
"""The report: what is in it, what must not be, how large it gets, and how a real browser takes it."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile

import pytest

import prepare
from forkless.cli.view import report
from forkless.cli.view.run_view import ReportFile
from forkless.cli.view.timeline import Timeline
from forkless.core.errors import SpecError
from run_events import a_run

CHROMIUM = prepare.browser()
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=prepare.NO_BROWSER)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage",
)  # fmt: skip


def made(**run):
    line = Timeline()
    events = list(a_run(**run))
    for event in events:
        line.feed(event)
    line.began = min(span.start for span in line.spans) - 0.1
    line.close()
    return report.page(line, status="failed", rc=2, facts={"playbook": "<site>.yml"}, recap={})


def browse(page, *more):
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *more, f"file://{page}"],
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_came_from_hosts_is_shown_as_text():
    page = made(
        hosts=3, tasks=2, failed=1, name="<b>&'\"task</script>", message="</pre><script>alert(1)</script>\x1b[0m\x00"
    )
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("</script>") == 2
    assert "\x1b" not in page
    assert "\x00" not in page
    assert "&lt;site&gt;.yml" in page


def test_it_loads_nothing_from_anywhere():
    page = made(hosts=2, tasks=2)
    assert not re.findall(r"""(?:src|href)=|url\(|@import|https?://""", page)
    assert "default-src 'none'" in page


def test_two_hundred_hosts_and_fifty_tasks_stay_a_page_that_opens():
    page = made(hosts=200, tasks=50, failed=200, forks=20)
    assert len(page) < 4_000_000
    assert page.count("<rect") <= 2 * 200 * 50
    assert page.count('<details class="failure"') == 200


def test_of_very_many_hosts_those_that_failed_are_drawn():
    page = made(hosts=900, tasks=3, failed=4, forks=50)
    assert "200 of 900 hosts are drawn" in page
    assert all(f'<div title="host{n:04}">' in page for n in range(4))


@needs_browser
@pytest.mark.spawns
def test_a_real_browser_shows_both_timelines_and_nothing_is_wider_than_the_window(tmp_path):
    page = tmp_path / "run.html"
    page.write_text(made(hosts=200, tasks=50, failed=2, forks=20))
    probe = (
        "<script>addEventListener('load', () => { const b = (id) => document.querySelectorAll(id + ' rect').length;"
        " const r = document.querySelector('#by-host rect'); r.dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));"
        " document.documentElement.dataset.probe = JSON.stringify({host: b('#by-host'), worker: b('#by-worker'),"
        " wide: document.documentElement.scrollWidth - innerWidth, tip: document.getElementById('tip').textContent,"
        " seen: r.getBoundingClientRect().width > 0, names: document.querySelectorAll('#by-host .names div').length}); });</script>"
    )
    (tmp_path / "probe.html").write_text(page.read_text().replace("</body>", probe + "</body>"))
    for width in (1280, 500):
        dom = browse(tmp_path / "probe.html", f"--window-size={width},900", "--dump-dom")
        found = re.search(r'data-probe="([^"]*)"', dom)
        assert found, dom[:300]
        import html
        import json

        seen = json.loads(html.unescape(found[1]))
        assert seen["host"] > 1000
        assert seen["worker"] > 100
        assert seen["names"] == 200
        assert seen["wide"] <= 0
        assert seen["seen"]
        assert re.fullmatch(r"host\d+: task \d+, \w+, [\d.]+ s from [\d.]+ s on, by worker \d+", seen["tip"])
    browse(page, f"--print-to-pdf={tmp_path}/run.pdf")
    assert (tmp_path / "run.pdf").read_bytes().startswith(b"%PDF")


# -- where it goes


def test_a_report_from_before_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "run.html"
    path.write_text("old")
    place = ReportFile(str(path))
    assert path.read_text() == "old"
    place.write("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["run.html"]


def test_a_folder_that_cannot_be_written_is_said_before_the_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for path, why in (
        ("missing/run.html", "No such file"),
        ("file/run.html", "Not a directory"),
        ("", "it is a folder"),
    ):
        with pytest.raises(SpecError, match=why):
            ReportFile(str(tmp_path / path))

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(SpecError, match=r"run.html: Read-only file system; nothing was run"):
        ReportFile(str(tmp_path / "run.html"))


@pytest.mark.spawns
def test_one_sentence_and_nothing_is_run(tmp_path):
    (tmp_path / "play.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - copy: {dest: '{{ playbook_dir }}/ran', content: x}\n"
    )
    command = [sys.executable, "-m", "forkless", "playbook", "play.yml", "--report", "nowhere/run.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"forkless: the report cannot be written to {tmp_path}/nowhere/run.html: No such file or directory; nothing was run\n"
    )
    assert not (tmp_path / "ran").exists()
