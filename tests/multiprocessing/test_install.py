# SPDX-License-Identifier: GPL-3.0-or-later
"""Stepping in and out: nothing is patched by importing, and nothing stays patched after."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.process
import multiprocessing.resource_tracker
import multiprocessing.synchronize
import multiprocessing.util
import threading
from concurrent.futures import process as executor
from multiprocessing import current_process, managers  # taken by name before anything is installed

import pytest

import forkless.multiprocessing as fm
from forkless.core.errors import UnsupportedError
from forkless.multiprocessing import patches
from forkless.patching.seam import Seam, always


def belongings():
    """Everything that is replaced, as it stands now."""
    modules = (
        multiprocessing.context,
        multiprocessing.process,
        multiprocessing.resource_tracker,
        multiprocessing.synchronize,
        multiprocessing.util,
        managers,
        executor,
    )
    seen = {f"{m.__name__}.{name}": id(value) for m in modules for name, value in vars(m).items()}
    for owner in (
        multiprocessing.process.BaseProcess,
        multiprocessing.context.ForkProcess,
        multiprocessing.context.SpawnProcess,
        multiprocessing.context.ForkServerProcess,
        managers.Server,
        managers.BaseProxy,
        managers.BaseManager,
        threading.Thread,
    ):
        seen |= {
            f"{owner.__name__}.{name}": id(value) for name, value in vars(owner).items() if name != "__slotnames__"
        }
    for function in (current_process, multiprocessing.parent_process, multiprocessing.util._run_finalizers):
        seen[f"code of {function.__name__}"] = id(function.__code__)
    seen["default context"] = type(multiprocessing.context._default_context).__name__
    seen["contexts"] = tuple(multiprocessing.context._concrete_contexts)
    seen["tracker"] = type(multiprocessing.resource_tracker._resource_tracker).__name__
    return seen


def name_of_child(ctx):
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=put_name, args=(queue,), name="Absalom")
    child.start()
    try:
        return queue.get()
    finally:
        child.join()
        queue.close()


def put_name(queue):
    queue.put(current_process().name)


@pytest.mark.parametrize("stand_in", [True, False])
def test_stepping_out_leaves_every_name_as_it_was(stand_in):
    with fm.installed(stand_in=stand_in):  # once before: the modules must be imported for the comparison to be fair
        pass
    before = belongings()
    with fm.installed(stand_in=stand_in):
        assert belongings() != before
        assert name_of_child(multiprocessing.get_context("thread")) == "Absalom"
    assert belongings() == before
    assert not fm.is_installed()


def test_installing_twice_is_harmless_and_one_uninstall_takes_it_back():
    before = belongings()
    fm.install()
    once = belongings()
    fm.install()
    fm.install(stand_in=False)
    try:
        assert belongings() == once
        assert name_of_child(multiprocessing.get_context("spawn")) == "Absalom"
    finally:
        fm.uninstall()
    fm.uninstall()
    assert belongings() == before


def test_blocks_may_overlap_and_the_last_one_out_takes_the_stand_ins_out():
    first, second = fm.installed(stand_in=False), fm.installed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert fm.is_installed(stand_in=True)
    second.__exit__(None, None, None)
    assert not fm.is_installed()


def test_a_block_inside_an_installed_program_does_not_take_it_out():
    fm.install()
    try:
        with fm.installed():
            pass
        assert fm.is_installed(stand_in=True)
    finally:
        fm.uninstall()


def test_a_seam_that_fails_takes_the_others_out_again(monkeypatch):
    before = belongings()
    gone = Seam("multiprocessing.managers:Server.no_such_name", "a reason", always(4))
    monkeypatch.setattr(patches, "_manager_seams", lambda: [gone])
    with pytest.raises(UnsupportedError, match=r"lacks what forkless replaces: .*Server.no_such_name is missing"):
        fm.install()
    fm.uninstall()
    assert belongings() == before


def test_without_install_the_start_method_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"call forkless\.multiprocessing\.install\(\) first"):
        fm.ThreadProcess(target=print).start()
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        multiprocessing.get_context("thread")


def test_functions_imported_by_name_before_see_the_child():
    with fm.installed():
        assert name_of_child(multiprocessing.get_context("fork")) == "Absalom"
    assert current_process().name == "MainProcess"


@pytest.mark.matrix
def test_the_other_start_methods_stay_processes_when_only_thread_is_asked_for():
    stock = multiprocessing.context.ForkProcess._Popen
    with fm.installed(stand_in=False):
        assert multiprocessing.context.ForkProcess._Popen is stock
        assert "thread" not in multiprocessing.get_all_start_methods()
        assert multiprocessing.get_context("thread").get_start_method() == "thread"


@pytest.mark.spawns
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_real_process_beside_the_threads_is_a_process_of_its_own(python, method):
    script = f"""
import multiprocessing, os, warnings
import forkless.multiprocessing

def child(queue):
    me = multiprocessing.current_process()
    queue.put((os.getpid(), me.pid, me.name, multiprocessing.parent_process().pid, forkless.multiprocessing.is_installed()))

if __name__ == "__main__":
    forkless.multiprocessing.install(stand_in=False)
    ctx = multiprocessing.get_context({method!r})
    queue = ctx.Queue()
    process = ctx.Process(target=child, args=(queue,), name="real")
    process.start()
    pid, told, name, parent, installed = queue.get(timeout=240)
    process.join()
    assert pid == told == process.pid != os.getpid(), (pid, told)
    assert (name, parent, installed) == ("real", os.getpid(), False)
    thread = multiprocessing.get_context("thread").Process(target=print, args=("from a thread",))
    thread.start()
    thread.join()
    assert thread.exitcode == 0
"""
    assert "from a thread" in python(script).stdout


@pytest.mark.spawns
def test_importing_patches_nothing(python):
    python("""
import multiprocessing, multiprocessing.context, multiprocessing.process, multiprocessing.util, sys, threading
watched = [multiprocessing, multiprocessing.context, multiprocessing.process, multiprocessing.util, threading]
before = [dict(vars(m)) for m in watched], dict(vars(threading.Thread)), dict(vars(multiprocessing.process.BaseProcess))
code = multiprocessing.current_process.__code__
extensions = {name: sys.modules.get(name) for name in ("_multiprocessing", "_posixshmem")}
import forkless.multiprocessing
after = [dict(vars(m)) for m in watched], dict(vars(threading.Thread)), dict(vars(multiprocessing.process.BaseProcess))
assert before == after
assert multiprocessing.current_process.__code__ is code
assert extensions == {name: sys.modules.get(name) for name in extensions}
assert threading.active_count() == 1
""")


ORDERS = {
    "install first": "import forkless.multiprocessing as f; f.install(); import multiprocessing, multiprocessing.pool",
    "multiprocessing first": "import multiprocessing; import forkless.multiprocessing as f; f.install()",
    "everything first": (
        "import multiprocessing.pool, multiprocessing.managers, concurrent.futures.process; "
        "from multiprocessing import get_context, Pool; import forkless.multiprocessing as f; f.install()"
    ),
}


@pytest.mark.spawns
@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_imports_does_not_matter(python, order):
    python(f"""
{ORDERS[order]}
import multiprocessing, os
real = os.getpid()
for method in ("thread", "fork", "spawn", "forkserver"):
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]
        assert set(pool.map(os.path.basename, ["a/b"])) == {{"b"}}
        assert pool.apply(os.getpid) == real
""")
