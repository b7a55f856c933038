# SPDX-License-Identifier: GPL-3.0-or-later
"""One PostgreSQL for all tests of a process, and a database for each test."""

from __future__ import annotations

import sys
import uuid

import psycopg
import pytest

from queue_support import Database, Workers, postgresql


@pytest.fixture(scope="session")
def server():
    with postgresql() as running:
        yield running


def admin(server, statement):
    with psycopg.connect(server.url.replace("@/forkless?", "@/postgres?"), autocommit=True) as connection:
        connection.execute(statement)


@pytest.fixture
def url(server):
    """A fresh database with the schema."""
    name = f"t{uuid.uuid4().hex}"
    admin(server, f"CREATE DATABASE {name} TEMPLATE forkless")
    yield server.url.replace("@/forkless?", f"@/{name}?")
    admin(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(url):
    return Database(url)


@pytest.fixture
def workers(url, tmp_path):
    made = Workers(url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def project(tmp_path):
    """A folder with an inventory of one local host and a playbook that appends a line to the file `acts` outside of it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "hosts.ini").write_text(
        "web1 ansible_connection=local ansible_python_interpreter=" + sys.executable + "\n"
    )
    return folder
