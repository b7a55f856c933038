# SPDX-License-Identifier: GPL-3.0-or-later
"""ARCHITECTURE.md as tests: which layer imports which, what each may import from outside, and what `import forkless` does not do."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

import forkless
import forkless.jobs
import forkless.ssh

SOURCE = pathlib.Path(forkless.__file__).parent
COLLECTION = SOURCE.parent / "ansible_collections" / "forkless" / "core"
ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each layer, and the layers that it may import. What is not listed is forbidden; every import goes down.
LAYERS = {
    "core": set(),
    "patching": {"core"},
    "multiprocessing": {"core", "patching"},
    "ssh": {"core"},
    "modules": {"core", "patching", "ssh"},
    "engines": {"core"},  # engines/__init__.py: the contract; an engine is loaded by its name
    "engines.runner": {"core", "engines"},
    "engines.threads": {"core", "patching", "multiprocessing", "ssh", "modules", "engines"},
    "runner": {"core", "engines.runner"},
    "runs": {"core", "patching", "engines"},
    "__init__": {"core", "runs"},
    "jobs": {"core"},
    "queue": {"__init__", "core", "engines", "engines.threads", "jobs", "runs"},
    "web": {"__init__", "core", "queue"},
    "porting": {"core", "patching", "engines.threads"},
    "cli": {
        "__init__",
        "core",
        "patching",
        "modules",
        "ssh",
        "engines",
        "engines.threads",
        "engines.runner",
        "runs",
        "jobs",
        "queue",
        "web",
    },
    "__main__": {"cli"},
}
# `multiprocessing` is for any program: of core it may use only what knows nothing of runs.
FOR_ANY_PROGRAM = {"forkless.core.platform", "forkless.core.thread_exception", "forkless.core.thread_stack"}
# Text that is sent to hosts: the stdlib of Python 3.8 and each other.
SENT_TO_HOSTS = SOURCE / "modules" / "warm" / "remote"
# Modules whose name is put together at run time: each is loaded by the one module that is named here.
DYNAMIC = {
    "forkless.engines": "forkless.engines.",  # and, by its table, forkless.queue.engine
    "forkless.cli": "forkless.cli.commands.",
    "forkless.cli.commands.completion": "forkless.cli.commands.",
}
ANSIBLE = ("forkless.engines.threads", "forkless.modules", "forkless.cli", "forkless.porting")
ANSIBLE_RUNNER = ("forkless.engines.runner.engine", "forkless.engines.runner.pty_spawn", "forkless.runner")
# What plugins of the collection may import of ours, and only names that these offer.
PUBLIC = {"forkless": forkless, "forkless.jobs": forkless.jobs, "forkless.ssh": forkless.ssh}


def files():
    return sorted(SOURCE.rglob("*.py"))


def named(path, base=SOURCE.parent):
    """The module that a file is."""
    parts = list(path.relative_to(base).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {named(path) for path in files()}


def imports(text, name, *, package=False, modules=MODULES):
    """
    Every module that a text imports, at its top or later, by its full name.

    `from package import module` is an import of that module, however it is written: absolute, relative, or by importlib.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                parents = name.split(".") if package else name.split(".")[:-1]
                parents = parents[: len(parents) - (node.level - 1)]
                start = ".".join([*parents, start] if start else parents)
            for alias in node.names:
                yield f"{start}.{alias.name}" if f"{start}.{alias.name}" in modules else start
        elif isinstance(node, ast.Call) and node.args:
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__"):
                yield from strings_of(node.args[0])


def strings_of(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        yield str(node.values[0].value)  # what stands before the first placeholder


def imports_of(path, base=SOURCE.parent):
    return set(imports(path.read_text(), named(path, base), package=path.name == "__init__.py"))


def layer(module):
    parts = module.split(".")
    if len(parts) == 1:
        return "__init__"
    two = ".".join(parts[1:3])
    if two in LAYERS:
        return two
    if parts[1] in LAYERS:
        return parts[1]
    return "__init__"  # a public name, taken from the package itself


def forbidden(name, found):
    """The imports among `found` that module `name` may not have."""
    here = layer(name)
    for module in sorted(found):
        if module.split(".")[0] != "forkless" or module == DYNAMIC.get(name):
            continue
        there = layer(module)
        if there != here and there not in LAYERS[here]:
            yield f"{here} may not import {module}"
        elif here == "multiprocessing" and there == "core" and module not in FOR_ANY_PROGRAM:
            yield f"multiprocessing may not import {module}"


# -- the tests of the test ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "import forkless.engines.runner.engine",
        "import forkless.engines.runner as r",
        "from forkless.engines import runner",
        "from forkless.engines import choose, runner as r",
        "from forkless.engines.runner import engine",
        "from forkless.engines.runner.engine import RunnerEngine",
        "def f():\n    from forkless.engines import runner",
        "from .. import runner",
        "from ..runner import engine",
        "from ..runner.engine import ENGINE",
        "import importlib\nimportlib.import_module('forkless.engines.runner.engine')",
        "from importlib import import_module\nimport_module(f'forkless.engines.runner.{name}')",
        "__import__('forkless.engines.runner')",
    ],
)
def test_every_form_of_an_import_is_seen(text):
    assert list(forbidden("forkless.engines.threads.context", set(imports(text, "forkless.engines.threads.context"))))


