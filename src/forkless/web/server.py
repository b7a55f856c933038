# SPDX-License-Identifier: GPL-3.0-or-later
"""`forkless serve` from begin to end: the database, a worker if there is none elsewhere, the server, and the end of them all."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from forkless import queue
from forkless.core.errors import ForklessError, SpecError
from forkless.queue import database, requests, schema, worker_key
from forkless.queue.embedded import folder_behind, state_folder
from forkless.queue.supervisor import Supervisor, work_folder
from forkless.queue.worker import WorkerOptions
from forkless.web import settings
from forkless.web.access import Access
from forkless.web.accounts import Accounts
from forkless.web.app import PageApp
from forkless.web.disk_room import DiskRoom
from forkless.web.project_folder import GitProject, ProjectFolder, has_playbooks

try:
    import uvicorn
except ImportError:
    from forkless.core.errors import UnsupportedError

    raise UnsupportedError("the page needs uvicorn: pip install 'forkless[web]'") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from forkless.web.app import Report

__all__ = ["PageOptions", "serve"]

# Seconds in which a run that is handed back must have ended; its worker is killed then: the database may be away, or a module deaf.
_HAND_BACK = 30.0


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The options of `forkless serve`."""

    host: str = "127.0.0.1"
    port: int = 8750
    project: str | None = None
    config: str | None = None
    names: tuple[str, ...] = ()
    """Further names in the Host header, of a reverse proxy."""
    processes: int = 0
    shutdown_after: float = 15.0
    """Seconds that runs may still take after SIGTERM, before they are handed back."""
    open_browser: bool = False
    report: Report
    """Makes one HTML file of a run and its events."""


class _PageServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: the workers must be told, too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Ending:
    """
    SIGTERM and SIGINT for the length of the block: each calls all of `told`. One handler from begin to end, so that no signal
    finds the default action, which would leave the workers behind.
    """

    def __init__(self) -> None:
        self.told: list[Callable[[], None]] = []
        self.signals = 0
        self.terminated: float | None = None
        """When the first SIGTERM came. A person at a terminal can press Ctrl-C again; after SIGTERM nothing may follow but SIGKILL."""

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._heard) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, was in self._before.items():
            signal.signal(number, was)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self.signals += 1
        if number == signal.SIGTERM and self.terminated is None:
            self.terminated = time.monotonic()
        for call in tuple(self.told):
            call()


def serve(options: PageOptions) -> int:
    """Serve until SIGINT or SIGTERM. Call it on the main thread."""
    told = settings.read(options.config) if options.config is not None else settings.PageSettings()
    for name in told.secret_names:
        os.environ.pop(name, None)  # neither a look at an inventory nor a worker's play finds it
    with contextlib.ExitStack() as around:
        projects = _projects(options, told, around)
        listening = around.enter_context(_listening(options.host, options.port))
        url = around.enter_context(database.located(kept=True))
        schema.check(url)
        ending = around.enter_context(_Ending())
        around.enter_context(_workers(url, options, ending))
        return asyncio.run(_serve(url, options, told, projects, listening, ending))


def _projects(
    options: PageOptions, told: settings.PageSettings, around: contextlib.ExitStack
) -> dict[str, ProjectFolder]:
    """
    The project of the command line first, then those of the configuration. If neither is given, the current folder, if it has playbooks.
    Repositories lie in a folder that ends with the server.
    """
    made = {}
    chosen = options.project
    if chosen is None and options.config is None and has_playbooks(os.curdir):
        chosen = os.curdir
    if chosen is not None:
        first = ProjectFolder(chosen)
        made[first.name] = first
    for name, one in told.projects.items():
        if name in made:
            raise SpecError(f"there are two projects '{name}': one of --project and one of the configuration")
        if one.git:
            folder = around.enter_context(tempfile.TemporaryDirectory(prefix="forkless-project-"))
            made[name] = GitProject(name, one.git, one.ref, folder)
        else:
            made[name] = ProjectFolder(one.folder, name)
    return made


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise SpecError(f"--host {host} is not an address; 127.0.0.1 is the default") from None
    if not address.is_loopback:
        raise SpecError(
            f"--host {host} can be reached from other machines, and the page has neither users nor TLS of its own: leave it on 127.0.0.1 "
            "and use an SSH tunnel, or a reverse proxy with a login (--allow-host NAME)"
        )
    if not 0 <= port < 65536:
        raise SpecError(f"--port {port} is not a port")
    made = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
    with made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((str(address), port))
            made.listen(128)  # before the address is printed: a browser that opens it at once waits and is not refused
        except OSError as err:
            raise ForklessError(
                f"port {port} of {host} cannot be used: {err.strerror}; choose another with --port"
            ) from None
        yield made


