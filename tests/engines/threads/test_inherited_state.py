# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker begins with the module-level state that the run's own thread has, as a forked one did, and what it changes is its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from collection_state import KINDS, messages, write_collection

# Stock Ansible is run beside, and importing ansible-core for another folder of collections starts ldconfig.
pytestmark = pytest.mark.spawns

MORE = {
    "a lock that was used": """
        import threading
        lock, n = threading.RLock(), 0
        def calls():
            global n
            with lock:
                n += 1
                return n
    """,
    "an object made later": """
        class Client:
            def __init__(self):
                self.token = {"n": 0}
        client = None
        def calls():
            global client
            client = client or Client()
            assert isinstance(client, Client)
            client.token["n"] += 1
            return client.token["n"]
    """,
    "objects that refer to each other": """
        class Node:
            def __init__(self, above=None):
                self.above, self.children, self.n = above, [], 0
        root = Node()
        def calls():
            if not root.children:
                root.children.append(Node(root))
            child = root.children[0]
            assert child.above is root
            child.n += 1
            return root.children[0].n
    """,
    "a sentinel": """
        MISSING = object()
        seen = {"first": MISSING}
        def calls(what=MISSING):
            assert what is MISSING
            assert seen["first"] is MISSING
            seen["n"] = seen.get("n", 0) + 1
            return seen["n"]
    """,
    "one dict under two names": """
        a = {"n": 0}
        b = a
        class C:
            c = a
        def calls():
            b["n"] += 1
            assert a is b is C.c
            return C.c["n"]
    """,
    "a registered function": """
        n = 0
        hooks = []
        def more():
            global n
            n += 1
            return n
        def calls():
            if not hooks:
                hooks.extend([more, lambda: n])
            hooks[0]()
            assert hooks[0] is more
            return hooks[1]()
    """,
    "an iterator that cannot be copied": """
        def numbers():
            n = 0
            while True:
                n += 1
                yield n
        seen, source = [], None
        def calls():
            global source
            source = source or numbers()
            seen.append(source)
            return len(seen)
    """,
    "a time that the import has taken": """
        import uuid
        RUN = str(uuid.uuid4())
        first = []
        def calls():
            first.append(RUN)
            assert set(first) == {RUN}
            return len(first)
    """,
    "a memoizing decorator": """
        import functools
        def memo(function):
            kept = {}
            @functools.wraps(function)
            def cached(*args):
                kept.setdefault(len(kept), function(*args))
                return len(kept)
            return cached
        @memo
        def calls():
            return 1
    """,
    "an ordered and a default dict": """
        import collections
        one, two, three = collections.OrderedDict(), collections.defaultdict(list), collections.deque()
        def calls():
            one[len(one)] = 1
            two["x"].append(1)
            three.append(1)
            assert len(one) == len(two["x"]) == len(three)
            return len(one)
    """,
}  # fmt: skip
ALL = KINDS | MORE

INVENTORY = """
    DOCUMENTATION = "name: start\\nshort_description: x\\ndescription: x\\noptions: {}"
    import importlib
    from ansible.plugins.inventory import BaseInventoryPlugin
    class InventoryModule(BaseInventoryPlugin):
        NAME = "t.state.start"
        def verify_file(self, path):
            return path.endswith("start.yml")
        def parse(self, inventory, loader, path, cache=True):
            super().parse(inventory, loader, path)
            for host in ("h1", "h2"):
                inventory.add_host(host)
                inventory.set_variable(host, "ansible_connection", "local")
            for number in range(%d):
                module = importlib.import_module(f"ansible_collections.t.state.plugins.module_utils.kind_{number}")
                module.calls()
                module.calls()
"""
LOOKUP = """
    import importlib
    from ansible.plugins.lookup import LookupBase
    class LookupModule(LookupBase):
        def run(self, terms, variables=None, **kwargs):
            found = []
            for number in range(%d):
                module = importlib.import_module(f"ansible_collections.t.state.plugins.module_utils.kind_{number}")
                try:
                    found.append(f"{module.calls()},{module.calls()}")
                except Exception as error:
                    found.append(repr(error))
            return [found]
"""


