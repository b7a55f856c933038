# SPDX-License-Identifier: GPL-3.0-or-later
"""
The SSH connections of this process: one for each (run, settings), shared by all tasks of the run.

Outside a run, as under stock ansible-playbook, a connection is closed when its last Link is. Inside a run it is kept
until `close_all(run)`, which the engine calls when the run ends. The event loop and asyncio are imported by the first
connection, because most runs have none.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from forkless.core import platform
from forkless.core.run_context import SCOPE, BareRun
from forkless.ssh.kept_runs import KEPT

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Coroutine, Hashable

    from forkless.core.run_context import RunScope
    from forkless.ssh.connection import HostConnection
    from forkless.ssh.event_loop import EventLoopThread
    from forkless.ssh.result import Become, CommandResult, TellData
    from forkless.ssh.settings import Settings
    from forkless.ssh.shell import InteractiveShell
    from forkless.ssh.stream import Stream

__all__ = ["RUN", "Link", "close_all", "reset"]

T = TypeVar("T")

# Connections that are kept in any case.
_FEWEST = 8


class _RunVariable:
    """
    The ident of the run that the current thread works for, in the manner of a ContextVar: for programs without an engine whose threads
    share the connections that `kept` keeps. An engine enters a RunScope instead.
    """

    @staticmethod
    def get() -> Hashable | None:
        scope = SCOPE.get()
        return None if scope is None else scope.run_ident

    @staticmethod
    def set(run: Hashable) -> contextvars.Token[RunScope | None]:
        return SCOPE.set(BareRun(run))

    @staticmethod
    def reset(token: contextvars.Token[RunScope | None]) -> None:
        SCOPE.reset(token)


RUN = _RunVariable()


class _Pool:
    def __init__(self) -> None:
        # Guards `busy` and `loop`, and is held while the loop starts or ends. Code on the loop must not take it: `end`
        # joins the loop's thread. While a loop runs, `hosts` is changed only on its thread.
        self.lock = threading.Lock()
        self.loop: EventLoopThread | None = None
        # By run, and by settings, or by the Link of a connection that is not shared.
        self.hosts: dict[tuple[Hashable | None, Settings | Link], HostConnection] = {}
        self.busy = 0  # calls in progress; the loop is not ended before they return

    def enter(self) -> EventLoopThread:
        from forkless.ssh.event_loop import EventLoopThread

        with self.lock:
            if self.loop is None or self.loop.pid != os.getpid():
                self.loop, self.hosts = EventLoopThread(), {}
            self.busy += 1
            return self.loop

    def call(self, work: Coroutine[object, object, T]) -> T:
        """Run `work` on the loop and wait for it. The loop is started if needed and not ended meanwhile."""
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
    """A forked child inherits the sockets but not the loop's thread, so it starts with an empty pool."""
    global _pool  # noqa: PLW0603  # the one process-wide thing of this package
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class Link:
    """
    One worker's lease on a shared connection. `close()` ends the lease, and the connection only if no other Link uses
    it.

    Any thread but the event loop's may call the methods. They block until the work is done; an exception raised in the
    waiting thread cancels the work.
    """

    def __init__(self, settings: Settings, *, shared: bool = True) -> None:
        """If it is not `shared`, no other Link uses the connection, and `reset` closes it alone."""
        self.settings = settings
        self.run = RUN.get()
        self._shared = shared
        self._held = False

    @property
    def _key(self) -> tuple[Hashable | None, Settings | Link]:
        return (self.run, self.settings if self._shared else self)

    async def _host(self) -> HostConnection:
        from forkless.ssh.connection import HostConnection

        if self._key not in _pool.hosts:
            await _make_room()
        host = _pool.hosts.get(self._key)
        if host is None:
            host = _pool.hosts[self._key] = HostConnection(self.settings)
        if not self._held:
            self._held = True
            host.leases += 1
        return host

    def connect(self, attempts: int = 1) -> None:
        """Log in, unless the connection is there already. Every other method does so by itself."""

        async def work() -> None:
            host = await self._host()
            try:
                await host.connection(attempts)
            except BaseException:  # cancellation included: a failed connect must not hold a lease
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
        tell: TellData | None = None,
    ) -> CommandResult:
        """`tell` is called on the event loop's thread with what the command prints while it runs, and must not block."""

        async def work() -> CommandResult:
            host = await self._host()
            return await host.run(
                command, input_=input_, become=become, expects_prompt=expects_prompt, password=password, tty=tty,
                attempts=attempts, tell=tell,
            )  # fmt: skip

        return _pool.call(work())

    def stream(self, command: str, **more: Any) -> Stream:
        """Start `command` on a long-lived channel: see `HostConnection.stream`."""

        async def work() -> Stream:
            return await (await self._host()).stream(command, **more)

        stream: Stream = _pool.call(work())
        return stream

    def shell(self) -> InteractiveShell:
        """Open the login shell of the host, with a terminal: what a network device offers in place of commands."""

        async def work() -> InteractiveShell:
            return await (await self._host()).shell()

        return _pool.call(work())

    def put(self, source: str, target: str, *, method: str = "smart", attempts: int = 1) -> None:
        """Copy the file `source` of this machine to `target` on the host. `method` is one of ansible.builtin.ssh's `ssh_transfer_method`."""

        async def work() -> None:
            await (await self._host()).files.put(source, target, method, attempts)

        _pool.call(work())

    def fetch(self, source: str, target: str, *, method: str = "smart", attempts: int = 1) -> None:
        """Copy the file `source` of the host to `target` on this machine."""

        async def work() -> None:
            await (await self._host()).files.fetch(source, target, method, attempts)

        _pool.call(work())

    async def _let_go(self) -> None:
        host = _pool.hosts.get(self._key)
        if host is None or not self._held:
            return
        self._held = False
        host.leases -= 1
        if host.leases <= 0 and self.run not in KEPT:
            del _pool.hosts[self._key]
            await host.close()
        else:
            _pool.hosts[self._key] = _pool.hosts.pop(self._key)  # the last one in order: used last

    def close(self) -> None:
        if self._held and _pool.loop is not None:
            _pool.call(self._let_go())

    def reset(self) -> None:
        """Close the connection for all its Links; the next command opens a new one (`meta: reset_connection`)."""

        async def work() -> None:
            host = _pool.hosts.pop(self._key, None)
            self._held = False
            if host is not None:
                await host.close()

        if _pool.loop is not None:
            _pool.call(work())


async def _make_room() -> None:
    """
    Close idle connections, those used least recently first, if there are as many as this process can afford: a run may have more hosts
    than the process may open files. Called on the loop before a connection is added.
    """
    import asyncio

    limit = platform.open_files_limit()
    if limit is None:
        return
    above = len(_pool.hosts) + 1 - max(_FEWEST, limit // 4)
    idle = [key for key, host in _pool.hosts.items() if host.is_idle][: max(0, above)]
    await asyncio.gather(*(host.close() for host in [_pool.hosts.pop(key) for key in idle]))


def reset(settings: Settings) -> None:
    Link(settings).reset()


def close_all(run: Hashable) -> None:
    """
    Close every connection of `run`, because the run ends or is cancelled. Any thread but the event loop's may call
    this.

    A command that still runs on one of them fails with an error. Its channel is closed, so the host ends it.
    """

    async def work() -> None:
        import asyncio

        hosts = [_pool.hosts.pop(key) for key in list(_pool.hosts) if key[0] == run]
        await asyncio.gather(*(host.close() for host in hosts))

    KEPT.discard(run)
    if _pool.loop is None:
        return
    _pool.call(work())
