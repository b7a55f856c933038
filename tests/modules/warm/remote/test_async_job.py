# SPDX-License-Identifier: GPL-3.0-or-later
"""The module of an `async` task in a fork of the warm interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.spawns

# async_wrapper's process that runs the module, whose supervisor has not come to make a process group of it yet.
WRAPPER = """
import os, subprocess
from forkless.modules.warm.remote import async_job

class Shows:
    def show(self, words):
        pass

def module():
    os.write(1, b"%d" % os.getpgrp())
    return 0

async_job.fork_in_place_of(["python", "module"], Shows(), module)
pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
said, error = subprocess.Popen([b"python", b"module"], **pipes).communicate()
print(os.getpid(), said.decode(), error.decode())
"""


def test_it_is_in_the_group_that_the_time_limit_kills_before_it_does_anything():
    """async_wrapper's supervisor makes that group too, but when the system lets it: the module may have started programs by then."""
    said = subprocess.run([sys.executable, "-c", WRAPPER], capture_output=True, text=True, timeout=240, check=True)
    wrapper, group = said.stdout.split()
    assert group == wrapper, said.stderr
