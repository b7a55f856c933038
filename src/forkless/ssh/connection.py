# SPDX-License-Identifier: GPL-3.0-or-later
"""One host's connection, opened when needed and reopened when lost, and the channels that share it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from forkless.ssh.asyncssh_import import asyncssh
from forkless.ssh.command import Command
from forkless.ssh.errors import ConnectionLostError, EscalationError, HostKeyError, LoginError, SSHError
from forkless.ssh.file_transfer import FileTransfer
from forkless.ssh.login import open_connection
from forkless.ssh.shell import InteractiveShell
from forkless.ssh.stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from forkless.ssh.result import Become, CommandResult, TellData
    from forkless.ssh.settings import Settings

__all__ = ["HostConnection"]

CLOSING = 3.0
LONGEST_PAUSE = 2.0


class HostConnection:
    """The connection to one host. Only the event loop's thread may use it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.leases = 0
        self.opened = 0  # connections opened so far: more than one only if one was lost
        self.files = FileTransfer(self)
        self._connection: Any = None
        self._chain: list[object] = []
        self._opening: asyncio.Task[object] | None = None
        self._channels = 0
        self._closed = False
        self._most: int | None = None  # channels that the host allows at once; known after it has refused one
        self._freed = asyncio.Condition()
        # Long-lived channels. They are not counted in _channels: waiting for one of them to end could last for ever.
        self._streams: dict[Stream, Callable[[], bool]] = {}
        self._no_streams = False

    @property
    def is_idle(self) -> bool:
        """Whether no Link, command or stream uses the connection, so that closing it disturbs nobody."""
        is_opening = self._opening is not None and not self._opening.done()
        return not (self.leases or self._channels or self._streams or is_opening)

    async def connection(self, attempts: int = 1) -> Any:
        """Return the live connection, opening it if needed. Concurrent callers share one attempt to open it."""
        if self._closed:
            raise SSHError(
                f"the connection to {self.settings.address} was closed: its run was stopped, or it was reset"
            )
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        if self._opening is None or self._opening.done():
            self._opening = asyncio.get_running_loop().create_task(self._open(attempts))
        # Shielded, so that a cancelled caller does not cancel the attempt for the others.
        return await asyncio.shield(self._opening)

    async def _open(self, attempts: int) -> object:
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
        """Close for good: a caller that still has this object gets SSHError from `connection`."""
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
        """Count one more channel for the block; wait first if the host's limit (MaxSessions) is known and reached."""
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
        """Record the host's channel limit after it refused one. False if no other channel is open to wait for."""
        if self._channels <= 1:
            return False
        self._most = max(1, self._channels - 1)
        return True

    async def session(self, command: str, make: Any, *, tty: bool, attempts: int) -> Command:
        """Open a channel and start `command` on it. A new attempt is made only if the command has certainly not started."""
        library = asyncssh()
        made: list[Command] = []

        def make_known() -> Command:
            made.append(make())
            return made[-1]

        tries = max(attempts, 2)  # a kept connection may have died while idle, so one retry is always made
        while True:
            connection = await self.connection(attempts)
            try:
                _, session = await connection.create_session(
                    make_known,
                    command,
                    encoding=None,
                    request_pty="force" if tty else False,
                    term_type="xterm" if tty else None,
                )
            except library.ChannelOpenError as err:
                if not connection.is_closed():
                    self._clear_streams()
                    self.refused()
                    raise _ChannelsExhausted(f"{self.settings.address} refused to run a command: {err.reason}") from err
                why: object = err.reason
            except (library.DisconnectError, OSError) as err:
                why = getattr(err, "reason", err)
            except AttributeError as err:
                if err.name != "session_started":
                    raise
                # asyncssh calls session_started on None if the channel was closed while the host's confirmation was
                # being processed.
                for one in made:
                    one.forget()
                raise ConnectionLostError(
                    f"the connection to {self.settings.address} was lost as the command began"
                ) from err
            except asyncio.CancelledError:
                # The request to start the command may already be on its way to the host.
                for one in made:
                    one.stop()
                raise
            else:
                return session  # type: ignore[no-any-return]
            if made:  # when the channel was open; the host may have read the request that follows
                made[-1].forget()
                raise ConnectionLostError(
                    f"the connection to {self.settings.address} was lost as the command began: {why}"
                )
            tries -= 1
            if not tries:
                raise ConnectionLostError(f"the connection to {self.settings.address} was lost: {why}", started=False)
            await self._drop()

    def _clear_streams(self) -> None:
        """After a refused channel: close the idle streams and open no more on this host, as its channel limit is too low."""
        self._no_streams = self._no_streams or bool(self._streams)
        for stream, idle in list(self._streams.items()):
            if idle():
                stream.hang_up()

    async def stream(
        self, command: str, *, feed: Callable[[bytes], None], gone: Callable[[], None], idle: Callable[[], bool],
        attempts: int = 1, **more: Any,
    ) -> Stream:  # fmt: skip
        """
        Start `command` on a channel that stays open until the stream or the connection is closed.

        `feed` and `gone` are called on the event loop's thread; `idle` tells whether the stream may be closed to free
        its channel.
        """
        if self._no_streams:
            raise ConnectionLostError(f"{self.settings.address} allows too few channels for one to stay", started=False)

        def over() -> None:
            self._streams.pop(stream, None)
            gone()

        def make() -> Stream:
            return Stream(feed=feed, gone=over, **more)

        try:
            stream: Stream = await self.session(command, make, tty=False, attempts=attempts)  # type: ignore[assignment]
        except _ChannelsExhausted as full:
            raise ConnectionLostError(str(full), started=False) from full
        self._streams[stream] = idle
        return stream

    async def shell(self) -> InteractiveShell:
        """Open a shell with a terminal of 80 columns and 24 lines. Raises SSHError."""
        library = asyncssh()
        loop = asyncio.get_running_loop()
        connection = await self.connection()
        patience = self.settings.login_timeout or self.settings.timeout
        made: list[InteractiveShell] = []

        def make() -> InteractiveShell:
            made.append(InteractiveShell(loop))
            return made[-1]

        try:
            async with asyncio.timeout(patience):
                _, shell = await connection.create_session(
                    make, encoding=None, request_pty="force", term_type="vt100", term_size=(80, 24)
                )
        except library.Error as err:
            raise SSHError(f"{self.settings.address} opened no shell: {err.reason}") from err
        except TimeoutError as err:
            for one in made:
                one.close()
            raise SSHError(f"{self.settings.address} opened no shell within {patience:g} s") from err
        except OSError as err:
            raise SSHError(f"{self.settings.address} opened no shell: {err}") from err
        except AttributeError as err:
            if err.name != "session_started":  # see `session`
                raise
            raise SSHError(f"{self.settings.address} opened no shell: the connection was lost") from err
        return shell  # type: ignore[no-any-return]

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
        tell: TellData | None = None,
    ) -> CommandResult:
        """
        Run a command and return its result; wait for a channel if the host's limit is reached.

        A command that may have started is never repeated. If the task is cancelled, the command is killed and its
        channel closed. `tell` is called with what the host sends, on the event loop's thread.
        """

        def make() -> Command:
            return Command(
                input_=input_, become=become, expects_prompt=expects_prompt, password=password, tty=tty, tell=tell
            )  # fmt: skip

        pause = 0.05
        while True:
            try:
                async with self.channel():
                    session = await self.session(command, make, tty=tty, attempts=attempts)
                    return await self._until_done(session)
            except _ChannelsExhausted as full:
                # Either other channels use up the limit (`channel` waits for one to end), or the host has not yet
                # noticed that they are closed (pause and try again).
                if not self._channels:
                    if pause > LONGEST_PAUSE:
                        raise SSHError(str(full)) from full
                    await asyncio.sleep(pause)
                    pause *= 2

    async def _until_done(self, session: Command) -> CommandResult:
        patience = self.settings.timeout + 2
        try:
            while True:
                heard = session.heard
                # asyncio.wait, because awaiting `done` directly would cancel that future when this task is cancelled.
                done, _ = await asyncio.wait([session.done], timeout=patience if session.negotiating else None)
                if done:
                    return session.done.result()
                if session.negotiating and session.heard == heard:
                    raise EscalationError(f"Timeout ({patience:g}s) waiting for privilege escalation prompt")
        finally:
            session.stop()


class _ChannelsExhausted(Exception):
    """The host refused a channel; the command waits for its turn. Raised and caught in this file only."""