def test_an_import_that_goes_down_is_allowed():
    text = "from forkless.core import errors\nfrom forkless.engines.threads import context\nfrom . import config_gate"
    assert not list(forbidden("forkless.engines.threads.engine", set(imports(text, "forkless.engines.threads.engine"))))


def test_multiprocessing_may_not_use_the_values_of_runs():
    text = "from forkless.core import errors, platform"
    found = set(imports(text, "forkless.multiprocessing.context"))
    assert list(forbidden("forkless.multiprocessing.context", found)) == [
        "multiprocessing may not import forkless.core.errors"
    ]


# -- the tests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", files(), ids=named)
def test_imports_go_down_only(path):
    assert not list(forbidden(named(path), imports_of(path)))


def test_commands_that_run_know_no_engine_from_inside():
    """They make a RunSpec and hand it to a Run: there is one path."""
    commands = [
        *(SOURCE / "cli").glob("*command*.py"),
        *((SOURCE / "cli" / "commands" / f"{name}.py") for name in ("playbook", "adhoc", "run")),
    ]
    assert len(commands) >= 7
    for path in commands:
        assert not [module for module in imports_of(path) if module.startswith("forkless.engines.")], path


@pytest.mark.parametrize("path", files(), ids=named)
def test_only_their_layers_import_ansible_and_ansible_runner(path):
    name, tops = named(path), {module.split(".")[0] for module in imports_of(path)}
    if not name.startswith(ANSIBLE):
        assert "ansible" not in tops
    if name not in ANSIBLE_RUNNER:
        assert not tops & {"ansible_runner", "pexpect", "ptyprocess"}


@pytest.mark.parametrize("path", sorted(SENT_TO_HOSTS.glob("*.py")), ids=named)
def test_what_is_sent_to_hosts_needs_the_standard_library_only(path):
    for module in imports_of(path):
        # module_utils come with the module that needs them
        ours = module.startswith(("forkless.modules.warm.remote.", "ansible.module_utils."))
        since_3_13 = module == "_colorize"
        assert ours or since_3_13 or module.split(".")[0] in sys.stdlib_module_names, module


