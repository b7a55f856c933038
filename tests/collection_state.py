# SPDX-License-Identifier: GPL-3.0-or-later
"""Collections whose plugins keep state in their modules."""

from __future__ import annotations


def write_collection(project, files, name="t/state"):
    for path, text in files.items():
        project.write(f"collections/ansible_collections/{name}/{path}", text)


def messages(result):
    assert result.rc == 0, result.stdout
    return [
        event.event_data["res"]["msg"]
        for event in result.events
        if event.event == "runner_on_ok" and "msg" in event.event_data["res"]
    ]


# Every kind of state that a scan of the collections in PyPI's `ansible` finds. Each counts the calls of `calls()`.
KINDS = {
    "a module's dict": "SEEN = {}\ndef calls():\n    SEEN['n'] = SEEN.get('n', 0) + 1\n    return SEEN['n']\n",
    "a module's list": "SEEN = list()\ndef calls():\n    SEEN.append(1)\n    return len(SEEN)\n",
    "a global statement": "n = 0\ndef calls():\n    global n\n    n += 1\n    return n\n",
    "a class's list": "class C:\n    seen = []\ndef calls():\n    C.seen.append(1)\n    return len(C.seen)\n",
    "an attribute of a class": "class C:\n    n = 0\ndef calls():\n    C.n += 1\n    return C.n\n",
    "an attribute of a class, through cls": """
        class C:
            n = 0
            @classmethod
            def more(cls):
                cls.n += 1
                return cls.n
        def calls():
            return C.more()
    """,
    "setattr": """
        class C:
            n = 0
        def calls():
            setattr(C, "n", C.n + 1)
            return C.n
    """,
    "a mutable default": "def calls(seen=[]):\n    seen.append(1)\n    return len(seen)\n",
    "an attribute of a function": "def calls():\n    calls.n = getattr(calls, 'n', 0) + 1\n    return calls.n\n",
    "lru_cache": """
        import functools
        @functools.lru_cache(maxsize=None)
        def cached(value):
            return value
        def calls():
            cached(cached.cache_info().currsize)
            return cached.cache_info().currsize
    """,
    "an instance": """
        class Counter:
            def __init__(self):
                self.n = 0
            def more(self):
                self.n += 1
                return self.n
        counter = Counter()
        def calls():
            return counter.more()
    """,
    "a singleton by its metaclass": """
        class Singleton(type):
            made = None
            def __call__(self, *args):
                if self.made is None:
                    self.made = super().__call__(*args)
                return self.made
        class Counter(metaclass=Singleton):
            def __init__(self):
                self.n = 0
        def calls():
            Counter().n += 1
            return Counter().n
    """,
    "threading.local": """
        import threading
        here = threading.local()
        def calls():
            here.n = getattr(here, "n", 0) + 1
            return here.n
    """,
    "a closure": """
        def make():
            n = 0
            def more():
                nonlocal n
                n += 1
                return n
            return more
        calls = make()
    """,
    "an iterator": "import itertools\nnumbers = itertools.count(1)\ndef calls():\n    return next(numbers)\n",
    "a context variable's dict": """
        import contextvars
        seen = contextvars.ContextVar("seen", default={})
        def calls():
            seen.get()["n"] = seen.get().get("n", 0) + 1
            return seen.get()["n"]
    """,
    "globals()": "n = 0\ndef calls():\n    globals()['n'] += 1\n    return n\n",
    "an attribute of the module itself": """
        import sys
        n = 0
        def calls():
            sys.modules[__name__].n += 1
            return n
    """,
    "a function of the stdlib that was replaced": """
        import os
        def calls():
            before = os.getlogin() if getattr(os, "replaced", False) else 0
            os.replaced, os.getlogin = True, lambda: before + 1
            return os.getlogin()
    """,
    "an entry in sys.modules": """
        import sys, types
        def calls():
            module = sys.modules.setdefault("forkless_test_entry", types.ModuleType("forkless_test_entry"))
            import forkless_test_entry
            forkless_test_entry.n = getattr(module, "n", 0) + 1
            return module.n
    """,
    "a handler of a logger": """
        import logging
        lines = []
        class Handler(logging.Handler):
            def emit(self, record):
                lines.append(record)
        logger = logging.getLogger("forkless.test.handler")
        logger.addHandler(Handler())
        def calls():
            logger.warning("x")
            return sum(type(handler) is Handler for handler in logging.getLogger("forkless.test.handler").handlers) * len(lines)
    """,
    "os.environ": """
        import os
        def calls():
            os.environ["FORKLESS_TEST_CALLS"] = str(int(os.environ.get("FORKLESS_TEST_CALLS", 0)) + 1)
            return os.environ["FORKLESS_TEST_CALLS"]
    """,
}  # fmt: skip
