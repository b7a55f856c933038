# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the database is, how it is connected to, and what its errors mean to a user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import socket
import threading
from typing import TYPE_CHECKING, TypeVar

from forkless.core.errors import UnsupportedError
from forkless.queue.errors import DatabaseError, DatabaseFullError, SchemaError

try:
    import psycopg
    import psycopg.conninfo
    from psycopg import errors as postgres_errors
    from psycopg.rows import TupleRow
except ImportError:
    raise UnsupportedError("the queue needs psycopg and procrastinate: pip install 'forkless[queue]'") from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

_Answer = TypeVar("_Answer")

__all__ = [
    "AsyncConnection",
    "Connection",
    "ConnectionPool",
    "ask_until_back",
    "connect",
    "connect_async",
    "conninfo",
    "describe",
    "is_outage",
    "is_refusal",
    "limited",
    "located",
    "pooling",
    "readable_style",
    "refuse_transaction_pooler",
    "sentence_of",
    "translated",
]

Connection = psycopg.Connection[TupleRow]
AsyncConnection = psycopg.AsyncConnection[TupleRow]

# A connection that was cut without a message is noticed after some ten seconds instead of hours.
_KEEP_ALIVE = {
    "connect_timeout": "5",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    # A role may have another encoding of its own, and in SQL_ASCII every text is bytes.
    "client_encoding": "UTF8",
    "application_name": "forkless",
}


@contextlib.contextmanager
def located(url: str | None = None, *, kept: bool = False) -> Iterator[str]:
    """
    The URL of the database: as given, FORKLESS_DATABASE, or the embedded server, which runs for the length of the block.

    With `kept` an embedded server that ends within the block, as PostgreSQL does when its disk is full, is started again.
    """
    chosen = url or os.environ.get("FORKLESS_DATABASE")
    if chosen:
        conninfo(chosen)
        yield chosen
        return
    from forkless.queue import schema
    from forkless.queue.embedded import EmbeddedServer

    with EmbeddedServer() as server:
        schema.prepare_embedded(server.url)
        with server.kept() if kept else contextlib.nullcontext():
            yield server.url


def conninfo(url: str) -> str:
    """The URL with short time limits for dead connections, unless it says otherwise."""
    if not url.startswith(("postgresql://", "postgres://")) and "=" not in url:
        raise DatabaseError(f"'{_without_password(url)}' is not the address of a database: postgresql://user@host/name")
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as err:
        raise DatabaseError(
            f"the address of the database cannot be read: {_without_values(_first_line(err))}"
        ) from None
    wanted = {key: value for key, value in _KEEP_ALIVE.items() if key not in given}
    return psycopg.conninfo.make_conninfo(url, **wanted)


def connect(url: str) -> Connection:
    """A connection for one thread, in autocommit: every change is one statement."""
    with translated(url):
        connection = psycopg.connect(conninfo(url), autocommit=True, prepare_threshold=None)
        if setting := readable_style(connection.info):
            with limited(connection, 15.0):
                connection.execute(setting)
        return connection


def readable_style(about: psycopg.ConnectionInfo) -> str:
    """
    A statement that makes the server print times as psycopg reads them, or "" if it does: a role or a database may have a style of its own. The
    server has told its styles at the beginning of the session, so to ask costs nothing.
    """
    date, interval = about.parameter_status("DateStyle"), about.parameter_status("IntervalStyle")
    if (date or "ISO").startswith("ISO") and (interval or "postgres") == "postgres":
        return ""
    return "SELECT set_config('DateStyle', 'ISO', false), set_config('IntervalStyle', 'postgres', false)"


async def connect_async(url: str) -> AsyncConnection:
    with translated(url):
        connection = await psycopg.AsyncConnection.connect(conninfo(url), autocommit=True, prepare_threshold=None)
        if setting := readable_style(connection.info):
            try:
                await connection.execute(setting)
            except BaseException:
                await connection.close()
                raise
        return connection


