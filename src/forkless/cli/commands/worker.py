# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless worker: carry out queued runs on this machine."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import socket
import sys

from forkless.cli.command_parser import CommandParser
from forkless.core.errors import SpecError

__all__ = ["main", "parser"]

EXAMPLES = """\
examples:
  forkless worker                                            one run at a time
  forkless worker --metrics 127.0.0.1:9180                   http://127.0.0.1:9180/metrics for Prometheus
  forkless worker --processes 4 --label site=fra             four at a time, and runs that ask for the label
  FORKLESS_DATABASE=postgresql://worker@db/forkless forkless worker

SIGTERM: no more runs are taken, those under way may finish within --shutdown-after seconds. A second SIGTERM hands them back at once.
A run whose worker gives no sign for --lost-after seconds is lost; a worker that cannot reach the database stops its run before that.
"""


def parser() -> argparse.ArgumentParser:
    made = CommandParser(
        prog="forkless worker",
        description="Carry out queued runs on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="runs at a time, each in a process of its own (default: 1)",
    )
    made.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME",
        help="take runs that ask for this label, too (may be repeated, six at most)",
    )
    made.add_argument("--name", default="", help="how the worker is called in lists (default: the host's name)")
    made.add_argument(
        "--lost-after",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="seconds without a sign of life until a run is lost (default: 120)",
    )
    made.add_argument(
        "--runs", type=int, default=50, metavar="N", help="replace a process after so many runs (default: 50)"
    )
    made.add_argument(
        "--shutdown-after",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long runs may go on after SIGTERM (default: 600)",
    )
    made.add_argument(
        "--metrics", metavar="ADDRESS", help="serve /metrics for Prometheus, as in 127.0.0.1:9180; nobody has to log in"
    )
    made.add_argument("--work-dir", metavar="DIR", help="where projects are unpacked (default: in the state folder)")
    return made


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    for name, value, least in (
        ("--processes", asked.processes, 1),
        ("--runs", asked.runs, 1),
        ("--lost-after", asked.lost_after, 4),
        ("--shutdown-after", asked.shutdown_after, 0),
    ):
        if not least <= value < float("inf"):  # NaN is neither
            raise SpecError(f"{name} must be {least} or more, not {value:g}")
    from forkless.queue import database, metrics, schema, worker_key
    from forkless.queue.requests import clean_labels
    from forkless.queue.supervisor import Supervisor, work_folder
    from forkless.queue.worker import WorkerOptions

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    labels = clean_labels(asked.label)
    if asked.metrics:
        metrics.parse_address(asked.metrics)
    with database.located(kept=True) as url, work_folder(asked.work_dir) as folder:
        schema.check(url)
        database.refuse_transaction_pooler(url)
        options = WorkerOptions(
            folder=folder, name=asked.name or socket.gethostname(), labels=labels, lost_after=asked.lost_after, runs=asked.runs,
            shutdown_after=asked.shutdown_after, key_path=worker_key.for_worker(url),
        )  # fmt: skip
        supervisor = Supervisor(url, options, asked.processes)
        before = {number: signal.signal(number, supervisor.stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with metrics.served(asked.metrics, url, supervisor.samples) if asked.metrics else contextlib.nullcontext():
                return supervisor.run()
        finally:
            for number, was in before.items():
                signal.signal(number, was)
