# SPDX-License-Identifier: GPL-3.0-or-later
"""pwd and grp where the system has none: as much as Ansible needs, and gone again afterwards."""

from __future__ import annotations

import os
import sys

import pytest

from forkless.engines.threads import absent_modules


@pytest.fixture
def without(monkeypatch):
    """A system that lacks the two."""
    for name in ("pwd", "grp"):
        monkeypatch.setitem(sys.modules, name, None)


def test_where_they_are_there_nothing_is_put_in():
    before = sys.modules["pwd"]
    take_out = absent_modules.fill_in()
    assert sys.modules["pwd"] is before
    take_out()


def test_users_and_groups_are_read_from_the_files(without):
    take_out = absent_modules.fill_in()
    import grp
    import pwd

    try:
        assert pwd.getpwnam("root").pw_uid == 0
        assert pwd.getpwuid(0)[0] == "root"
        assert grp.getgrgid(0).gr_name == grp.getgrall()[0].gr_name
        with pytest.raises(KeyError, match="name not found"):
            pwd.getpwnam("nobody-by-this-name")
    finally:
        take_out()
    assert sys.modules["pwd"] is None


def test_whoever_runs_this_is_known_even_where_no_file_says_so(without, monkeypatch):
    monkeypatch.setattr(absent_modules, "_lines", lambda path, fields: [])
    monkeypatch.setenv("LOGNAME", "mobile")
    monkeypatch.setenv("HOME", "/var/mobile")
    take_out = absent_modules.fill_in()
    import grp
    import pwd

    try:
        me = pwd.getpwuid(os.getuid())
        assert (me.pw_name, me.pw_dir) == ("mobile", "/var/mobile")
        assert grp.getgrgid(os.getgid()).gr_gid == os.getgid()
    finally:
        take_out()