@contextlib.contextmanager
def _workers(url: str, options: PageOptions, ending: _Ending) -> Iterator[None]:
    """Worker processes for the length of the block. Each signal asks them to end, more urgently each time."""
    if not options.processes:
        yield
        return
    database.refuse_transaction_pooler(url)
    with work_folder() as folder:
        about = WorkerOptions(folder=folder, name=socket.gethostname(), key_path=worker_key.for_worker(url))
        supervisor = Supervisor(url, about, options.processes)
        thread = threading.Thread(target=supervisor.run, name="forkless-serve-workers")
        thread.start()
        ending.told.append(supervisor.stop)
        try:
            yield
        finally:
            supervisor.stop_at_least(1)
            _wait_for_workers(supervisor, thread, ending, options.shutdown_after)


def _wait_for_workers(supervisor: Supervisor, thread: threading.Thread, ending: _Ending, shutdown_after: float) -> None:
    """Until the workers have ended: they finish their runs; after SIGTERM for a limited time, then the runs are handed back."""
    handed_back: float | None = None
    said = ""
    thread.join(1.0)
    while thread.is_alive():
        now = time.monotonic()
        if ending.terminated is not None and now > ending.terminated + shutdown_after:
            supervisor.stop_at_least(2)
        if supervisor.stops < 2:
            sentence = "waiting for the workers and their runs to end"
            sentence += f", {shutdown_after:g} s at most" if ending.terminated is not None else ""
            sentence += "; Ctrl-C or SIGTERM again stops them"
        elif supervisor.stops == 2:
            handed_back = handed_back or now
            sentence = "stopping the runs under way: one that was launched with retries begins again elsewhere"
            if now > handed_back + _HAND_BACK:
                supervisor.stop_at_least(3)
        else:
            sentence = "killing the workers; a run that they leave is lost when its lease has ended"
        if sentence != said:
            said = sentence
            sys.stderr.write(f"forkless serve: {sentence}\n")
        thread.join(0.2)


def _disks(url: str, options: PageOptions) -> DiskRoom:
    """The folders of this machine that runs need: of the embedded database, and of the workers that this command starts."""
    folders = {"the database": folder_behind(url), "the workers": state_folder() if options.processes else ""}
    return DiskRoom({name: folder for name, folder in folders.items() if folder})


async def _serve(
    url: str,
    options: PageOptions,
    told: settings.PageSettings,
    projects: dict[str, ProjectFolder],
    listening: socket.socket,
    ending: _Ending,
) -> int:
    port = listening.getsockname()[1]
    names = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")] + list(options.names)
    names += [told.host] if told.host else []
    shown = "[::1]" if ":" in options.host else options.host
    async with queue.connect(url) as opened:
        accounts = Accounts(url)
        access = Access(names, accounts, requests.whoami(), told.login, https=told.https)
        if told.login is not None and told.login.users and not await accounts.users():
            sys.stderr.write(
                "forkless serve: there is no user yet; `forkless users add NAME --role admin` makes the first one\n"
            )
        page = PageApp(opened, access, projects, told.hooks, options.report, _disks(url, options))
        server = _PageServer(
            uvicorn.Config(
                page.app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                proxy_headers=False,
                timeout_graceful_shutdown=5,
                server_header=False,
            )
        )

        def stop() -> None:
            server.should_exit = True
            page.readers.close()

        loop = asyncio.get_running_loop()

        def heard() -> None:
            loop.call_soon_threadsafe(stop)  # a signal handler interrupts the loop at any place

        # uvicorn's own errors carry no request: the token is not in them.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        address = told.address or f"http://{shown}:{port}"
        address += f"/?token={access.token}" if access.token else "/"
        ending.told.append(heard)
        try:
            roots = ", ".join(one.root for one in projects.values() if not isinstance(one, GitProject))
            about = f"It starts playbooks of {roots}. " if roots else ""
            if not projects:
                where = "in their folder, or " if options.config is None else ""
                about = f"To start playbooks from it, call this {where}with --project DIR. "
            sys.stdout.write(f"forkless: the page is at\n\n    {address}\n\n{about}Ctrl-C ends it.\n")
            sys.stdout.flush()
            if options.open_browser:
                import webbrowser

                threading.Thread(
                    target=webbrowser.open, args=(address,), name="forkless-open-browser", daemon=True
                ).start()
            if not ending.signals:
                await server.serve(sockets=[listening])
        finally:
            ending.told.remove(heard)
            await accounts.close()
    return 0
