# SPDX-License-Identifier: GPL-3.0-or-later
"""As much of Lambda's runtime as a test needs: events come in on stdin, one a line; answers go out on stdout, one a line."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time


class Context:
    def __init__(self, seconds):
        self._until = time.monotonic() + seconds

    def get_remaining_time_in_millis(self):
        return int((self._until - time.monotonic()) * 1000)


def main(path):
    spec = importlib.util.spec_from_file_location("handler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for line in sys.stdin:
        try:
            answer = module.handler(json.loads(line), Context(300))
        except Exception as err:
            answer = {"errorType": type(err).__name__, "errorMessage": str(err)}
        print(json.dumps(answer), flush=True)


def probe():
    """What this place is like, for the test to look at."""
    facts = {"uid": os.getuid(), "home": os.environ.get("HOME")}
    for name in ("/", "/dev/shm", os.path.expanduser("~"), "/tmp"):
        facts[name] = os.access(name, os.W_OK) and os.path.isdir(name)
    try:
        import multiprocessing

        multiprocessing.get_context("fork").Lock()
        facts["lock"] = True
    except OSError:
        facts["lock"] = False
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    probe()
    main(sys.argv[1])
