# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input is refused with the very words of the stdlib. Each script runs twice: on processes, and on threads."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.spawns

SCRIPT = """
import json, multiprocessing, os, re, sys, threading, time
if {ours}:
    import forkless.multiprocessing
    forkless.multiprocessing.install()

def wait(event): event.wait(240)
def nothing(*args): pass
def fails(call, *args, **kwargs):
    try:
        return repr(call(*args, **kwargs))
    except BaseException as error:
        # Since 3.14 there are addresses in the words of a PicklingError.
        return [type(error).__name__, re.sub("0x[0-9a-f]+", "0x", str(error)).replace("__mp_main__", "__main__")]

def bad_child(queue):
    me = multiprocessing.current_process()
    queue.put(fails(multiprocessing.get_context({method!r}).Process(target=nothing).start))
    queue.put(fails(me.join))
    queue.put(fails(me.start))

def main():
    ctx = multiprocessing.get_context({method!r})
    Process = ctx.Process
    said = {{}}
    said["unknown start method"] = fails(multiprocessing.get_context, "teleport")
    said["set unknown start method"] = fails(multiprocessing.set_start_method, "teleport", force=True)
    said["set start method of a context"] = fails(ctx.set_start_method, "fork")
    said["group"] = fails(Process, group=1)
    said["name"] = fails(setattr, Process(), "name", 3)
    said["join before start"] = fails(Process(target=nothing).join)
    said["terminate before start"] = fails(Process(target=nothing).terminate)
    said["sentinel before start"] = fails(getattr, Process(target=nothing), "sentinel")
    said["exitcode before start"] = fails(getattr, Process(target=nothing), "exitcode")
    event = ctx.Event()
    running = Process(target=wait, args=(event,))
    running.start()
    said["start twice"] = fails(running.start)
    said["close while alive"] = fails(running.close)
    said["daemon once started"] = fails(setattr, running, "daemon", True)
    event.set()
    running.join()
    said["start again once ended"] = fails(running.start)
    running.close()
    for name in ("join", "start", "terminate", "kill", "is_alive"):
        said[name + " once closed"] = fails(getattr(running, name))
    for name in ("exitcode", "pid", "sentinel"):
        said[name + " once closed"] = fails(getattr, running, name)
    unpicklable = Process(target=nothing, args=(threading.Lock(),))
    said["unpicklable argument"] = fails(unpicklable.start)
    unpicklable._popen and unpicklable.join()
    local = Process(target=lambda: None)
    said["unpicklable target"] = fails(local.start)
    local._popen and local.join()
    queue = ctx.Queue()
    daemon = Process(target=bad_child, args=(queue,), daemon=True)
    daemon.start()
    said["daemon with children"], said["join oneself"], said["start oneself"] = (queue.get(timeout=240) for _ in range(3))
    daemon.join()
    lock, rlock, bounded = ctx.Lock(), ctx.RLock(), ctx.BoundedSemaphore(1)
    said["release a free lock"] = fails(lock.release)
    said["release a free rlock"] = fails(rlock.release)
    said["release a full semaphore"] = fails(bounded.release)
    import pickle
    said["pickle a lock"] = fails(pickle.dumps, lock)
    said["pickle a queue"] = fails(pickle.dumps, queue)
    said["pickle the key"] = fails(pickle.dumps, multiprocessing.current_process().authkey)
    said["full"] = fails(filled(ctx).put, 2, block=False)
    said["empty"] = fails(ctx.Queue().get, block=False)
    queue.close()
    said["put once closed"] = fails(queue.put, 1)[0]
    said["pool of none"] = fails(ctx.Pool, 0)
    said["pool of what"] = fails(ctx.Pool, 1, 3)
    print(json.dumps(said))

def filled(ctx):
    queue = ctx.Queue(1)
    queue.put(1)
    return queue

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_is_refused_is_refused_in_the_words_of_the_stdlib(python, method):
    theirs, ours = (
        json.loads(python(SCRIPT.format(method=method, ours=which)).stdout.splitlines()[-1]) for which in (False, True)
    )
    assert len(theirs) > 35
    assert ours == theirs
