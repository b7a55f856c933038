# SPDX-License-Identifier: GPL-3.0-or-later
"""`forkless worker --metrics ADDRESS`: what Prometheus asks for, about the queue and about this worker."""

from __future__ import annotations

import contextlib
import http.server
import threading
from typing import TYPE_CHECKING

import psycopg

from forkless.core.errors import ForklessError, SpecError
from forkless.queue import database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["metrics_of_queue", "parse_address", "served"]

# Seconds that a question to the database may take; Prometheus gives up after ten.
_PATIENCE = 8.0
_STATES = ("waiting", "running", "successful", "failed", "canceled", "lost")

_HELP = {
    "forkless_database_up": "Whether this worker could ask the database just now.",
    "forkless_runs": "Runs that the queue has, by state; a run in slices counts once.",
    "forkless_runs_waiting_seconds": "Age of the oldest run that waits for nothing but a free worker.",
    "forkless_workers": "Worker processes that were seen in the last minute, on all machines.",
    "forkless_webhooks_waiting": "Messages about ended runs that were not taken yet.",
    "forkless_event_bytes": "Size of the stored events with their indexes.",
    "forkless_project_bytes": "Size of the stored projects with their indexes.",
    "forkless_worker_processes": "Worker processes of this `forkless worker`.",
    "forkless_worker_process_failures_total": "Worker processes of this `forkless worker` that ended in an error and were replaced.",
}


def parse_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:9180`, `[::1]:9180`, or `:9180` for all addresses. Raises SpecError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not int(port) < 65536:
        raise SpecError(f"--metrics '{text}' is not an address: 127.0.0.1:9180, or :9180 for all of this machine's")
    return host.strip("[]"), int(port)


def metrics_of_queue(url: str) -> dict[str, float]:
    """Samples by name and labels. Raises DatabaseError or psycopg.Error."""
    with database.connect(url) as connection, database.limited(connection, _PATIENCE):
        found = {f'forkless_runs{{state="{state}"}}': 0.0 for state in _STATES}
        for state, many in connection.execute(
            "SELECT status, count(*) FROM forkless.run_view WHERE parent_id IS NULL GROUP BY status"
        ):
            found[f'forkless_runs{{state="{state}"}}'] = many
        row = connection.execute(
            """
            SELECT (SELECT coalesce(extract(epoch FROM now() - min(greatest(created, not_before))), 0) FROM forkless.run_view
                    WHERE status = 'waiting' AND queue_job IS NOT NULL),
                   (SELECT count(*) FROM forkless.worker WHERE seen > now() - interval '1 minute'),
                   (SELECT count(*) FROM forkless.webhook WHERE delivered IS NULL AND NOT given_up),
                   pg_total_relation_size('forkless.event_batch'), pg_total_relation_size('forkless.bundle')
            """
        ).fetchone()
    names = ("runs_waiting_seconds", "workers", "webhooks_waiting", "event_bytes", "project_bytes")
    return found | {f"forkless_{name}": float(value) for name, value in zip(names, row or (), strict=True)}


def _text(samples: Mapping[str, float]) -> str:
    lines: list[str] = []
    told = ""
    for sample, value in samples.items():
        name = sample.partition("{")[0]
        if name != told:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} {kind}"]
            told = name
        lines.append(f"{sample} {value:.15g}")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def served(address: str, url: str, own: Callable[[], Mapping[str, float]]) -> Iterator[int]:
    """Serve /metrics for the length of the block; yields the port. `own` gives the samples of this worker, from any thread."""

    def samples() -> dict[str, float]:
        try:
            return {"forkless_database_up": 1.0, **metrics_of_queue(url), **own()}
        except (ForklessError, psycopg.Error, OSError):
            return {"forkless_database_up": 0.0, **own()}

    class Answer(http.server.BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            known = self.path.partition("?")[0] == "/metrics"
            body = (_text(samples()) if known else "this is forkless worker: /metrics\n").encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody wants a line every few seconds."""

    host, port = parse_address(address)
    try:
        server = http.server.ThreadingHTTPServer((host, port), Answer)
    except OSError as err:
        raise SpecError(f"--metrics {address} cannot be used: {err.strerror or err}") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="forkless-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