def test_the_collection_imports_what_is_public():
    checked = 0
    for path in sorted(COLLECTION.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not [
                    a.name for a in node.names if a.name.split(".")[0] == "forkless" and a.name not in PUBLIC
                ], path
            elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "forkless":
                assert node.module in PUBLIC, f"{path} imports {node.module}"
                offered = PUBLIC[node.module].__all__
                for alias in node.names:
                    assert alias.name in offered or f"{node.module}.{alias.name}" in PUBLIC, f"{path}: {alias.name}"
                    checked += 1
    assert checked  # the collection does use forkless


def test_one_class_name_exists_once():
    places: dict[str, list[str]] = {}
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{named(path)}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_no_function_uses_a_global_name_and_a_comprehension_of_that_name():
    """Python 3.12.1 takes the global for an unset local then, if both are in comprehensions: such a function fails there alone."""
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

    def used(node, bound):
        """Names that are read below this node where no comprehension around them binds them."""
        if isinstance(node, comprehensions):
            bound |= targets(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in bound:
            yield node.id
        for child in ast.iter_child_nodes(node):
            yield from used(child, bound)

    def targets(node):
        return {one.id for part in node.generators for one in ast.walk(part.target) if isinstance(one, ast.Name)}

    wrong = []
    for path in files():
        tree = ast.parse(path.read_text())
        top = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        top |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                loops = [node.target for node in ast.walk(function) if isinstance(node, ast.For)]
                local = {one.id for target in loops for one in ast.walk(target) if isinstance(one, ast.Name)}
                inlined = [node for node in ast.walk(function) if isinstance(node, comprehensions[:3])]
                shadowed = top & set().union(*map(targets, inlined))
                wrong += [
                    f"{named(path)}:{function.lineno}: {name}"
                    for name in (shadowed - local) & set(used(function, frozenset()))
                ]
    assert not wrong


def test_any_becomes_rarer():
    """`Any` belongs to the border with packages that have no types. The number may only fall: write the new one down when it has."""
    count = sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for path in files()
        for node in ast.walk(ast.parse(path.read_text()))
    )
    file = pathlib.Path(__file__).with_name("any_count.txt")
    most = int(file.read_text())
    assert count <= most, f"{count - most} more than before: name the type"
    assert count == most, f"it is {count} now: write that into {file.name}, so that it stays"


def test_the_public_names_are_complete_both_ways():
    public = {
        name for name, thing in vars(forkless).items() if not name.startswith("_") and not isinstance(thing, type(ast))
    }
    assert public - {"annotations"} == set(forkless.__all__)
    assert forkless.__all__ == sorted(forkless.__all__)


def test_names_of_earlier_releases_still_work():
    from forkless.engines.runner import RunnerEngine
    from forkless.engines.runner.engine import RunnerEngine as same

    assert RunnerEngine is same
    assert forkless.jobs.JobBook is forkless.jobs.JobRegistry
    assert forkless.ssh.Wish is forkless.ssh.SshOptions
    assert forkless.ssh.Done is forkless.ssh.CommandResult
    assert forkless.ssh.LostError is forkless.ssh.ConnectionLostError


@pytest.mark.parametrize("path", files(), ids=named)
def test_every_file_names_its_licence(path):
    assert path.read_text().startswith("# SPDX-License-Identifier: GPL-3.0-or-later\n")


def test_tests_lie_in_the_folders_of_what_they_test():
    others = {"house", "docs", "bench", "upstream"}
    for path in (ROOT / "tests").rglob("test_*.py"):
        parts = path.relative_to(ROOT / "tests").parts[:-1]
        if parts and parts[0] not in others and not parts[0].startswith("."):
            assert SOURCE.joinpath(*parts).is_dir(), path


def test_the_picture_in_architecture_has_every_module_and_no_other():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    picture = text.split("```")[1]
    drawn, folders = set(), []
    for line in picture.splitlines():
        entry = line.strip().partition("   ")[0]  # three spaces at least lie between names and what they are for
        if not entry:
            continue
        depth = (len(line) - len(line.lstrip())) // 4
        folders[depth:] = []
        if entry.endswith("/"):
            folders.append(entry.rstrip("/"))
            continue
        drawn |= {"/".join([*folders, one]) for one in entry.split()}
    there = {str(path.relative_to(ROOT)).removesuffix(".py") for path in files() if path.name != "__init__.py"}
    drawn = {one for one in drawn if one.startswith("src/forkless/")} - {"src/forkless/__init__"}
    assert there - drawn == set(), "not in the picture"
    assert drawn - there == set(), "in the picture only"


@pytest.mark.spawns
def test_importing_forkless_imports_no_ansible_and_changes_nothing():
    code = """
import os, signal, sys, threading, multiprocessing.context as c
before = (os.getcwd(), dict(os.environ), threading.enumerate(), [signal.getsignal(s) for s in signal.valid_signals()],
          sys.stdout, sys.stderr, os.fork, os._exit, dict(c._concrete_contexts), list(sys.meta_path), list(sys.path_hooks))
import forkless
after = (os.getcwd(), dict(os.environ), threading.enumerate(), [signal.getsignal(s) for s in signal.valid_signals()],
         sys.stdout, sys.stderr, os.fork, os._exit, dict(c._concrete_contexts), list(sys.meta_path), list(sys.path_hooks))
assert before == after, (before, after)
loaded = [m for m in sys.modules if m.split('.')[0] in ('ansible', 'ansible_runner', 'pexpect', 'asyncssh', 'boto3', 'rich')]
assert not loaded, loaded
import forkless.cli.ansible_command, forkless.engines.threads.engine
assert 'asyncio' not in sys.modules, 'it takes its time, and most runs do not need it'
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_threads_of_ours_in_other_peoples_programs_are_known_to_have_begun():
    """A program may have replaced parts of `threading`: who waits for a thread that could not begin waits for ever (`OwnThread`)."""
    joined_at_once = {"core/platform.py", "cli/commands/doctor.py", "core/thread_stack.py"}
    elsewhere = ("multiprocessing/", "queue/", "web/")  # the program's own threads, and processes of forkless
    found = {
        str(path.relative_to(SOURCE))
        for path in files()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread")
    }
    assert {one for one in found - joined_at_once if not one.startswith(elsewhere)} == set()
