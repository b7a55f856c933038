# SPDX-License-Identifier: GPL-3.0-or-later
"""
Every part that FORKLESS_DISABLE names is on in an ordinary run, and off where it is named: on every ansible-core.

A fast path that falls away leaves no trace in any result. What tells is how often ansible-core's own code was called in its place.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import threading

import pytest

from forkless.core import switches, versions
from forkless.engines.threads.speed import caches
from forkless.patching import seams

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]

MINOR = versions.nearest(seams.version())
TASKS = """
- debug: {msg: "{{ groups['all'] | join(' ') }} {{ inventory_hostname }}"}
- assert: {that: "inventory_hostname is match('h')"}
- ping:
"""
# What ansible-core does itself where the part is off, and since which minor the part is there.
DONE_BY_ANSIBLE = {
    "unset-attributes": ("FieldAttributeBase.post_validate_attribute", "2.19"),
    "fast-copies": ("FieldAttributeBase.copy", "2.18"),
    "plain-inventory": ("InventoryModule._parse_value", "2.19"),
    "lazy-values": ("_SkippableContextManager.__exit__", "2.19"),
    "plain-text": ("TemplateContext.stop_on_template", "2.19"),
    "warm-modules": ("Connection.exec_command", "2.18"),
    "import-cache": ("ModuleDepFinder.visit_ImportFrom", "2.18"),
}
# Those that do not show in what is called have a test of their own that says that the part is on, in the matrix too. Those of network devices
# need collections, and are in the full matrix only.
ELSEWHERE = {
    **dict.fromkeys(caches.BOUNDS, "engines/threads/speed/test_caches.py: test_every_cache_answers_in_an_ordinary_run"),
    "archive-cache": "modules/warm/test_archives.py: test_it_can_be_switched_off_and_hosts_are_told_the_same",
    "gc-tuning": "engines/threads/speed/test_speed_paths.py: test_parts_of_the_command_are_on_unless_they_are_switched_off",
    "host-bytecode": "modules/warm/test_pythons_of_hosts.py: test_modules_run_with_bytecode_of_that_python_if_it_is_here_too",
    "live-output": "modules/test_live_output.py: test_it_is_on_unless_it_is_switched_off",
    "loop-workers": "engines/threads/workers/test_loop_items.py: test_items_are_executed_at_once_by_workers_of_their_own_and_reported_in_order",
    "network-asyncssh": "engines/threads/network/test_asyncssh.py: test_auto_is_asyncssh_and_others_stay_what_they_are",
    "network-connections": "engines/threads/network/test_module_processes.py: test_a_module_in_a_process_and_one_in_the_worker_use_one_login",
    "plain-routing": "engines/threads/speed/test_speed_paths.py: test_parts_of_the_command_are_on_unless_they_are_switched_off",
    "unused-plugins": "engines/threads/speed/test_speed_paths.py: test_parts_of_the_command_are_on_unless_they_are_switched_off",
    "slice-cores": "cli/test_slice_affinity.py: test_each_slice_has_a_core_and_its_programs_have_all_unless_it_is_switched_off",
    "quick-login": "ssh/test_quick_login.py: test_the_first_request_is_signed_unless_that_is_switched_off",
    "unset-options": "engines/threads/speed/test_plugin_options.py: test_it_is_on_in_an_ordinary_run_unless_it_is_switched_off",
    "remote-files": "ssh/test_remote_files.py: test_a_host_that_has_an_interpreter_is_asked_for_no_shell_and_no_transfer",
    "quick-exit": "cli/test_quick_exit.py: test_a_play_leaves_its_objects_to_the_kernel",
}
TESTS = pathlib.Path(__file__).resolve().parents[3]


WATCHED = {function for function, _since in DONE_BY_ANSIBLE.values()}


def is_watched(code):
    return code.co_qualname in WATCHED and "/ansible/" in code.co_filename


@contextlib.contextmanager
def counting():
    """How often each watched function is called, on any thread."""
    counted = collections.Counter()
    if sys.version_info < (3, 12):

        def profile(frame, event, _argument):
            if event == "call" and is_watched(frame.f_code):
                counted[frame.f_code.co_qualname] += 1

        threading.setprofile(profile)
        try:
            yield counted
        finally:
            threading.setprofile(None)
        return

    # Costs next to nothing: what is not watched is asked about once.
    def count(code, _offset):
        if not is_watched(code):
            return sys.monitoring.DISABLE
        counted[code.co_qualname] += 1
        return None

    tool, started = sys.monitoring.PROFILER_ID, sys.monitoring.events.PY_START
    sys.monitoring.use_tool_id(tool, "test_speed_paths")
    try:
        sys.monitoring.register_callback(tool, started, count)
        sys.monitoring.set_events(tool, started)
        yield counted
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.register_callback(tool, started, None)
        sys.monitoring.free_tool_id(tool)


def calls(project, off):
    with counting() as counted:
        result = project.run(TASKS, env={"FORKLESS_DISABLE": off}, limit="h1,h2")
    assert result.rc == 0, result.stdout
    return counted


def test_every_part_that_can_be_switched_off_is_looked_at():
    assert {*DONE_BY_ANSIBLE, *ELSEWHERE} == set(switches.NAMES)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_part_that_does_not_show_here_has_a_test_on_every_ansible_core(name):
    file, _, test = ELSEWHERE[name].partition(": ")
    text = (TESTS / file).read_text()
    head = text[: text.index(f"\ndef {test}(")]
    marks = head[head.rindex("\n\n\n") :] + "".join(re.findall(r"(?ms)^pytestmark = (?:\[\n.*?^\]|[^\n]*)", head))
    assert "pytest.mark.matrix" in marks or name.startswith("network-")


def test_a_part_is_on_unless_it_is_switched_off(project):
    project.run(TASKS, limit="h1")  # what is kept for the process is there from the second run on
    on = calls(project, "")
    wrong = {}
    for name, (function, since) in DONE_BY_ANSIBLE.items():
        if MINOR in versions.since(since):
            off = calls(project, name)
            if off[function] <= 2 * on[function]:
                wrong[name] = f"{function}: {on[function]} calls with it, {off[function]} without"
    assert not wrong


# The longest text that the YAML parser is given, the plugins that were loaded, and the collector's threshold while a task is templated.
COMMAND = """
import sys, yaml
from forkless.cli import main

