# SPDX-License-Identifier: GPL-3.0-or-later
"""The queue behind a page: FORKLESS_SERVER=https://... for people who may not reach the database. `forkless runs` and `launch` use it."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from forkless.cli import terminal_text
from forkless.cli.jobs_view import print_table
from forkless.core.errors import ForklessError, SpecError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from http.client import HTTPResponse

    from forkless.queue.records import Json

__all__ = ["ServerClient", "given", "launch", "runs"]

_PATIENCE = 60.0
# Seconds between two tries to go on with a stream that was cut off.
_AGAIN = 2.0


def given() -> ServerClient | None:
    """The server that the environment names; None without one. Raises SpecError if the token is missing."""
    address = os.environ.get("FORKLESS_SERVER", "").rstrip("/")
    if not address:
        return None
    parts = urlsplit(address)
    local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path:
        raise SpecError(f"FORKLESS_SERVER={address} is not like https://ansible.example.com")
    if parts.scheme == "http" and not local:
        raise SpecError(f"FORKLESS_SERVER={address}: the token would travel unprotected; use https")
    token = os.environ.get("FORKLESS_TOKEN", "")
    if not token:
        raise SpecError("FORKLESS_TOKEN is not set; the page makes a token under your name")
    return ServerClient(address, token)


class ServerAnswerError(ForklessError):
    """The server refused a request, or could not carry it out."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead the token to another place."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class ServerClient:
    """Requests to one server, for one thread."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._token = token
        self._opener = urllib.request.build_opener(_RefuseRedirects)

    def _open(self, method: str, path: str, body: Json = None, headers: dict[str, str] | None = None) -> HTTPResponse:
        sent = {"Authorization": f"Bearer {self._token}", "User-Agent": "forkless", **(headers or {})}
        content = None
        if method != "GET":
            content = json.dumps(body or {}).encode()
            sent["Content-Type"] = "application/json"
        asked = urllib.request.Request(self.address + path, content, sent, method=method)  # noqa: S310  # http(s), as `given` checked
        try:
            answer: HTTPResponse = self._opener.open(asked, timeout=_PATIENCE)
        except urllib.error.HTTPError as err:
            with err:
                raise ServerAnswerError(_sentence(err), err.code) from None
        return answer

    def ask(self, method: str, path: str, body: Json = None) -> Json:
        try:
            with self._open(method, path, body) as answer:
                return json.load(answer)
        except (OSError, ValueError) as err:
            raise ForklessError(f"{self.address} cannot be reached: {getattr(err, 'reason', None) or err}") from None

    def follow(self, number: int, after: int = 0) -> Iterator[Json]:
        """Every event once, in order, until the run has ended; goes on after the line or the server was away."""
        while True:
            try:
                with self._open("GET", f"/api/runs/{number}/stream?after={after}") as answer:
                    kind = ""
                    for raw in answer:
                        line = raw.decode().rstrip("\n")
                        if line.startswith("event: "):
                            kind = line[7:]
                        elif line.startswith("data: ") and kind == "events":
                            for event in json.loads(line[6:])["events"]:
                                if event["n"] > after:
                                    after = event["n"]
                                    yield event
                        elif line.startswith("data: ") and kind in ("end", "gone"):
                            return
            except (OSError, ServerAnswerError) as err:
                if isinstance(err, ServerAnswerError) and err.status < 500:
                    raise
                sys.stderr.write(
                    f"forkless: {self.address} is away ({terminal_text.printable(str(getattr(err, 'reason', None) or err))}); trying again\n"
                )
            time.sleep(_AGAIN)


def _sentence(err: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(err)["error"])
    except (ValueError, KeyError, OSError, TypeError):
        return f"the server answered {err.code}"


def runs(server: ServerClient, asked: argparse.Namespace) -> int:
    """`forkless runs` over the API."""
    if asked.command == "list":
        pairs = [("status", one) for one in asked.status] + [
            ("search", asked.search),
            ("host", asked.host),
            ("limit", asked.limit),
        ]
        pairs += [("before", asked.before)] if asked.before else []
        found = server.ask("GET", "/api/runs?" + urlencode(pairs))["runs"]
        if asked.format == "json":
            _print_json(found)
        elif not found:
            sys.stdout.write("no runs\n")
        else:
            print_table(["RUN", "STATE", "PLAYBOOK", "LIMIT", "BY", "LAUNCHED", "WORKER"], [
                [str(one["id"]), one["status"], one["title"], one["limit"], one["created_by"], one["created"][:19], one["worker"]] for one in found
            ])  # fmt: skip
        return 0
    if asked.command == "workers":
        workers = server.ask("GET", "/api/workers")["workers"]
        if asked.format == "json":
            _print_json(workers)
        else:
            print_table(["WORKER", "HOST", "STATE", "RUN"], [
                [one["name"], f"{one['host']}:{one['pid']}", one["state"], str(one["run"] or "")] for one in workers
            ])  # fmt: skip
        return 0
    path = f"/api/runs/{asked.run}"
    if asked.command == "show":
        return _show(server.ask("GET", path), asked.format)
    if asked.command == "follow":
        return _follow(server, asked.run, asked.format, asked.after)
    if asked.command == "cancel":
        before = server.ask("GET", path)
        if before["ended"] is not None:
            sys.stderr.write(f"forkless runs: run {asked.run} has ended: {_shown(before['status'])}\n")
            return 1
        state = server.ask("POST", f"{path}/cancel")["status"]
        sys.stdout.write(
            f"run {asked.run} is canceled\n" if state == "canceled" else f"run {asked.run} was asked to stop\n"
        )
        return 0
    made = server.ask("POST", f"{path}/relaunch", {"failed": asked.failed})["id"]
    if not asked.follow:
        sys.stdout.write(f"{_shown(made)}\n")
        return 0
    return _follow(server, made)


def launch(server: ServerClient, asked: argparse.Namespace) -> int:
    """`forkless launch` over the API: a playbook of one of the server's projects, by its name there."""
    known = {
        "playbook",
        "inventory",
        "limit",
        "tags",
        "skip_tags",
        "check",
        "diff",
        "slices",
        "retries",
        "extra_vars",
        "follow",
        "project",
    }
    for name, value in vars(asked).items():
        if name not in known and value not in (None, False, 0, [], "", "inventory"):
            raise SpecError(
                f"--{name.replace('_', '-')} cannot be used with FORKLESS_SERVER: the run is of a project of the server"
            )
    if len(asked.playbook) != 1 or len(asked.inventory) > 1:
        raise SpecError("with FORKLESS_SERVER a launch has one playbook and one inventory of the project")
    variables = {}
    for text in asked.extra_vars:
        name, equals, value = text.partition("=")
        if not equals or text.startswith(("@", "{")) or " " in name:
            raise SpecError("with FORKLESS_SERVER variables are given one by one: -e name=value")
        variables[name] = value
    made = server.ask("POST", "/api/runs", {
        "project": asked.project or "", "playbook": asked.playbook[0], "inventory": "".join(asked.inventory), "limit": asked.limit or "",
        "tags": ",".join(asked.tags), "skip_tags": ",".join(asked.skip_tags), "check": asked.check, "diff": asked.diff,
        "slices": asked.slices or 1, "retries": asked.retries, "variables": variables,
    })["id"]  # fmt: skip
    if not asked.follow:
        sys.stdout.write(f"{_shown(made)}\n")
        return 0
    sys.stderr.write(f"forkless: run {_shown(made)} at {server.address}/runs/{quote(str(made))}\n")
    return _follow(server, made)


