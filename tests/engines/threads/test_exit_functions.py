# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions that a plugin registers with atexit: called when its run ends, if at all, and never kept until the program ends."""

from __future__ import annotations

import atexit

import pytest

import forkless

pytestmark = pytest.mark.spawns

CALLBACK = """
import atexit, sys
from ansible.plugins.callback import CallbackBase

def fails():
    raise ValueError("in the way")

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_TYPE, CALLBACK_NEEDS_ENABLED = 2.0, 'ends', 'notification', False
    def v2_playbook_on_start(self, playbook):
        atexit.register(print, "called", "last", sep=" ")
        atexit.register(fails)
        atexit.register(sys.exit, 3)
        atexit.register(self.never)
        atexit.unregister(self.never)
        assert atexit.register(self.say, word="first") == self.say
    def say(self, word):
        self._display.display("called " + word)
    def never(self):
        raise AssertionError
"""
LOOKUP = """
import atexit
from ansible.plugins.lookup import LookupBase
atexit.register(print, "called by a worker")
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        atexit.register(self.run)
        return ["looked up"]
"""


def test_those_of_the_run_are_called_when_it_ends_and_those_of_workers_never(project, capfd):
    project.write("callback_plugins/ends.py", CALLBACK)
    project.write("lookup_plugins/looks.py", LOOKUP)
    task = "- debug: {msg: \"{{ lookup('looks') }}\"}\n"
    assert project.run(task, limit="h1").rc == 0  # what ansible-core and its libraries register once is not counted
    before = atexit._ncallbacks()
    result = project.run(task, limit="h1,h2")
    assert result.rc == 0, result.stdout
    words = [line for line in result.stdout.splitlines() if line.startswith(("called", "PLAY RECAP", "ValueError"))]
    assert [word.split(" *")[0] for word in words] == [
        "PLAY RECAP",
        "called first",
        "ValueError: in the way",
        "called last",
    ]
    assert atexit._ncallbacks() == before
    assert "called" not in "".join(capfd.readouterr())


@pytest.mark.interrupts
def test_one_that_blocks_is_ended_with_its_run(project):
    begun = project.folder / "begun"
    project.write("callback_plugins/ends.py", f"""
        import atexit, os, time
        from ansible.plugins.callback import CallbackBase
        def blocks():
            os.mkdir({str(begun)!r})
            time.sleep(600)
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_TYPE, CALLBACK_NEEDS_ENABLED = 2.0, 'ends', 'notification', False
            def v2_playbook_on_start(self, playbook):
                atexit.register(blocks)
    """)  # fmt: skip
    run = project.start("- debug:\n", limit="h1")
    for event in run.events():
        if event.event == "playbook_on_stats":
            run.cancel()
    assert run.wait(120).status is forkless.Status.CANCELED
