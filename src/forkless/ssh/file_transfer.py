# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers files to and from a host by SFTP or scp, or through `cat` if the host has no SFTP."""

from __future__ import annotations

import asyncio
import os
import shlex
from typing import TYPE_CHECKING, Any

from forkless.ssh.asyncssh_import import asyncssh
from forkless.ssh.errors import SSHError

if TYPE_CHECKING:
    from forkless.ssh.connection import HostConnection

__all__ = ["METHODS", "FileTransfer"]

METHODS = ("sftp", "scp", "piped", "smart")
PIECE = 4 * 1024 * 1024


class FileTransfer:
    """The file transfers of one host, which share an SFTP session. Only the event loop's thread may use it."""

    def __init__(self, host: HostConnection) -> None:
        self._host = host
        self._sftp: Any = None
        self._opening = asyncio.Lock()
        self._works = ""  # the method that worked last; it is tried first

    def forget(self) -> None:
        """Drop the SFTP session, because its connection is being closed."""
        if self._sftp is not None:
            self._sftp.exit()
        self._sftp = None

    async def put(self, source: str, target: str, method: str, attempts: int) -> None:
        await self._by(method, "_put", source, target, attempts)

    async def fetch(self, source: str, target: str, method: str, attempts: int) -> None:
        await self._by(method, "_fetch", source, target, attempts)

    async def _by(self, method: str, what: str, source: str, target: str, attempts: int) -> None:
        methods = ["sftp", "piped"] if method == "smart" else [method]
        if self._works in methods:
            methods.sort(key=lambda one: one != self._works)
        for last, one in enumerate(methods, start=1 - len(methods)):
            try:
                await getattr(self, f"{what}_{one}")(source, target, attempts)
            except _NoSuchService:
                if last == 0:
                    raise
            else:
                self._works = one
                return

    async def _session(self, attempts: int) -> Any:
        library = asyncssh()
        async with self._opening:  # concurrent transfers share one session
            connection = await self._host.connection(attempts)
            if self._sftp is None:
                try:
                    self._sftp = await connection.start_sftp_client()
                except library.ChannelOpenError as err:
                    if self._host.refused():
                        async with self._host.channel():  # wait until another channel ends
                            self._sftp = await connection.start_sftp_client()
                    else:
                        raise _NoSuchService(f"{self._host.settings.address} has no SFTP: {err.reason}") from err
                except (library.SFTPError, library.Error) as err:
                    raise _NoSuchService(f"{self._host.settings.address} has no SFTP: {err.reason}") from err
            return self._sftp

    async def _put_sftp(self, source: str, target: str, attempts: int) -> None:
        library = asyncssh()
        sftp = await self._session(attempts)
        with open(source, "rb") as file:  # noqa: ASYNC230  # a local file; small reads between many round trips
            mode = os.fstat(file.fileno()).st_mode & 0o777
            try:
                async with sftp.open(os.fsencode(target), "wb", attrs=library.SFTPAttrs(permissions=mode)) as remote:
                    # asyncssh splits each piece into blocks of the size that the host accepts and sends them in
                    # parallel.
                    while piece := file.read(PIECE):
                        await remote.write(piece)
            except library.SFTPError as err:
                raise FileNotFoundError(
                    f"cannot write {target} on {self._host.settings.address}: {err.reason}"
                ) from err

    async def _fetch_sftp(self, source: str, target: str, attempts: int) -> None:
        library = asyncssh()
        sftp = await self._session(attempts)
        try:
            await sftp.get(os.fsencode(source), target, follow_symlinks=True)
        except library.SFTPError as err:
            raise FileNotFoundError(f"cannot read {source} on {self._host.settings.address}: {err.reason}") from err

    async def _put_piped(self, source: str, target: str, attempts: int) -> None:
        with open(source, "rb") as file:  # noqa: ASYNC230  # a local file
            content = file.read()
        done = await self._host.run(f"cat > {shlex.quote(target)}", input_=content, attempts=attempts)
        if done.rc:
            why = done.stderr.decode(errors="replace").strip()
            raise FileNotFoundError(f"cannot write {target} on {self._host.settings.address}: {why}")

    async def _fetch_piped(self, source: str, target: str, attempts: int) -> None:
        done = await self._host.run(f"cat < {shlex.quote(source)}", attempts=attempts)
        if done.rc:
            why = done.stderr.decode(errors="replace").strip()
            raise FileNotFoundError(f"cannot read {source} on {self._host.settings.address}: {why}")
        with open(target, "wb") as file:  # noqa: ASYNC230  # a local file
            file.write(done.stdout)

    async def _put_scp(self, source: str, target: str, attempts: int) -> None:
        library = asyncssh()
        connection = await self._host.connection(attempts)
        try:
            await library.scp(source, (connection, shlex.quote(target)))  # asyncssh does not quote the path
        except (library.SFTPError, library.Error) as err:
            raise FileNotFoundError(f"cannot write {target} on {self._host.settings.address}: {err.reason}") from err

    async def _fetch_scp(self, source: str, target: str, attempts: int) -> None:
        library = asyncssh()
        connection = await self._host.connection(attempts)
        try:
            await library.scp((connection, shlex.quote(source)), target)
        except (library.SFTPError, library.Error) as err:
            raise FileNotFoundError(f"cannot read {source} on {self._host.settings.address}: {err.reason}") from err


class _NoSuchService(SSHError):
    """The host does not offer this transfer method; another may work."""
