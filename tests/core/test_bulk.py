# SPDX-License-Identifier: GPL-3.0-or-later
"""Large texts in results: copies share them, and are otherwise what pickle and JSON make of them."""

from __future__ import annotations

import json
import pickle
import types

import pytest

from forkless.core import bulk
from forkless.engines.threads.patches.callbacks import Listener
from forkless.engines.threads.workers.worker import make_queue

TEXT = 'é😀\ud800"\\\n' * bulk.LARGE_TEXT
LINES = [f'line {number} "é😀\udcff\\' for number in range(bulk.MANY_LINES * 2 + 7)]


class Tagged(str):
    __slots__ = ()


RESULTS = {
    "small": {"stdout": "a", "stdout_lines": ["a"], "rc": 0, "none": None, "when": (1, 2)},
    "large": {"stdout": TEXT, "stdout_lines": LINES, "rc": 0, "diff": {"before": TEXT}, "empty": []},
    "loop": {"results": [{"stdout": TEXT, "item": 1}, {"stdout_lines": LINES}, {"stdout": "b"}], "changed": True},
    "mixed": {"lines": [*LINES, 1], "tagged": Tagged(TEXT), "many": {number: TEXT for number in range(3)}},
    "beginning": {"stdout": LINES[0] * bulk.LARGE_TEXT, "\x00": [[TEXT]], "stdout_lines": LINES[: bulk.MANY_LINES]},
}


@pytest.fixture(params=RESULTS)
def result(request):
    return RESULTS[request.param]


def test_a_copy_is_what_pickle_makes(result):
    item = {"host": "web1", "return_data": result}
    assert bulk.pickled(item, result)() == pickle.loads(pickle.dumps(item))  # noqa: S301  # made here


def test_a_copy_is_what_json_makes(result):
    fields = {"host": "web1", "res": result}
    assert bulk.json_copy(fields) == json.loads(json.dumps(fields))


def test_the_pieces_together_are_what_json_writes_and_each_is_small(result):
    whole = {"event_data": {"host": "web1", "res": result}, "stdout": TEXT}
    pieces = list(bulk.json_pieces(whole))
    assert b"".join(pieces) == json.dumps(whole).encode()
    if result is RESULTS["large"]:
        assert max(map(len, pieces)) <= 12 * bulk.LARGE_TEXT  # a character takes up to 12 bytes


def test_large_texts_are_shared_and_nothing_else():
    result = {"stdout": TEXT, "stdout_lines": LINES, "tagged": Tagged(TEXT), "results": [{"stdout": TEXT}]}
    for copy in (bulk.pickled(result, result)(), bulk.json_copy({"res": result})["res"]):
        assert copy["stdout"] is TEXT
        assert copy["results"][0]["stdout"] is TEXT
        assert copy["stdout_lines"] is not LINES
        assert copy["stdout_lines"][5] is LINES[5]
        assert copy["tagged"] is not result["tagged"]
        copy["results"][0]["stdout"] = copy["stdout_lines"][5] = "changed"
        assert result["results"][0]["stdout"] is TEXT
        assert "changed" not in LINES


def test_what_cannot_be_copied_is_an_error_as_without_large_texts():
    with pytest.raises((pickle.PicklingError, AttributeError)):
        bulk.pickled({"stdout": TEXT, "function": lambda: None}, {"stdout": TEXT})
    itself: dict[str, object] = {"stdout": TEXT}
    itself["itself"] = itself
    with pytest.raises(ValueError, match="Circular"):
        bulk.json_pieces(itself)


@pytest.mark.parametrize("shape", ["return_data", "_result", "wire_task_result"])
def test_a_worker_hands_its_output_over_without_a_copy(shape):
    result = {"stdout": TEXT, "stdout_lines": LINES}
    sent = types.SimpleNamespace(return_data=result) if shape == "wire_task_result" else result
    queue = make_queue(object)()
    queue.put(types.SimpleNamespace(**{shape: sent}))
    got = getattr(queue.get(), shape)
    got = got.return_data if shape == "wire_task_result" else got
    assert got == result
    assert got is not result
    assert got["stdout"] is TEXT
    assert got["stdout_lines"][0] is LINES[0]


def test_an_event_shares_the_output_of_its_task():
    seen: list[dict[str, object]] = []
    listener = Listener("run", lambda event: seen.append(event.event_data))
    listener.emit(
        "runner_on_ok", {"host": "web1", "res": {"stdout": TEXT, "ansible_facts": {"ansible_env": {"A": "b"}}}}
    )
    assert seen[0]["res"]["stdout"] is TEXT
    assert seen[0]["res"]["ansible_facts"] == {}