load, lengths = yaml.load, []

def measured(text, *more, **options):
    lengths.append(len(text) if isinstance(text, (str, bytes)) else 0)
    return load(text, *more, **options)

yaml.load = measured
status = main(sys.argv[1:])
print("longest:", max(lengths, default=0))
sys.exit(status)
"""
THRESHOLD = """
import gc, sys

class FilterModule:
    def filters(self):
        return {
            "threshold": lambda _: gc.get_threshold()[0],
            "connections": lambda _: sum(name.startswith("ansible.plugins.connection.") for name in list(sys.modules)),
        }
"""


def test_parts_of_the_command_are_on_unless_they_are_switched_off(project):
    project.write("filter_plugins/threshold.py", THRESHOLD)
    spec = project.spec("- debug: {msg: 'threshold: {{ 1 | threshold }} connections: {{ 1 | connections }}.'}\n")
    measured = []
    # Each of them is seen in a number of its own, so one command has all switched off.
    for off in ("", "gc-tuning,plain-routing,unused-plugins"):
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "playbook", "-i", spec["inventory"], "-l", "h1", spec["playbook"]],
            cwd=spec["cwd"],
            env={**os.environ, "FORKLESS_DISABLE": off},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        measured.append(
            {
                word: int(re.search(rf"{word}: (\d+)", done.stdout)[1])
                for word in ("threshold", "longest", "connections")
            }
        )
    on, without = measured
    assert on["threshold"] > 2 * without["threshold"], measured
    assert without["longest"] > 2 * on["longest"], measured
    assert without["connections"] > on["connections"], measured


def test_plugins_that_no_task_uses_are_loaded_where_a_project_has_some_of_its_own(project):
    """As stock, which loads all before the first play and tells of those that are broken."""
    project.write("become_plugins/broken.py", "raise ValueError('a broken plugin')\n")
    spec = project.spec("- debug: {msg: done}\n", modules="cold")
    words = ["-i", spec["inventory"], "-l", "h1", spec["playbook"]]
    told = {}
    for name, command in {"stock": ["ansible.cli.playbook"], "forkless": ["forkless", "playbook"]}.items():
        done = subprocess.run(
            [sys.executable, "-m", *command, *words], cwd=spec["cwd"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told[name] = done.stdout, done.stderr
    assert "broken.py" in told["stock"][1]
    assert told["forkless"] == told["stock"]


def test_modules_run_warm(project):
    """One interpreter is the parent of every module; cold, each has a shell of its own."""
    project.write(
        "library/parent.py",
        """\
        #!/usr/bin/python
        import os
        from ansible.module_utils.basic import AnsibleModule
        AnsibleModule({"word": {"no_log": True}}).exit_json(parent=os.getppid())
        """,
    )
    tasks = "- parent: {word: open-sesame}\n- parent: {word: open-sesame}\n"
    parents = {
        modules: {
            event.event_data["res"]["parent"]
            for event in project.run(tasks, limit="h1,h2", modules=modules).events
            if event.event == "runner_on_ok"
        }
        for modules in ("auto", "cold")
    }
    assert {modules: len(found) for modules, found in parents.items()} == {"auto": 1, "cold": 4}
