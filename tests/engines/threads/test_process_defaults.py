# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plugin sets for its process (defaults of sockets, urllib and TLS) counts for its worker: not for others, nor for the program."""

from __future__ import annotations

import csv
import http.client
import random
import socket
import ssl
import sys
import time
import urllib.request

import pytest

from engines_support import messages

pytestmark = pytest.mark.spawns

# h1 sets the defaults, and both hosts tell what they see: in the plugin, and by what the stdlib does with it.
SETS = """
import socket, ssl, urllib.request, http.client
from ansible.plugins.lookup import LookupBase

class Opener(urllib.request.OpenerDirector):
    def open(self, url, data=None, timeout=None):
        return "opened by the plugin, %s" % timeout

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        if terms[0] == "set":
            socket.setdefaulttimeout(77)
            urllib.request.install_opener(Opener())
            ssl._create_default_https_context = ssl._create_unverified_context
        with socket.socket() as one, socket.socket(fileno=socket.socket().detach()) as two:
            seen = [socket.getdefaulttimeout(), one.gettimeout(), two.gettimeout()]
        https = http.client.HTTPSConnection("localhost")
        verifies = https._context.check_hostname
        own = ssl._create_default_https_context is not ssl._create_unverified_context
        try:
            opened = [urllib.request.urlopen("none:x"), urllib.request.urlopen("none:x", timeout=3)]
        except urllib.error.URLError as error:
            opened = ["unknown url type" in str(error)]
        return [[seen, verifies, own, opened]]
"""
AS_SET = [[77, 77, None], False, False, ["opened by the plugin, None", "opened by the plugin, 3"]]
AS_IT_WAS = [[None, None, None], True, True, [True]]


def of_program():
    with socket.socket() as one:
        seen = [socket.getdefaulttimeout(), one.gettimeout()]
    verifies = http.client.HTTPSConnection("localhost")._context.check_hostname
    return [*seen, urllib.request._opener, ssl._create_default_https_context, verifies]


def test_defaults_that_a_plugin_sets_are_those_of_its_worker(project):
    project.write("lookup_plugins/sets.py", SETS)
    before = of_program()
    task = "- debug: {msg: \"{{ lookup('sets', %s) }}\"}\n"
    how = "'set' if inventory_hostname == 'h1' else 'look'"
    result = project.run(task % how + "  register: first\n" + task % "'look'", limit="h1,h2", head="serial: 1")
    assert result.rc == 0, result.stdout
    said = [
        (one.event_data["host"], one.event_data["res"]["msg"]) for one in result.events if one.event == "runner_on_ok"
    ]
    assert said == [("h1", AS_SET), ("h1", AS_IT_WAS), ("h2", AS_IT_WAS), ("h2", AS_IT_WAS)]
    assert of_program() == before


# As community.general's filter from_csv does: a dialect from the arguments under a fixed name, then everything by that name.
CSV = """
import csv, io
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        before = "custom" in csv.list_dialects()
        csv.register_dialect("custom", "excel", delimiter=terms[0])
        text = io.StringIO()
        csv.DictWriter(text, ["a", "b"], dialect="custom", lineterminator="").writerow({"a": 1, "b": 2})
        read = [list(csv.DictReader(["a|b;c", "1|2;3"], dialect="custom")), list(csv.reader(["1|2;3"], "custom"))]
        named = [csv.get_dialect("custom").delimiter, "custom" in csv.list_dialects()]
        csv.register_dialect("derived", "custom", quotechar="q")
        named.append(csv.get_dialect("derived").delimiter)
        csv.unregister_dialect("excel-tab")
        for gone in (csv.get_dialect, csv.unregister_dialect, lambda name: csv.reader([], name)):
            try:
                gone("excel-tab")
            except csv.Error as error:
                named.append(str(error))
        return [[before, text.getvalue(), read, named]]
"""


def test_dialects_of_csv_that_a_plugin_registers_are_those_of_its_worker(project):
    project.write("lookup_plugins/reads.py", CSV)
    before = csv.list_dialects()
    task = "- debug: {msg: \"{{ lookup('reads', '|' if inventory_hostname == 'h1' else ';') }}\"}\n"
    result = project.run(task, limit="h1,h2", head="serial: 1")
    assert result.rc == 0, result.stdout
    gone = ["unknown dialect"] * 3
    bars = [False, "1|2", [[{"a": "1", "b;c": "2;3"}], [["1", "2;3"]]], ["|", True, "|", *gone]]
    semicolons = [False, "1;2", [[{"a|b": "1|2", "c": "3"}], [["1|2", "3"]]], [";", True, ";", *gone]]
    assert [one.event_data["res"]["msg"] for one in result.events if one.event == "runner_on_ok"] == [bars, semicolons]
    assert csv.list_dialects() == before
    assert csv.get_dialect("excel-tab").delimiter == "\t"


