# SPDX-License-Identifier: GPL-3.0-or-later
"""Large texts in results: copies share them, and are otherwise what pickle and JSON make of them."""

from __future__ import annotations

import json
import pickle
import types

import pytest

from forkless.core import bulk
from forkless.engines.threads.patches.callbacks import Listener
from forkless.engines.threads.workers.result_queue import make_queue

TEXT = 'é😀\ud800"\\\n' * bulk.LARGE_TEXT
LINES = [f'line {number} "é😀\udcff\\' for number in range(bulk.MANY_LINES * 2 + 7)]


class Tagged(str):
    __slots__ = ()


class AnsibleUnsafeText(str):  # noqa: SLOT000  # neither has the original slots
    """As ansible-core 2.18 has it: each text of a result is one."""

    __UNSAFE__ = True


UNSAFE = AnsibleUnsafeText(TEXT)
UNSAFE_LINES = [AnsibleUnsafeText(line) for line in LINES]

RESULTS = {
    "small": {"stdout": "a", "stdout_lines": ["a"], "rc": 0, "none": None, "when": (1, 2)},
    "large": {"stdout": TEXT, "stdout_lines": LINES, "rc": 0, "diff": {"before": TEXT}, "empty": []},
    "loop": {"results": [{"stdout": TEXT, "item": 1}, {"stdout_lines": LINES}, {"stdout": "b"}], "changed": True},
    "mixed": {"lines": [*LINES, 1], "tagged": Tagged(TEXT), "many": {number: TEXT for number in range(3)}},
    "unsafe": {"stdout": UNSAFE, "stdout_lines": UNSAFE_LINES, "results": [{"stdout_lines": [*LINES, *UNSAFE_LINES]}]},
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
    copy = bulk.json_copy(fields)
    assert copy == json.loads(json.dumps(fields))
    texts = [copy["res"].get("stdout", ""), *copy["res"].get("stdout_lines", ())]
    assert {type(one) for one in texts} == {str}


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


def test_texts_that_are_marked_as_no_template_are_shared_with_their_mark():
    result = {"stdout": UNSAFE, "stdout_lines": UNSAFE_LINES}
    copy = bulk.pickled(result, result)()
    assert copy["stdout"] is UNSAFE
    assert copy["stdout_lines"] is not UNSAFE_LINES
    assert all(one is other for one, other in zip(copy["stdout_lines"], UNSAFE_LINES, strict=True))


def test_what_cannot_be_copied_is_an_error_as_without_large_texts():
    with pytest.raises((pickle.PicklingError, AttributeError)):
        bulk.pickled({"stdout": TEXT, "function": lambda: None}, {"stdout": TEXT})
    itself: dict[str, object] = {"stdout": TEXT}
    itself["itself"] = itself
    with pytest.raises(ValueError, match="Circular"):
        bulk.json_pieces(itself)


class CallbackSend(types.SimpleNamespace):
    """What ansible-core sends about one item of a loop."""


def whole_result(result):
    """As ansible-core 2.21 has it: the results of a loop are objects in an object, and registered values are apart."""
    empty = {"result_data": {}, "registered_values": None, "loop_results": None}
    item = types.SimpleNamespace(**empty | {"result_data": result})
    registered = {"kept": {"results": [result], "changed": True}}
    return types.SimpleNamespace(**empty | {"registered_values": registered, "loop_results": [item]})


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (lambda result: types.SimpleNamespace(_result=result), lambda got: [got._result]),  # 2.18
        (lambda result: CallbackSend(args=[types.SimpleNamespace(_result=result)]), lambda got: [got.args[0]._result]),
        (lambda result: types.SimpleNamespace(return_data=result), lambda got: [got.return_data]),  # 2.19, 2.20
        (
            lambda result: CallbackSend(wire_task_result=types.SimpleNamespace(return_data=result)),
            lambda got: [got.wire_task_result.return_data],
        ),
        (
            lambda result: types.SimpleNamespace(utr=whole_result(result)),  # since 2.21
            lambda got: [got.utr.loop_results[0].result_data, got.utr.registered_values["kept"]["results"][0]],
        ),
    ],
    ids=["2.18", "2.18, an item", "2.19", "2.19, an item", "2.21"],
)
def test_a_worker_hands_its_output_over_without_a_copy(sent, found):
    result = {"stdout": TEXT, "stdout_lines": LINES}
    queue = make_queue(object)()
    queue.put(sent(result))
    for got in found(queue.get()):
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
