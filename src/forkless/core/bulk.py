# SPDX-License-Identifier: GPL-3.0-or-later
"""
Large texts in the results of tasks: what a command printed, as one text and as a list of lines.

A text cannot be changed, so a copy of a result may share it. A copy by pickle or JSON of 200 MB of output takes a second
time the memory of every line, and that of the pickled or encoded form.
"""

from __future__ import annotations

import io
import json
import pickle
import uuid
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["json_copy", "json_pieces", "pickled"]

LARGE_TEXT = 1 << 16  # characters
MANY_LINES = 1 << 10
# A result of a loop in the fields of an event: fields, res, results, one result, its text.
_DEEPEST = 4


def _is_text(kind: type) -> bool:
    """Whether it is str, or the class by which ansible-core 2.18 marks a text that is no template. Other subclasses may have attributes, and are copied."""
    return kind is str or kind.__name__ == "AnsibleUnsafeText"


def _is_bulk(value: object) -> TypeGuard[str | list[str]]:
    """Whether it is a large text, or a list of many that contains nothing else."""
    if isinstance(value, str):
        return len(value) >= LARGE_TEXT and _is_text(type(value))
    return type(value) is list and len(value) >= MANY_LINES and all(map(_is_text, set(map(type, value))))


def _find(value: object, found: list[str | list[str]], depth: int = _DEEPEST) -> None:
    """Append all bulk values in nested dicts and lists to `found`."""
    # Called for every event and result, most of which contain nothing large: texts are looked at without a call for each.
    if _is_bulk(value):
        found.append(value)
    elif depth and isinstance(value, dict):
        for one in value.values():
            if isinstance(one, str):
                if len(one) >= LARGE_TEXT and _is_text(type(one)):
                    found.append(one)
            elif one and isinstance(one, (dict, list)):
                _find(one, found, depth - 1)
    elif depth and isinstance(value, list):
        for one in value:
            if isinstance(one, dict):
                _find(one, found, depth - 1)


def _unshared(value: str | list[str]) -> str | list[str]:
    return list(value) if type(value) is list else value


def _plain(value: str | list[str]) -> str | list[str]:
    """With no other class of texts than str, as JSON has it."""
    if isinstance(value, str):
        return str.__str__(value)
    return [str.__str__(one) for one in value]


def pickled(value: object, *results: object) -> Callable[[], object]:
    """
    Pickle `value`, which contains `results`, now. The returned function makes the copy, and is called at most once.

    Bulk values of `results` are shared by both, lists of lines are copied as lists.
    """
    bulk: list[str | list[str]] = []
    for result in results:
        _find(result, bulk)
    if not bulk:
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        return lambda: pickle.loads(data)  # noqa: S301  # pickled by this process
    numbers = {id(one): number for number, one in enumerate(bulk)}
    copies = [_unshared(one) for one in bulk]
    out = io.BytesIO()
    pickler = _SharingPickler(out, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.numbers = numbers
    pickler.dump(value)

    def load() -> object:
        unpickler = _SharingUnpickler(io.BytesIO(out.getvalue()))
        unpickler.shared = copies
        return unpickler.load()

    return load


class _SharingPickler(pickle.Pickler):
    numbers: dict[int, int]

    def persistent_id(self, obj: object) -> int | None:
        return self.numbers.get(id(obj))  # the objects are alive while they are pickled, so no other has the same id


class _SharingUnpickler(pickle.Unpickler):
    shared: list[str | list[str]]

    def persistent_load(self, pid: int) -> object:
        return self.shared[pid]


def json_copy(value: object, depth: int = _DEEPEST) -> Any:
    """
    The value with JSON's types only, as json.loads(json.dumps(value)) returns it; other objects become their str(), keys that JSON does not have are left out.

    Bulk values are shared by both, lists of lines are copied as lists.
    """
    bulk: list[str | list[str]] = []
    _find(value, bulk, depth)
    if not bulk:
        return json.loads(json.dumps(value, default=str, skipkeys=True))
    if _is_bulk(value):
        return _plain(value)
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: json_copy(one, depth - 1) for key, one in value.items()}
    if isinstance(value, list):
        return [json_copy(one, depth - 1) for one in value]
    return json.loads(json.dumps(value, default=str, skipkeys=True))


def json_pieces(value: dict[str, object]) -> list[bytes] | Iterator[bytes]:
    """
    What json.dumps(value, default=str).encode() returns, in pieces that are made one after the other if it contains bulk values.

    TypeError and ValueError are raised before the first piece.
    """
    bulk: list[str | list[str]] = []
    _find(value, bulk, _DEEPEST + 1)
    if not bulk:
        return [json.dumps(value, default=str).encode()]
    mark = uuid.uuid4().hex
    numbers = {id(one): number for number, one in enumerate(bulk)}
    small = json.dumps(_marked(value, numbers, mark, _DEEPEST + 1), default=str)
    return _with_bulk(small.split(f'"{mark}'), bulk)


def _marked(value: object, numbers: dict[int, int], mark: str, depth: int) -> object:
    """A copy in which each bulk value is a short text. `value` may contain itself, so only as deep as bulk values are looked for."""
    if id(value) in numbers:
        return f"{mark}{numbers[id(value)]}"
    if depth and isinstance(value, dict):
        return {key: _marked(one, numbers, mark, depth - 1) for key, one in value.items()}
    if depth and isinstance(value, list):
        return [_marked(one, numbers, mark, depth - 1) for one in value]
    return value


def _with_bulk(parts: list[str], bulk: list[str | list[str]]) -> Iterator[bytes]:
    yield parts[0].encode()
    for part in parts[1:]:
        number, _, rest = part.partition('"')
        value = bulk[int(number)]
        quotes, step = ("[]", MANY_LINES) if type(value) is list else ('""', LARGE_TEXT)
        yield quotes[0].encode()
        for at in range(0, len(value), step):
            # The inside of a list or of a text: the first and the last character are its brackets or quotes.
            inside = json.dumps(value[at : at + step])[1:-1]
            yield f"{', ' if at and quotes == '[]' else ''}{inside}".encode()
        yield f"{quotes[1]}{rest}".encode()