def test_arguments_that_a_plugin_writes_into_argv_are_those_of_its_worker(project):
    """And its parsers read them: a plugin may call a command's main()."""
    project.write("lookup_plugins/parses.py", """
        import argparse, optparse, sys
        from ansible.plugins.lookup import LookupBase
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                found = "--host" in sys.argv
                if terms[0] == "h1":
                    sys.argv[1:] = ["--host", terms[0]]
                else:
                    sys.argv = ["command", "--host", terms[0]]
                new, old = argparse.ArgumentParser(), optparse.OptionParser()
                new.add_argument("--host")
                old.add_option("--host")
                return [[found, new.parse_args().host, old.parse_args()[0].host]]
    """)  # fmt: skip
    before = list(sys.argv)
    result = project.run(
        "- debug: {msg: \"{{ lookup('parses', inventory_hostname) }}\"}\n", limit="h1,h2", head="serial: 1"
    )
    assert messages(result) == {"h1": [False, "h1", "h1"], "h2": [False, "h2", "h2"]}, result.stdout
    assert sys.argv == before


def test_settings_of_ansible_that_a_plugin_assigns_are_those_of_its_worker(project):
    """Those of a worker are neither the next host's nor the next run's; those of the run itself are its workers'."""
    project.write("lookup_plugins/assigns.py", """
        from ansible import constants as C
        from ansible.plugins.lookup import LookupBase
        from ansible.utils.display import Display
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                def seen():
                    return [C.DEFAULT_TIMEOUT, C.DEFAULT_POLL_INTERVAL, getattr(C, 'NEW', None), Display().verbosity]
                before = seen()
                C.DEFAULT_TIMEOUT, C.NEW, Display().verbosity = 77, 1, 0
                return [[before, seen()]]
    """)  # fmt: skip
    project.write("callback_plugins/assigns.py", """
        from ansible import constants as C
        from ansible.plugins.callback import CallbackBase
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_TYPE, CALLBACK_NEEDS_ENABLED = 2.0, 'assigns', 'notification', False
            def v2_playbook_on_start(self, playbook):
                C.DEFAULT_POLL_INTERVAL += 1
    """)  # fmt: skip
    task = "- debug: {msg: \"{{ lookup('assigns') }}\"}\n"
    expected = [[10, 16, None, 1], [77, 16, 1, 0]]
    for _ in range(2):
        result = project.run(task, limit="h1,h2", head="serial: 1", verbosity=1)
        assert messages(result) == {"h1": expected, "h2": expected}, result.stdout


def test_a_plugin_may_set_back_what_it_found(project):
    project.write("lookup_plugins/back.py", """
        import http.client, ssl
        from ansible.plugins.lookup import LookupBase
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                found = ssl._create_default_https_context
                ssl._create_default_https_context = ssl._create_unverified_context
                ssl._create_default_https_context = found
                return [http.client.HTTPSConnection("localhost")._context.check_hostname]
    """)  # fmt: skip
    result = project.run("- debug: {msg: \"{{ lookup('back') }}\"}\n", limit="h1")
    assert messages(result) == {"h1": True}, result.stdout


def test_what_a_plugin_of_the_run_itself_sets_counts_for_its_workers(project):
    """A forked worker inherited it."""
    project.write("callback_plugins/sets.py", """
        import socket, ssl, urllib.request
        from ansible.plugins.callback import CallbackBase
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_TYPE, CALLBACK_NEEDS_ENABLED = 2.0, 'sets', 'notification', False
            def v2_playbook_on_start(self, playbook):
                socket.setdefaulttimeout(33)
                ssl._create_default_https_context = ssl._create_unverified_context
    """)  # fmt: skip
    project.write("lookup_plugins/sets.py", SETS)
    before = of_program()
    result = project.run("- debug: {msg: \"{{ lookup('sets', 'look') }}\"}\n", limit="h1")
    assert messages(result)["h1"][:3] == [[33, 33, None], False, False], result.stdout
    assert of_program() == before


