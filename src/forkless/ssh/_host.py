# SPDX-License-Identifier: GPL-3.0-or-later
"""One host: its connection, opened when needed and again when lost, and the channels that share it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from forkless.ssh._command import Command
from forkless.ssh._connect import open_connection
from forkless.ssh._errors import EscalationError, HostKeyError, LoginError, LostError, SSHError
from forkless.ssh._files import Files
from forkless.ssh._library import asyncssh
from forkless.ssh._wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from forkless.ssh._done import Become, Done
    from forkless.ssh._settings import Settings

__all__ = ["Host"]

CLOSING = 3.0
LONGEST_PAUSE = 2.0


class Host:
    """Lives on the loop's thread; nothing of it is touched from another."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.leases = 0
        self.opened = 0  # how many connections were made: one, unless it was lost or reset
        self.files = Files(self)
        self._connection: Any = None
        self._chain: list[Any] = []
        self._opening: asyncio.Task[Any] | None = None
        self._channels = 0
        self._closed = False
        self._most: int | None = None  # how many channels the host allows at once; learned when it refuses one
        self._freed = asyncio.Condition()
        # Channels that stay. They are not counted with the others: nobody may wait for one of them to end.
        self._wires: dict[Wire, Callable[[], bool]] = {}
        self._no_wires = False

    async def connection(self, attempts: int = 1) -> Any:
        """The live connection. Those who come while it is being opened wait for the same one."""
        if self._closed:
            raise SSHError(
                f"the connection to {self.settings.address} was closed: its run was stopped, or it was reset"
            )
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if self._opening is None or self._opening.done():
            self._opening = asyncio.get_running_loop().create_task(self._open(attempts))
        # Shielded: the one who gives up waiting must not take the connection from the others.
        return await asyncio.shield(self._opening)

    async def _open(self, attempts: int) -> Any:
        await self._drop()
        for attempt in range(1, attempts + 1):
            try:
                self._connection, self._chain = await open_connection(self.settings)
            except (HostKeyError, LoginError):
                raise
            except SSHError:
                if attempt == attempts:
                    raise
                await asyncio.sleep(min(2 ** (attempt - 1), 30))
            else:
                self.opened += 1
                return self._connection
        raise AssertionError  # not reached: the last attempt returns or raises

    async def close(self) -> None:
        """For good. Who still has this host in hand must not open it again."""
        self._closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._opening
        await self._drop()

    async def _drop(self) -> None:
        connection, chain = self._connection, self._chain
        self._connection, self._chain, self._most = None, [], None
        self.files.forget()
        for one in filter(None, [connection, *chain]):
            one.close()
            try:
                await asyncio.wait_for(one.wait_closed(), CLOSING)
            except TimeoutError:
                one.abort()
                await one.wait_closed()

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[None]:
        """A place for one more channel; waits for one where the host allows only so many (MaxSessions)."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._most is None or self._channels < self._most)
            self._channels += 1
        try:
            yield
        finally:
            self._channels -= 1
            async with self._freed:
                self._freed.notify_all()

    def refused(self) -> bool:
        """The host refused a channel: remember how many it allows. False when there is no other to wait for."""
        if self._channels <= 1:
            return False
        self._most = max(1, self._channels - 1)
        return True

    async def session(self, command: str, make: Any, *, tty: bool, attempts: int) -> Command:
        """Open a channel and start `command` on it. Tries again only what surely has not started."""
        library = asyncssh()
        tries = max(attempts, 2)  # a kept connection that died meanwhile is worth one more, whatever was asked
        while True:
            connection = await self.connection(attempts)
            try:
                _, session = await connection.create_session(
                    make,
                    command,
                    encoding=None,
                    request_pty="force" if tty else False,
                    term_type="xterm" if tty else None,
                )
            except library.ChannelOpenError as err:
                if not connection.is_closed():
                    self._clear_wires()
                    self.refused()
                    raise _Full(f"{self.settings.address} refused to run a command: {err.reason}") from err
                why: Any = err.reason
            except (library.DisconnectError, OSError) as err:
                why = getattr(err, "reason", err)
            except AttributeError as err:
                if err.name != "session_started":
                    raise
                # The channel was closed between the host's yes and our hearing of it; asyncssh looks for its session all the same.
                raise LostError(f"the connection to {self.settings.address} was lost as the command began") from err
            else:
                return session  # type: ignore[no-any-return]
            tries -= 1
            if not tries:
                raise LostError(f"the connection to {self.settings.address} was lost: {why}", started=False)
            await self._drop()

    def _clear_wires(self) -> None:
        """The host allows too few channels for some to stay: those that are idle go, and no more are opened."""
        self._no_wires = self._no_wires or bool(self._wires)
        for wire, idle in list(self._wires.items()):
            if idle():
                wire.hang_up()

    async def wire(
        self, command: str, *, feed: Callable[[bytes], None], gone: Callable[[], None], idle: Callable[[], bool],
        attempts: int = 1, **more: Any,
    ) -> Wire:  # fmt: skip
        """Start `command` on a channel that stays open until it is closed, or the connection is."""
        if self._no_wires:
            raise LostError(f"{self.settings.address} allows too few channels for one to stay", started=False)

        def over() -> None:
            self._wires.pop(wire, None)
            gone()

        def make() -> Wire:
            return Wire(feed=feed, gone=over, **more)

        try:
            wire: Wire = await self.session(command, make, tty=False, attempts=attempts)  # type: ignore[assignment]
        except _Full as full:
            raise LostError(str(full), started=False) from full
        self._wires[wire] = idle
        return wire

    async def run(
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
        def make() -> Command:
            return Command(
                input_=input_, become=become, expects_prompt=expects_prompt, password=password, tty=tty
            )  # fmt: skip

        pause = 0.05
        while True:
            try:
                async with self.channel():
                    session = await self.session(command, make, tty=tty, attempts=attempts)
                    return await self._until_done(session)
            except _Full as full:
                # Either others use all that the host allows, or they just ended and it has not noticed yet.
                if not self._channels:
                    if pause > LONGEST_PAUSE:
                        raise SSHError(str(full)) from full
                    await asyncio.sleep(pause)
                    pause *= 2

    async def _until_done(self, session: Command) -> Done:
        patience = self.settings.timeout + 2
        try:
            while True:
                heard = session.heard
                # Waited for, not awaited: cancelling the wait must not mark the command itself as ended.
                done, _ = await asyncio.wait([session.done], timeout=patience if session.negotiating else None)
                if done:
                    return session.done.result()
                if session.negotiating and session.heard == heard:
                    raise EscalationError(f"Timeout ({patience:g}s) waiting for privilege escalation prompt")
        finally:
            session.stop()


class _Full(Exception):
    """Never leaves this file: it is how a refused channel goes back to the queue."""
