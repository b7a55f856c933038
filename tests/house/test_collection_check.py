# SPDX-License-Identifier: GPL-3.0-or-later
"""What `make collection` does for the pip that ansible-test calls."""

from __future__ import annotations

import sys
import types

import pytest

import check_collection


def test_pip_has_its_settings_back_after_ensurepip(monkeypatch):
    environ = {"PIP_CERT": "/certs.pem", "HOME": "/home"}
    seen = []

    def bootstrap():  # as ensurepip does
        del environ["PIP_CERT"]
        environ["PIP_CONFIG_FILE"] = "/dev/null"

    def call(command):
        seen.append((command[-1], dict(environ)))
        return 0

    fakes = {"ensurepip": {"bootstrap": bootstrap}, "os": {"environ": environ}, "subprocess": {"call": call}}
    sys_of_it = types.SimpleNamespace(argv=["get_pip.py", "--no-wheel", "pip==1"], executable="python", exit=sys.exit)
    for name, fields in fakes.items():
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**fields))
    monkeypatch.setitem(sys.modules, "sys", sys_of_it)
    with pytest.raises(SystemExit) as left:
        exec(check_collection.GET_PIP, {})
    monkeypatch.undo()
    assert left.value.code == 0
    assert seen == [("pip==1", {"PIP_CERT": "/certs.pem", "HOME": "/home"})]


def test_what_the_environment_tells_pip_is_told_to_the_pip_of_another_home():
    told = check_collection.pip_settings(
        {
            "SSL_CERT_FILE": "/all.pem",
            "PIP_CERT": "/pip.pem",
            "PIP_INDEX_URL": "https://pip%40x/",
            "PIP_CONFIG_FILE": "x",
            "HOME": "y",
        }
    )
    assert told == "[global]\ncert = /pip.pem\nindex-url = https://pip%%40x/\n"
    assert check_collection.pip_settings({"SSL_CERT_FILE": "/all.pem"}) == "[global]\ncert = /all.pem\n"