def _follow(server: ServerClient, number: int, form: str = "pretty", after: int = 0) -> int:
    server.ask("GET", f"/api/runs/{number}")
    try:
        for event in server.follow(number, after):
            if form == "jsonl":
                sys.stdout.write(json.dumps(event) + "\n")
            elif event["text"] and event["event"] != "runner_on_output":
                text = event["text"]
                sys.stdout.write((terminal_text.coloured(text) if sys.stdout.isatty() else text) + "\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(f"\nforkless: run {number} goes on; `forkless runs cancel {number}` ends it\n")
        return 0
    run = server.ask("GET", f"/api/runs/{number}")
    if run["status"] != "successful":
        sys.stderr.write(
            f"forkless: run {number} is {_shown(run['status'])}{': ' + terminal_text.escaped(run['sentence']) if run['sentence'] else ''}\n"
        )
    return run["rc"] if run["rc"] is not None else 250


def _show(run: Json, form: str) -> int:
    if form == "json":
        _print_json(run)
        return 0
    for name in (
        "id",
        "status",
        "title",
        "inventory",
        "limit",
        "project",
        "commit",
        "created",
        "created_by",
        "worker",
        "at",
        "sentence",
        "command",
    ):
        value = ", ".join(run[name]) if isinstance(run[name], list) else run[name]
        if value not in (None, ""):
            sys.stdout.write(f"{name + ':':<12}{_shown(value)}\n")  # others chose the names in it
    return 0


def _shown(answer: Json) -> str:
    """A value of an answer in one line. A server is not ours to trust with the terminal."""
    return terminal_text.printable(str(answer))


def _print_json(thing: Json) -> None:
    json.dump(thing, sys.stdout, indent=2)
    sys.stdout.write("\n")