def test_each_run_has_the_proxies_of_its_own_environment(project):
    """urllib keeps them in the opener that it makes at the first request."""
    project.write("lookup_plugins/asks.py", """
        import urllib.request
        from ansible.plugins.lookup import LookupBase
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                try:
                    urllib.request.urlopen("http://example.invalid/")
                except OSError as error:
                    return [str(error)]
    """)  # fmt: skip
    for number in (1, 2):
        env = {"http_proxy": f"none{number}://proxy", "no_proxy": ""}
        result = project.run("- debug: {msg: \"{{ lookup('asks') }}\"}\n", limit="h1", env=env)
        assert messages(result)["h1"] == f"<urlopen error unknown url type: none{number}>", result.stdout


def test_the_program_sets_its_own_while_a_run_is_active(project):
    """On its own threads nothing is different."""
    project.write("callback_plugins/waits.py", """
        from ansible.plugins.callback import CallbackBase
        import os, time
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_TYPE, CALLBACK_NEEDS_ENABLED = 2.0, 'waits', 'notification', False
            def v2_playbook_on_start(self, playbook):
                open("begun", "w").close()
                while not os.path.exists("go"):
                    time.sleep(0.02)
    """)  # fmt: skip
    project.write("lookup_plugins/sets.py", SETS)
    run = project.start("- debug: {msg: \"{{ lookup('sets', 'look') }}\"}\n", limit="h1")
    try:
        deadline = time.monotonic() + 120
        while not (project.folder / "begun").exists():
            assert time.monotonic() < deadline, "it did not begin"
            time.sleep(0.02)
        socket.setdefaulttimeout(55)
        with socket.socket() as one:
            assert [socket.getdefaulttimeout(), one.gettimeout()] == [55, 55]
    finally:
        project.write("go", "")
        result = run.wait(120)
        after = socket.getdefaulttimeout()
        socket.setdefaulttimeout(None)
    assert after == 55
    # A plugin that sets none has the program's, as a forked worker would.
    assert messages(result)["h1"][0][:2] == [55, 55]


RANDOM = """
import random
import time
from random import randint, seed as sow
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        if terms[0] == "seeded":
            random.seed("the same in every run")
        elif terms[0] == "sown":
            sow("the same in every run")
        numbers = []
        for _ in range(20):
            numbers.append(randint(0, 10**9))
            numbers.append(random.choice(range(10**9)))
            time.sleep(0.001)
        return [numbers]
"""


def test_random_numbers_after_a_seed_are_the_same_for_each_worker_and_random_for_others(project):
    project.write("lookup_plugins/draws.py", RANDOM)
    random.seed(7)
    state = random.getstate()
    how = "'seeded' if inventory_hostname in ('h1', 'h2') else 'sown' if inventory_hostname == 'h3' else 'not'"
    task = f"- debug: {{msg: \"{{{{ lookup('draws', {how}) }}}}\"}}\n"
    said = [messages(project.run(task, forks=6)) for _ in range(2)]
    assert random.getstate() == state, "the program's numbers are its own"
    seeded = [one[host] for one in said for host in ("h1", "h2", "h3")]
    assert all(one == seeded[0] for one in seeded)
    others = [tuple(one[host]) for one in said for host in ("h4", "h5", "h6")]
    assert len({*others, tuple(seeded[0])}) == 7


LIMIT = """
import sys
from ansible.plugins.lookup import LookupBase

def deep(count):
    return 0 if count == 0 else 1 + deep(count - 1)

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(int(terms[0]))
        return [[before, sys.getrecursionlimit(), deep(before) if int(terms[0]) > before else 0]]
"""


def test_a_recursion_limit_that_a_plugin_sets_ends_with_its_worker(project):
    project.write("lookup_plugins/limits.py", LIMIT)
    limit = sys.getrecursionlimit()
    task = "- debug: {{msg: \"{{{{ lookup('limits', '{}') }}}}\"}}\n"
    more, less = 3 * limit, 50
    result = project.run(task.format(more) + task.format(less) + task.format(more), forks=3)
    assert result.rc == 0, result.stdout
    said = [one.event_data["res"]["msg"] for one in result.events if one.event == "runner_on_ok"]
    assert [seen for _, seen, _ in said] == [more] * 6 + [less] * 6 + [more] * 6
    assert sys.getrecursionlimit() == limit
