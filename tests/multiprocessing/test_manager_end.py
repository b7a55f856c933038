# SPDX-License-Identifier: GPL-3.0-or-later
"""A manager's accepting thread ends with its server, whatever it is doing at that moment."""

from __future__ import annotations

import threading
from multiprocessing import connection, managers

import pytest

from forkless.multiprocessing import _managers


def test_a_thread_that_comes_back_to_a_closed_door_leaves():
    listener = connection.Listener()
    door = _managers._Door(listener)
    door.shut(listener.address)  # while the thread is busy with the visitor before
    with pytest.raises(_managers._Shut):
        door.accept()


def test_it_leaves_the_stdlibs_loop():
    listener = connection.Listener()
    server = type("Server", (), {"accepter": managers.Server.accepter, "listener": _managers._Door(listener)})()
    server.listener.shut(listener.address)
    thread = threading.Thread(target=_managers._accept, args=(server,), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_an_error_before_it_is_shut_is_the_stdlibs_to_judge():
    listener = connection.Listener()
    door = _managers._Door(listener)
    listener.close()
    with pytest.raises(OSError):
        door.accept()