def stock(project, inventory):
    """The messages of the same playbook by stock Ansible."""
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), "-i", inventory, "play.yml"],
        cwd=project.folder,
        env={**os.environ, "ANSIBLE_CONFIG": str(project.folder / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in re.findall(r'^ +"msg": (.*)$', done.stdout, re.MULTILINE)]


def test_what_an_inventory_plugin_has_put_into_a_module_is_there(project):
    """Of every kind: two calls were made before, in the main process; each worker goes on from there, for itself."""
    files = {f"plugins/module_utils/kind_{n}.py": textwrap.dedent(text) for n, text in enumerate(ALL.values())}
    files |= {"plugins/inventory/start.py": INVENTORY % len(ALL), "plugins/lookup/counts.py": LOOKUP % len(ALL)}
    write_collection(project, files)
    project.write("start.yml", "plugin: t.state.start\n")
    project.write(
        "ansible.cfg", "[defaults]\ncollections_path = collections\n[inventory]\nenable_plugins = t.state.start\n"
    )
    inventory = str(project.folder / "start.yml")
    # Text, so that stock's message is one line.
    result = project.run("- debug: {msg: \"{{ lookup('t.state.counts') | join(';') }}\"}\n" * 2, inventory=inventory)
    by_kind = [dict(zip(ALL, one.split(";"), strict=True)) for one in messages(result)]
    assert by_kind == [dict.fromkeys(ALL, "3,4")] * 4
    assert stock(project, inventory) == messages(result)


MARKS = """
    SEEN = set()
    def mark(name):
        SEEN.add(name)
"""
PLUGINS = {
    "inventory/start.py": """
        DOCUMENTATION = "name: start\\nshort_description: x\\ndescription: x\\noptions: {}"
        from ansible.plugins.inventory import BaseInventoryPlugin
        from IMPORT import mark
        class InventoryModule(BaseInventoryPlugin):
            NAME = "start"
            def verify_file(self, path):
                return path.endswith("start.yml")
            def parse(self, inventory, loader, path, cache=True):
                super().parse(inventory, loader, path)
                mark("inventory")
                for host in ("h1", "h2"):
                    inventory.add_host(host)
                    inventory.set_variable(host, "ansible_connection", "FQmarks")
    """,
    "vars/marks.py": """
        DOCUMENTATION = "name: marks\\nshort_description: x\\ndescription: x\\noptions: {}"
        from ansible.plugins.vars import BaseVarsPlugin
        from IMPORT import mark
        class VarsModule(BaseVarsPlugin):
            REQUIRES_ENABLED = False
            def get_vars(self, loader, path, entities, cache=True):
                mark("vars")
                return {}
    """,
    "strategy/marks.py": """
        DOCUMENTATION = "name: marks\\nshort_description: x\\ndescription: x\\noptions: {}"
        from ansible.plugins.strategy.linear import StrategyModule as Linear
        from IMPORT import mark
        class StrategyModule(Linear):
            def run(self, iterator, play_context):
                mark("strategy")
                return super().run(iterator, play_context)
    """,
    "callback/marks.py": """
        DOCUMENTATION = "name: marks\\ntype: aggregate\\nshort_description: x\\ndescription: x\\noptions: {}"
        from ansible.plugins.callback import CallbackBase
        from IMPORT import mark
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "FQmarks"
            def v2_playbook_on_task_start(self, task, is_conditional):
                mark("task " + task.get_name().split()[0])
            def v2_runner_on_ok(self, result):
                mark("ok")
    """,
    "cache/marks.py": """
        DOCUMENTATION = "name: marks\\nshort_description: x\\ndescription: x\\noptions: {}"
        from ansible.plugins.cache.memory import CacheModule as Memory
        from IMPORT import mark
        class CacheModule(Memory):
            def contains(self, key):
                mark("cache")
                return super().contains(key)
            def get(self, key):
                mark("cache")
                return super().get(key)
    """,
    "connection/marks.py": """
        DOCUMENTATION = "name: marks\\nshort_description: x\\ndescription: x\\noptions: {}"
        from ansible.plugins.connection.local import Connection as Local
        from IMPORT import mark
        class Connection(Local):
            transport = "FQmarks"
            def reset(self):
                mark("reset")
    """,
    "filter/marks.py": """
        from IMPORT import mark
        class FilterModule:
            def filters(self):
                return {"marked": lambda name: mark("filter " + name) or name}
    """,
    "test/marks.py": """
        from IMPORT import mark
        class TestModule:
            def tests(self):
                return {"marked": lambda name: not mark("test " + name)}
    """,
    "lookup/seen.py": """
        from ansible.plugins.lookup import LookupBase
        from IMPORT import SEEN, mark
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                found = sorted(SEEN)
                mark("lookup " + "".join(terms))
                return [", ".join(found)]
    """,
}
TASKS = """
- name: "one {{ 'of the run' | FQmarked }}"
  debug: {msg: "{{ lookup('FQseen', 'worker') }}"}
- meta: reset_connection
- name: "two {{ '' if 'name' is FQmarked }}{{ lookup('FQseen', 'run') }}"
  debug: {msg: "{{ lookup('FQseen', 'worker') }}"}
"""
WHOLE = [
    "cache",
    "filter of the run",
    "inventory",
    "lookup run",
    "ok",
    "reset",
    "strategy",
    "task meta",
    "task one",
    "task two",
    "test name",
    "vars",
]


@pytest.mark.parametrize("where", ["a collection", "the project"])
def test_each_kind_of_plugin_leaves_its_state_to_later_workers(project, where):
    """As stock: what any plugin on the run's own thread has marked before a worker starts is seen by it, and nothing of another worker."""
    prefix = "t.state." if where == "a collection" else ""
    # A project's plugins have no package in common: they import a file from a folder that they put into sys.path.
    line = (
        "from ansible_collections.t.state.plugins.module_utils.marks import"
        if prefix
        else ("import sys\nsys.path.insert(0, FOLDER)\nfrom marks_of_project import")
    )
    for name, text in PLUGINS.items():
        body = textwrap.dedent(text).replace("from IMPORT import", line).replace("FQ", prefix)
        body = body.replace("FOLDER", repr(str(project.folder / "lib")))
        if prefix:
            write_collection(project, {f"plugins/{name}": body})
        else:
            project.write(name.replace("/", "_plugins/", 1), body)
    if prefix:
        write_collection(project, {"plugins/module_utils/marks.py": MARKS})
    else:
        project.write("lib/marks_of_project.py", MARKS)
    project.write("start.yml", f"plugin: {prefix}start\n")
    project.write(
        "ansible.cfg",
        f"""
        [defaults]
        collections_path = collections
        callbacks_enabled = {prefix}marks
        vars_plugins_enabled = host_group_vars, {prefix}marks
        fact_caching = {prefix}marks
        inventory_plugins = inventory_plugins
        {"" if prefix else "vars_plugins = vars_plugins"}
        {"" if prefix else "cache_plugins = cache_plugins"}
        {"" if prefix else "strategy_plugins = strategy_plugins"}
        {"" if prefix else "connection_plugins = connection_plugins"}
        [inventory]
        enable_plugins = {prefix}start
        """,
    )
    inventory = str(project.folder / "start.yml")
    result = project.run(TASKS.replace("FQ", prefix), inventory=inventory, head=f"strategy: {prefix}marks")
    found = [one.split(", ") for one in messages(result)]
    assert found[2:] == [WHOLE] * 2
    of_stock = [one.split(", ") for one in stock(project, inventory)]
    for told in (found, of_stock):
        # Whether the first host's result was there before the second host's worker started is a matter of time.
        told[1] = [mark for mark in told[1] if mark != "ok"]
    assert of_stock == found


def test_a_worker_keeps_the_environment_with_which_it_started(project):
    """A callback that puts the host's name into the environment before its task starts does not change it for a host whose task is running."""
    project.write(
        "callback_plugins/names.py",
        """
        import os, pathlib
        from ansible.plugins.callback import CallbackBase
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "names"
            def v2_runner_on_start(self, host, task):
                os.environ["FORKLESS_TEST_HOST"] = host.name
                pathlib.Path(os.path.dirname(__file__), host.name).touch()
        """,
    )
    project.write(
        "lookup_plugins/name.py",
        """
        import os, time
        from ansible.plugins.lookup import LookupBase
        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                while not os.path.exists(terms[0]):
                    time.sleep(0.02)
                return [os.environ["FORKLESS_TEST_HOST"]]
        """,
    )
    last = project.folder / "callback_plugins" / "h2"
    result = project.run(f"- debug: {{msg: \"{{{{ lookup('name', '{last}') }}}}\"}}", limit="h1,h2", forks=2)
    assert sorted(messages(result)) == ["h1", "h2"]
    assert "FORKLESS_TEST_HOST" not in os.environ


SHARED = """
    import threading
    class Client:
        def __init__(self):
            self.stream = (number for number in range(9))
            self.lock = threading.Lock()
            self.lock.acquire()
            self.seen = []
    client = None
    def connect():
        global client
        client = client or Client()
        return client
"""


def test_what_cannot_be_copied_is_shared_and_locks_are_new(project):
    """A client with a stream and a lock that the main process holds: a worker can use it, and its lists are its own."""
    write_collection(
        project,
        {
            "plugins/module_utils/client.py": SHARED,
            "plugins/filter/client.py": """
                from ..module_utils.client import Client, connect
                def start(_value):
                    return "" if connect() else ""
                def ask(value):
                    client = connect()
                    assert type(client) is Client
                    assert client.lock.acquire(blocking=False)
                    client.seen.append(value)
                    return f"{next(client.stream)} {len(client.seen)}"
                class FilterModule:
                    def filters(self):
                        return {"start": start, "ask": ask}
            """,
        },
    )
    project.write("ansible.cfg", "[defaults]\ncollections_path = collections\n")
    result = project.run(
        '- name: "begin {{ \'\' | t.state.start }}"\n  debug: {msg: "{{ 1 | t.state.ask }}"}\n' * 2, limit="h1,h2"
    )
    assert sorted(messages(result)) == ["0 1", "1 1", "2 1", "3 1"]


# What the code of plugins must not be hindered by: each file's filter is used in a task's name, on the run's own thread, and then by workers.
ODD = {
    "a registry that the file which imports it fills": (
        """
        from ansible_collections.t.state.plugins.module_utils.registry import REGISTRY, register
        @register
        class Member:
            pass
        def use(value):
            return "%s %s" % (sorted(REGISTRY), REGISTRY["Member"] is Member)
        """,
        "['Member'] True",
    ),
    "a library's object": (
        """
        from ansible_collections.t.state.plugins.module_utils.shared import CACHE
        import json
        MARKS = vars(json).setdefault("forkless_test_marks", [])
        def use(value):
            MARKS.append(value)
            CACHE.append(value)
            return str(len(CACHE))
        """,
        "2",
    ),
    "objects that are no plain values": (
        """
        import datetime, uuid
        def first(): return "first"
        def second(): return "second"
        LAST = {"at": datetime.datetime(2000, 1, 1), "by": first, "id": uuid.UUID(int=1)}
        def use(value):
            before = "%s %s %s" % (LAST["at"].year, LAST["by"](), LAST["id"].int)
            LAST.update(at=datetime.datetime(2026, 1, 1), by=second, id=uuid.UUID(int=2))
            return before
        """,
        "2026 second 2",
    ),
    "members of an enumeration": (
        """
        import enum
        class Phase(enum.Enum):
            INIT, READY = 1, 2
        class Flags(enum.Flag):
            A, B = 1, 2
        STATE = {"phase": Phase.INIT}
        def use(value):
            before, STATE["phase"], both = STATE["phase"], Phase.READY, Flags.A | Flags.B
            return "%s %s %s" % (before is Phase.READY, Flags(1) is Flags.A, isinstance(both, Flags))
        """,
        "True True True",
    ),
    "a proxy that raises": (
        """
        class Proxy:
            __slots__ = ()
            def __getattr__(self, name):
                raise RuntimeError("outside of a context")
        class Other:
            @property
            def __class__(self):
                raise RuntimeError("outside of a context")
        FIRST, LATER = [Proxy(), Other()], []
        ONE, OTHER = Proxy(), Other()
        def use(value):
            global LATER
            LATER = Proxy()
            return "used"
        """,
        "used",
    ),
    "random bytes": (
        """
        import os
        KEY = bytearray(os.urandom(4))
        def use(value):
            KEY[0] = 1
            return type(KEY).__name__
        """,
        "bytearray",
    ),
    "a deep recursion through a cache": (
        """
        import functools
        @functools.lru_cache(maxsize=None)
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        def use(value):
            return str(depth(3 if value == "run" else 350))
        """,
        "350",
    ),
    "constants and handlers that are removed again": (
        """
        import csv, signal
        from ansible import constants
        def use(value):
            constants.FORKLESS_TEST = 1
            del constants.FORKLESS_TEST
            csv.register_dialect("excel", delimiter=";")
            row = next(csv.reader(["a;b,c"]))
            csv.unregister_dialect("excel")
            handler = lambda *_: None
            signal.signal(signal.SIGUSR2, handler)
            return "%s %s %s" % (hasattr(constants, "FORKLESS_TEST"), row, signal.getsignal(signal.SIGUSR2) is handler)
        """,
        "False ['a;b', 'c'] True",
    ),
}
UTILS = {
    "plugins/module_utils/registry.py": """
        REGISTRY = {}
        def register(kind):
            REGISTRY[kind.__name__] = kind
            return kind
    """,
    "plugins/module_utils/shared.py": "CACHE = []\n",
}
OFFERED = "class FilterModule:\n    def filters(self):\n        return {'%s': use}\n"


@pytest.mark.matrix
def test_odd_objects_of_plugins_hinder_no_worker(project):
    files = {path: textwrap.dedent(text) for path, text in UTILS.items()}
    for number, (text, _) in enumerate(ODD.values()):
        files[f"plugins/filter/odd_{number}.py"] = textwrap.dedent(text) + OFFERED % f"odd_{number}"
    write_collection(project, files)
    project.write("ansible.cfg", "[defaults]\ncollections_path = collections\n")
    tasks = "".join(
        f"- name: \"{{{{ 'run' | t.state.odd_{number} }}}}\"\n"
        f'  debug: {{msg: "{{{{ inventory_hostname | t.state.odd_{number} }}}}"}}\n'
        for number in range(len(ODD))
    )
    try:
        found = messages(project.run(tasks, limit="h1,h2", forks=2))
    finally:
        marks = vars(json).pop("forkless_test_marks", None)
    assert sorted(marks) == ["h1", "h2", "run"]  # the program's own object: no worker has set it back
    assert dict(zip(ODD, zip(found[::2], found[1::2], strict=True), strict=True)) == {
        name: (told, told) for name, (_, told) in ODD.items()
    }
