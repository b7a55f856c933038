# SPDX-License-Identifier: GPL-3.0-or-later
"""
Who is connected to whom: one connection for each (run, settings), shared by all tasks of the run.

Outside a run, as under stock ansible-playbook, a connection lives as long as somebody holds a Link to it. Inside one it
is kept until `close_all(run)`, which the engine calls at the run's end. The loop, and asyncio with it, are
imported with the first connection: most runs have none.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable, Iterator

    from forkless.ssh._done import Become, Done
    from forkless.ssh._host import Host
    from forkless.ssh._loop import Loop
    from forkless.ssh._settings import Settings
    from forkless.ssh._wire import Wire

__all__ = ["RUN", "Link", "close_all", "kept", "reset"]

T = TypeVar("T")

# The run that the current thread works for. An engine sets it in each of its workers; nobody else does.
RUN: contextvars.ContextVar[Hashable | None] = contextvars.ContextVar("forkless.ssh.run", default=None)


class _Pool:
    def __init__(self) -> None:
        # Guards the fields, and the loop's coming and going. Held while the loop is ended, by nothing on the loop.
        self.lock = threading.Lock()
        self.loop: Loop | None = None
        self.hosts: dict[tuple[Hashable | None, Settings], Host] = {}
        self.kept: set[Hashable] = set()
        self.busy = 0  # calls under way; the loop is not ended under them

    def enter(self) -> Loop:
        from forkless.ssh._loop import Loop

        with self.lock:
            if self.loop is None or self.loop.pid != os.getpid():
                self.loop, self.hosts = Loop(), {}
            self.busy += 1
            return self.loop

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on the loop and wait for it; the loop is there for as long as that takes."""
        loop = self.enter()
        try:
            return loop.call(work)
        finally:
            self.leave()

    def leave(self) -> None:
        with self.lock:
            self.busy -= 1
            if self.loop is not None and not self.busy and not self.hosts:
                self.loop.end()
                self.loop = None


_pool = _Pool()


def _forget_in_child() -> None:
    """A forked child has the parent's sockets but not its thread: what it inherits is the parent's, not its own."""
    global _pool  # noqa: PLW0603  # the one process-wide thing of this room
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class Link:
    """One worker's hold on a connection. `close()` lets go of it; it does not end what others use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run = RUN.get()
        self._held = False

    @property
    def _key(self) -> tuple[Hashable | None, Settings]:
        return (self.run, self.settings)

    async def _host(self) -> Host:
        from forkless.ssh._host import Host

        host = _pool.hosts.get(self._key)
        if host is None:
            host = _pool.hosts[self._key] = Host(self.settings)
        if not self._held:
            self._held = True
            host.leases += 1
        return host

    def connect(self, attempts: int = 1) -> None:
        async def work() -> None:
            host = await self._host()
            try:
                await host.connection(attempts)
            except BaseException:  # cancelled as well as failed: a host nobody got is not kept open for him
                await self._let_go()
                raise

        _pool.call(work())

    def execute(
        self,
        command: str,
        *,
        input_: bytes | None = None,
        become: Become | None = None,
        expects_prompt: bool = False,
        password: bytes | None = None,
        tty: bool = False,
        attempts: int = 1,
    ) -> Done:
        async def work() -> Done:
            host = await self._host()
            return await host.run(
                command, input_=input_, become=become, expects_prompt=expects_prompt, password=password, tty=tty,
                attempts=attempts,
            )  # fmt: skip

        return _pool.call(work())

    def wire(self, command: str, **more: Any) -> Wire:
        """A channel that stays: see `Host.wire`."""

        async def work() -> Wire:
            return await (await self._host()).wire(command, **more)

        wire: Wire = _pool.call(work())
        return wire

    def put(self, source: str, target: str, *, method: str = "smart", attempts: int = 1) -> None:
        async def work() -> None:
            await (await self._host()).files.put(source, target, method, attempts)

        _pool.call(work())

    def fetch(self, source: str, target: str, *, method: str = "smart", attempts: int = 1) -> None:
        async def work() -> None:
            await (await self._host()).files.fetch(source, target, method, attempts)

        _pool.call(work())

    async def _let_go(self) -> None:
        host = _pool.hosts.get(self._key)
        if host is None or not self._held:
            return
        self._held = False
        host.leases -= 1
        if host.leases <= 0 and self.run not in _pool.kept:
            del _pool.hosts[self._key]
            await host.close()

    def close(self) -> None:
        if self._held and _pool.loop is not None:
            _pool.call(self._let_go())

    def reset(self) -> None:
        """End the connection itself, for everyone; the next command opens a fresh one (meta: reset_connection)."""

        async def work() -> None:
            host = _pool.hosts.pop(self._key, None)
            self._held = False
            if host is not None:
                await host.close()

        if _pool.loop is not None:
            _pool.call(work())


def reset(settings: Settings) -> None:
    Link(settings).reset()


@contextlib.contextmanager
def kept(run: Hashable) -> Iterator[None]:
    """Keep the connections of `run` open from here to the end of the block, on whatever thread they are used."""
    token = RUN.set(run)
    _pool.kept.add(run)
    try:
        yield
    finally:
        RUN.reset(token)
        close_all(run)


def close_all(run: Hashable) -> None:
    """
    Close every connection of `run`, at once and for good: its end, or its cancellation.

    A command that still runs on one of them ends with an error; its channel is closed, so the host stops it.
    """

    async def work() -> None:
        import asyncio

        hosts = [_pool.hosts.pop(key) for key in list(_pool.hosts) if key[0] == run]
        await asyncio.gather(*(host.close() for host in hosts))

    _pool.kept.discard(run)
    if _pool.loop is None:
        return
    _pool.call(work())
