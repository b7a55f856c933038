# SPDX-License-Identifier: GPL-3.0-or-later
"""TCP proxies in this process that make a near host a far one, and count what passes: for kernels without netem."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Traffic:
    """What passed the proxies since `clear`."""

    sent: int = 0
    received: int = 0
    turns: dict[int, int] = field(default_factory=dict)
    """Per connection how often the client spoke after the server had: one round trip each."""

    def clear(self) -> None:
        self.sent = self.received = 0
        self.turns = {}

    @property
    def round_trips(self) -> float:
        """Of a connection, on average, the TCP handshake included."""
        return 1 + sum(self.turns.values()) / len(self.turns) if self.turns else 0.0


class _Proxy:
    def __init__(self, target: tuple[str, int], delay: float, traffic: Traffic) -> None:
        self._target, self._delay, self._traffic = target, delay, traffic
        self._spoke: dict[int, bool] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = id(writer)
        self._traffic.turns[number], self._spoke[number] = 0, False
        try:
            await asyncio.sleep(self._delay)  # the TCP handshake
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            await asyncio.gather(
                self._pass_on(reader, far_writer, number, True), self._pass_on(far_reader, writer, number, False)
            )
        except (OSError, asyncio.CancelledError):  # cancelled at the end; up to 3.11 asyncio would print it
            writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, client: bool
    ) -> None:
        loop, due = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def write() -> None:
            while True:
                at, data = await due.get()
                await asyncio.sleep(max(0.0, at - loop.time()))
                if not data:
                    writer.close()
                    return
                writer.write(data)

        writing = loop.create_task(write())
        data = b"x"
        while data:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                data = b""
            if client and data:
                self._traffic.sent += len(data)
                turns = self._traffic.turns  # a connection that is kept outlives `clear`
                turns[number] = turns.get(number, 0) + self._spoke[number]
                self._spoke[number] = False
            elif data:
                self._traffic.received += len(data)
                self._spoke[number] = True
            due.put_nowait((loop.time() + self._delay / 2, data))
        with contextlib.suppress(OSError):
            await writing


@contextlib.contextmanager
def far_away(targets: list[tuple[str, int]], milliseconds: float) -> Iterator[tuple[list[int], Traffic]]:
    """The ports, on each target's own address, through which it is so many milliseconds (there and back) away."""
    loop, traffic = asyncio.new_event_loop(), Traffic()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def begin() -> list[int]:
        ports = []
        for target in targets:
            server = await asyncio.start_server(_Proxy(target, milliseconds / 1000, traffic).serve, target[0], 0)
            ports.append(server.sockets[0].getsockname()[1])
        return ports

    try:
        yield asyncio.run_coroutine_threadsafe(begin(), loop).result(60), traffic
    finally:
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