@contextlib.contextmanager
def limited(connection: Connection, seconds: float) -> Iterator[None]:
    """
    Cut the connection if the block takes longer. Its statement then fails as in any outage.

    A proxy that is alive and forwards nothing confirms every packet, so neither keepalives nor TCP's own time limits end the wait.
    """
    # A descriptor of our own: by the time the timer fires, the connection's number may belong to another socket.
    with socket.socket(fileno=os.dup(connection.fileno())) as wire:
        timer = threading.Timer(seconds, _cut, (wire,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _cut(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)


def is_outage(err: BaseException) -> bool:
    """Whether the same statement may succeed later: the server is away, starts, is full, read-only or out of connections."""
    if isinstance(err, postgres_errors.InsufficientPrivilege | postgres_errors.InvalidPassword):
        return False
    return isinstance(
        err,
        psycopg.OperationalError
        | psycopg.InterfaceError
        | postgres_errors.ReadOnlySqlTransaction
        | postgres_errors.DeadlockDetected
        | postgres_errors.SerializationFailure
        | OSError,
    )


def is_refusal(err: BaseException) -> bool:
    """Whether a login failed for a reason that waiting does not remove. libpq gives such an error no code."""
    if not isinstance(err, psycopg.OperationalError) or err.sqlstate is not None:
        return False
    said = _first_line(err)
    return (
        "authentication failed" in said.lower()
        or "no password supplied" in said
        or ('database "' in said and "does not exist" in said)
    )


async def ask_until_back(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """
    What `ask` returns. While the database is away, it is asked again: for who waits for the end of a run anyway, and has seen all of it but the
    last row. Other errors are raised.
    """
    pause = 0.1
    while True:
        try:
            return await ask()
        except DatabaseError as err:
            cause = err.__cause__ or err
            if not is_outage(cause) or is_refusal(cause):
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, 5.0)


@contextlib.contextmanager
def translated(url: str) -> Iterator[None]:
    """Raise psycopg's errors as DatabaseError with one sentence."""
    try:
        yield
    except psycopg.Error as err:
        raise _translate(err, url) from err


def _translate(err: psycopg.Error, url: str) -> DatabaseError:
    if isinstance(
        err, postgres_errors.UndefinedTable | postgres_errors.InvalidSchemaName | postgres_errors.UndefinedFunction
    ):
        return SchemaError(
            "the database has no tables of forkless, or those of another version; run `forkless queue upgrade`"
        )
    if isinstance(err, postgres_errors.DiskFull):
        return DatabaseFullError(f"the disk of the database at {_place(url)} is full: {_first_line(err)}")
    return DatabaseError(sentence_of(err, url))


def sentence_of(err: BaseException, url: str) -> str:
    where = _place(url)
    said = _first_line(err)
    if isinstance(err, postgres_errors.InsufficientPrivilege):
        return f"the database user may not do that ({said}); the roles are explained in the documentation of the queue"
    if (
        "password authentication failed" in said
        or "no password supplied" in said
        or "peer authentication failed" in said.lower()
    ):
        return f"the database at {where} refused the login: {said}; FORKLESS_DATABASE holds user and password"
    if "does not exist" in said and 'database "' in said:
        return f"{said} at {where}; create it (createdb), then run `forkless queue init`"
    if "unsupported startup parameter" in said:
        return (
            f"{where} is a connection pooler that does not pass settings on ({said}); workers need a direct connection, or "
            "session pooling"
        )
    if isinstance(err, psycopg.OperationalError | psycopg.InterfaceError):
        return f"the database at {where} cannot be used: {said}; set FORKLESS_DATABASE=postgresql://user@host/name"
    return f"the database at {where} failed: {said}"


def _place(url: str) -> str:
    with contextlib.suppress(psycopg.ProgrammingError):
        given = psycopg.conninfo.conninfo_to_dict(url)
        hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "localhost").split(",")
        ports = str(given.get("port") or "").split(",")
        # One port stands for all hosts, as in libpq.
        pairs = zip(hosts, ports if len(ports) == len(hosts) else ports[:1] * len(hosts), strict=True)
        return " or ".join(f"{host}:{port}" if port else host for host, port in pairs)
    return "the given address"


def _without_password(url: str) -> str:
    """The address without what may be a password: all between a colon and the last @, also if the address has no scheme."""
    before, colons, rest = url.partition("://")
    user, at, place = (rest if colons else url).rpartition("@")
    if not at:
        return url
    return f"{before + colons if colons else ''}{user.partition(':')[0]}{':...' if ':' in user else ''}@{place}"


def _without_values(said: str) -> str:
    """What libpq says of an address that it cannot read, without quoted pieces of it: one may be of a password. Names of options stay."""
    known = {one.keyword.decode() for one in psycopg.pq.Conninfo.get_defaults()}
    return re.sub(r'"([^"]*)"', lambda found: found.group() if found.group(1) in {*known, "="} else '"..."', said)


def _first_line(err: BaseException) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    text = lines[0] if lines else type(err).__name__
    return text.removeprefix("connection failed: ")


def refuse_transaction_pooler(url: str) -> None:
    """Raise DatabaseError if a pooler hands each statement to another session: a worker's LISTEN would be dead without an error."""
    if pooling(url) == "transaction":
        raise DatabaseError(
            f"{_place(url)} is a connection pooler in transaction mode, where workers receive no notifications; give workers a direct connection to "
            "PostgreSQL, or session pooling. Launching and following work through it"
        )


def pooling(url: str) -> str:
    """How the address is pooled: "none", "session" or "transaction"."""
    import uuid

    with connect(url) as one, translated(url):
        row = one.execute("SELECT pg_backend_pid()").fetchone()
        # A pooler makes up the process id that it tells its clients at the begin.
        if row and row[0] == one.info.backend_pid:
            return "none"
        mark = uuid.uuid4().hex
        one.execute("SELECT set_config('forkless.probe', %s, false)", (mark,))
        # In transaction mode the session that has the setting is free, and this transaction takes it.
        with connect(url) as other, other.transaction():
            other.execute("SELECT 1")
            row = one.execute("SELECT current_setting('forkless.probe', true)").fetchone()
        return "session" if row and row[0] == mark else "transaction"


def describe(url: str) -> list[str]:
    """What `forkless queue check` says about the server."""
    with connect(url) as connection, translated(url):
        row = connection.execute(
            "SELECT current_setting('server_version'), current_user, pg_is_in_recovery()"
        ).fetchone()
        assert row is not None  # noqa: S101  # for the type checker: a SELECT without FROM has one row
        lines = [f"PostgreSQL {row[0]} at {_place(url)}, as {row[1]}"]
        if row[2]:
            lines.append("the server is a read-only replica: nothing can be launched there")
    mode = pooling(url)
    lines.append({"none": "direct connection", "session": "through a pooler, session mode",
                  "transaction": "through a pooler in transaction mode: launch and follow only, no workers"}[mode])  # fmt: skip
    return lines


def _was_ended(connection: AsyncConnection) -> bool:
    """Whether the server has ended a connection that is not in use, by a restart for example. Unasked, it sends nothing else."""
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


class ConnectionPool:
    """
    At most `most` connections for the coroutines of one loop. One that failed, or that the server has ended since, is dropped; the next use
    makes a new one.
    """

    def __init__(self, url: str, most: int = 4) -> None:
        self.url = url
        self._idle: list[AsyncConnection] = []
        self._slots = asyncio.Semaphore(most)
        self._closed = False

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        async with self._slots:
            connection = await self._take()
            known = False
            try:
                with translated(self.url):
                    yield connection
                known = True
            except DatabaseError:
                known = True
                raise
            finally:
                # After a cancellation a request to cancel may be on its way to the server, where it would hit the next statement. It may come
                # together with the answer, so that the connection looks idle.
                idle = not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                if known and idle and not self._closed:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def _take(self) -> AsyncConnection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and not _was_ended(connection):
                return connection
            await connection.close()
        return await connect_async(self.url)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().close()
