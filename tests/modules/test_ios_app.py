# SPDX-License-Identifier: GPL-3.0-or-later
"""The app for phones, with Toga's dummy backend: what its buttons do, without a screen."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
APP = ROOT / "examples" / "ios" / "src"

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(600)]

STOPPABLE = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug: {msg: before}
    - ansible.builtin.wait_for: {timeout: 600}
    - ansible.builtin.debug: {msg: after}
"""

# The app wants a process for itself: Toga has one app, and its loop is the process's.
DRIVER = """
import asyncio, pathlib, sys
from forkless_app.app import main

async def until(true):
    for _ in range(6000):
        if true():
            return
        if app.status.text.startswith("failed"):
            break
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come about: " + app.status.text + app.output.value)

def press(button):
    assert button.enabled
    button._impl.simulate_press()

async def story():
    titles = [item.value for item in app.selection.items]
    assert titles == ["Sleeper", "This device"], titles
    assert (app.run_button.enabled, app.stop_button.enabled) == (True, False)

    app.selection.value = "This device"
    press(app.run_button)
    await until(lambda: app.status.text == "done")
    assert "PLAY RECAP" in app.output.value and "failed=0" in app.output.value, app.output.value
    assert (app.run_button.enabled, app.stop_button.enabled) == (True, False)
    assert (app.home / "note").read_text().startswith("seen by ")

    app.selection.value = "Sleeper"
    press(app.run_button)
    await until(lambda: "before" in app.output.value)
    assert (app.run_button.enabled, app.stop_button.enabled) == (False, True)
    assert "This device" not in app.output.value
    press(app.stop_button)
    await until(lambda: app.status.text == "stopped")
    assert "after" not in app.output.value
    assert (app.run_button.enabled, app.stop_button.enabled) == (True, False)
    print("the end")

app = main(pathlib.Path(sys.argv[1]))
app.loop.run_until_complete(story())
"""


def run_app(tmp_path, *before):
    data = tmp_path / "app"
    (data / "playbooks").mkdir(parents=True)
    (data / "playbooks" / "sleeper.yml").write_text(STOPPABLE)
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    environ = {**os.environ, "TOGA_BACKEND": "toga_dummy", "PYTHONPATH": f"{ROOT / 'src'}:{APP}"}
    return subprocess.run(
        [sys.executable, *before, str(driver), str(data)], env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture(autouse=True)
def toga_is_there():
    pytest.importorskip(
        "toga_dummy", reason="the app's screen is tested with Toga's dummy backend: pip install toga-dummy"
    )


def test_the_buttons_list_run_follow_and_stop(tmp_path):
    done = run_app(tmp_path)
    assert done.stdout.endswith("the end\n"), done.stdout + done.stderr


def test_it_does_so_in_a_sealed_process_too(tmp_path):
    done = run_app(tmp_path, str(ROOT / "tests" / "sealing.py"))
    assert done.stdout.endswith("the end\n"), done.stdout + done.stderr


def test_one_run_at_a_time(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from forkless_app.library import Playbook, Session

    async def story():
        session = Session(tmp_path, lambda text: None, lambda: None)
        session._under_way = asyncio.ensure_future(asyncio.sleep(600))
        with pytest.raises(RuntimeError, match="stop it first"):
            session.start(Playbook("x", tmp_path / "x.yml"))
        session.stop()
        with pytest.raises(asyncio.CancelledError):
            await session._under_way

    asyncio.run(story())
