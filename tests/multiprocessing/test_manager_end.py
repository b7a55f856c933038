# SPDX-License-Identifier: GPL-3.0-or-later
"""A manager's accepting thread ends with its server, whatever it is doing at that moment."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from multiprocessing import connection, managers

import pytest

import forkless.multiprocessing as fm
from forkless.multiprocessing import managers as thread_managers


def test_a_thread_that_comes_back_to_a_closed_door_leaves():
    listener = connection.Listener()
    door = thread_managers._ClosableListener(listener)
    door.shut(listener.address)  # while the thread is busy with the visitor before
    with pytest.raises(thread_managers._Shut):
        door.accept()


def test_it_leaves_the_stdlibs_loop():
    listener = connection.Listener()
    server = type(
        "Server", (), {"accepter": managers.Server.accepter, "listener": thread_managers._ClosableListener(listener)}
    )()
    server.listener.shut(listener.address)
    thread = threading.Thread(target=thread_managers._accept, args=(server,), daemon=True)
    thread.start()
    thread.join(240)
    assert not thread.is_alive()


def test_an_error_before_it_is_shut_is_the_stdlibs_to_judge():
    listener = connection.Listener()
    door = thread_managers._ClosableListener(listener)
    listener.close()
    with pytest.raises(OSError):
        door.accept()


@pytest.mark.parametrize("serial", [(), ("serial",)], ids=["to 3.13.0", "since 3.13.1"])
def test_a_proxy_gives_its_reference_back_whether_or_not_it_has_a_serial_number(monkeypatch, serial):
    given_back = []
    server = type("Server", (), {"decref": lambda self, _client, ident: given_back.append(ident)})()
    monkeypatch.setitem(thread_managers._servers, "address", server)
    token = managers.Token("list", "address", "ident")
    idset = {serial[0] if serial else "ident"}
    thread_managers.decref(None)(token, *serial, b"key", None, object(), idset, None)
    assert given_back == ["ident"]
    assert not idset


@pytest.mark.matrix
def test_a_server_drops_what_no_proxy_is_left_of():
    with fm.installed(), multiprocessing.get_context("spawn").Manager() as manager:
        kept = manager.list()
        dropped = [manager.list() for _ in range(5)]
        assert manager._number_of_objects() == 6
        del dropped
        gc.collect()
        assert manager._number_of_objects() == 1, kept
