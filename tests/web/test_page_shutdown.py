# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of `forkless serve`: after SIGTERM it ends by itself, whatever its runs do, and each run is where it belongs."""

from __future__ import annotations

import signal

import pytest

from queue_support import PATIENCE, Database, wait_until

from .conftest import Served

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("web")]


def test_after_sigterm_runs_are_handed_back_and_the_command_ends(project, url, tmp_path):
    served = Served(
        "--project", str(project), "--processes", "2", "--shutdown-after", "0.5", FORKLESS_DATABASE=url, XDG_STATE_HOME=str(tmp_path)
    )  # fmt: skip
    database = Database(url)
    try:
        client = served.program()
        asked = {"playbook": "long.yml", "inventory": "hosts.ini", "limit": "web1", "retries": 1}
        again = client.post("/api/runs", json=asked).json()["id"]
        last = client.post("/api/runs", json={"playbook": "long.yml", "inventory": "inventory-evil.yml"}).json()["id"]
        for number in (again, last):
            log = f"/api/runs/{number}/events.jsonl"
            wait_until(lambda log=log: "still-at-it" in client.get(log).text, "output of the task")
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(PATIENCE)
    finally:
        served.close()
    told = {
        number: rest for number, *rest in database.all("SELECT id, status, concat(note, sentence) FROM forkless.run")
    }
    # The first has a retry left and begins when the next worker is there.
    assert (told[again][0], told[last][0]) == ("waiting", "lost")
    assert all("was shut down" in why for _, why in told.values()), told


@pytest.mark.parametrize("given", ["-1", "nan", "inf"])
def test_the_time_after_sigterm_is_a_number_of_seconds(given, capsys):
    from forkless.cli import main

    assert main(["serve", "--shutdown-after", given]) == 2
    assert "--shutdown-after must be 0 or more" in capsys.readouterr().err
