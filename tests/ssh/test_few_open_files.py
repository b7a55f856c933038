# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections of a run that has more hosts than its process may open files."""

from __future__ import annotations

import pytest

from forkless.core import platform
from forkless.ssh import connection, kept_runs, pool

LIMIT, AFFORDABLE = 40, 10


class OpenConnections:
    """Which hosts have an open connection, without opening any."""

    def __init__(self):
        self.now, self.most = set(), 0

    def made(self):
        open_ones = self

        class Host(connection.HostConnection):
            async def connection(self, attempts=1):
                open_ones.now.add(self.settings)
                open_ones.most = max(open_ones.most, len(open_ones.now))

            async def _drop(self):
                open_ones.now.discard(self.settings)

        return Host


@pytest.fixture
def open_connections(monkeypatch):
    found = OpenConnections()
    monkeypatch.setattr(connection, "HostConnection", found.made())
    monkeypatch.setattr(platform, "open_files_limit", lambda: LIMIT)
    with kept_runs.kept("a run"):
        yield found
    assert not found.now


def use(number):
    link = pool.Link(number)
    link.connect()
    link.close()


def test_idle_ones_are_closed_those_first_that_were_used_least_recently(open_connections):
    for number in range(AFFORDABLE):
        use(number)
    assert open_connections.now == set(range(AFFORDABLE))
    use(0)  # it is open, and used last now
    use("one more")
    assert open_connections.now == {0, *range(2, AFFORDABLE), "one more"}
    for number in range(100, 200):
        use(number)
    assert open_connections.most == AFFORDABLE


def test_those_in_use_stay_open(open_connections):
    links = [pool.Link(number) for number in range(AFFORDABLE + 5)]
    for link in links:
        link.connect()
    use("one more")
    assert open_connections.now == {*range(AFFORDABLE + 5), "one more"}
    for link in links:
        link.close()


def test_one_with_a_stream_stays_open(open_connections):
    """A warm interpreter is on it, which no task uses at the moment."""
    use("with a stream")
    host = pool._pool.hosts["a run", "with a stream"]
    host._streams["a stream"] = lambda: True
    for number in range(AFFORDABLE * 2):
        use(number)
    assert "with a stream" in open_connections.now
    assert open_connections.most == AFFORDABLE
