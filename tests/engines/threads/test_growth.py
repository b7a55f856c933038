# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs leave nothing in memory: a program that lives for months makes thousands of them."""

from __future__ import annotations

import collections
import gc
import sys
import types

import pytest

pytestmark = pytest.mark.spawns


def of_code():
    """How many functions and classes there are, by the module that defines them: code that was executed once more, and is kept."""
    gc.collect()
    return collections.Counter(one.__module__ for one in gc.get_objects() if isinstance(one, types.FunctionType | type))


def test_no_run_leaves_another_copy_of_a_plugin(project):
    project.write("filter_plugins/own.py", """
        class FilterModule:
            def filters(self):
                return {"own": lambda value: value}
    """)  # fmt: skip
    tasks = """
        - set_fact: {x: "{{ range(10) | map('string') | list | own }}"}
        - debug: {msg: "{{ x | length }} {{ lookup('env', 'HOME') }} {{ x is defined }}"}
    """

    def some_runs():
        for _ in range(4):
            result = project.run(tasks, limit="h1,h2")
            assert result.rc == 0, result.stdout

    some_runs()
    before = of_code()
    some_runs()
    more = of_code() - before
    # Of a module that was there before, each run that leaves one more copy leaves all of its functions.
    assert not {
        name: number for name, number in more.items() if number >= 20 and before[name] and "ansible" in str(name)
    }


def test_a_table_of_a_library_that_a_filter_adds_to_at_every_call_does_not_grow(project, monkeypatch):
    """As json_query of community.general does it."""
    library, functions = types.ModuleType("jmespath"), types.ModuleType("jmespath.functions")
    functions.REVERSE_TYPES_MAP = {"string": ("str",)}
    library.functions = functions
    monkeypatch.setitem(sys.modules, "jmespath", library)
    monkeypatch.setitem(sys.modules, "jmespath.functions", functions)
    project.write("filter_plugins/queries.py", """
        import jmespath
        def query(value):
            table = jmespath.functions.REVERSE_TYPES_MAP
            table["string"] = table["string"] + ("AnsibleUnicode", "AnsibleUnsafeText")
            return ",".join(table["string"])
        class FilterModule:
            def filters(self):
                return {"query": query}
    """)  # fmt: skip
    for _ in range(2):
        assert (
            project.run("- debug: {msg: \"{{ 'x' | query }}\"}\n").stdout.count("str,AnsibleUnicode,AnsibleUnsafeText")
            == 6
        )
    assert functions.REVERSE_TYPES_MAP == {"string": ("str", "AnsibleUnicode", "AnsibleUnsafeText")}
