# SPDX-License-Identifier: GPL-3.0-or-later
"""
plain-routing: the entries of a collection's meta/runtime.yml that only name a redirection need no YAML parser.

ansible-core's own table of moved plugins has 9,800 lines, which every start reads. All but some 60 of its entries are two lines whose meaning is seen from
their characters. The other entries are given to ansible-core's function one by one, and a text of any other shape is given to it as a whole.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import weakref
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from forkless.engines.threads import context
from forkless.patching.seam import for_speed

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext

__all__ = ["NAME", "SEAMS"]

NAME = "plain-routing"
_Value = TypeVar("_Value")

# Words that some YAML loaders do not read as a string.
_NAME = r"(?!(?i:y|n|yes|no|on|off|true|false|null):)([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
_TOKEN = re.compile(
    rf"""
      [ ]{{4}}{_NAME}:\n                                   # 1: an entry that has only ...
      [ ]{{6}}redirect:[ ]([a-z_]\w*\.[a-z_]\w*\.[a-z_]\w*(?:\.[a-z_]\w*)*)\n  # 2: ... the name of what it became
      (?=[ ]{{0,4}}[^ \n]|\n*\Z)
    | [ ]{{2}}{_NAME}:\n                                   # 3: a section, such as `modules`
    | (plugin_routing):\n                                  # 4: what has sections
    | ([ ]{{4}}[A-Za-z0-9_'"].*\n(?:[ ]{{5,}}[^ \n].*\n)*)       # 5: any other entry, with what is below it
    | ([A-Za-z_][^ \n]*:.*\n(?:[ ]+[^ \n].*\n)*)           # 6: anything else, with what is below it
    | [ ]{{0,4}}\#[ -~\t]*\n                               # a comment
    """,
    re.ASCII | re.VERBOSE,
)


def plain(text: str, read: Callable[[str], dict[str, object]]) -> dict[str, object] | None:
    """
    The table in `text`, of which `read` has read the entries that are not plain. None if the text has another shape.

    Other shapes are empty lines within the table, empty sections, other indentations, and anchors that another entry refers to.
    """
    if not text.isascii():  # YAML has other line breaks there
        return None
    table: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {}
    inside, section = False, None
    begin = 4 if text.startswith("---\n") else 0
    end = begin
    for token in _TOKEN.finditer(text, begin):
        if token.start() != end:
            return None
        end, kind = token.end(), token.lastindex
        if kind is None:
            continue
        if kind == 2 and section is not None:
            section[token[1]] = {"redirect": token[2]}
        elif kind == 5 and section is not None:
            section.update(read(token[5]))
        elif kind == 3 and inside:
            section = sections[token[3]] = {}
        elif kind == 4 and not sections:
            table[token[4]], inside = sections, True
        elif kind == 6:
            inside, section = False, None
            table.update(read(token[6]))
        else:
            return None
    whole = not text[end:].strip("\n")
    return table if whole and sections and all(sections.values()) else None


_Read: TypeAlias = "tuple[weakref.ref[Callable[..., object]], str, dict[str, object]]"


class _LastLarge:
    """The table that was read last from a large text: ansible-core's own, which every run of a program reads again."""

    LARGE = 100_000  # characters

    def __init__(self) -> None:
        self._read: _Read | None = None
        self._spare: list[tuple[_Read, dict[str, object]]] = []
        """The copy that a run has given back; at most one."""

    def get(
        self, text: str, original: Callable[..., dict[str, object]], content_id: object, run_context: RunContext
    ) -> dict[str, object] | None:
        """
        A copy of the table, so that no run can change another's; `original` tells which ansible-core made the values. It is kept for later
        runs only if there may be some: copying it takes as long as half of reading it. For the same reason the next run gets the copy of one that
        has ended, if that one has not changed it.
        """
        known = self._read
        if known is not None and known[0]() is original and known[1] == text:
            found = self._unchanged(known)
            if found is None:
                found = _copied(known[2])
            run_context.at_end.append(functools.partial(self._give_back, known, found, run_context))
            return found
        made = plain(text, lambda part: original(part, content_id))
        if run_context.terminal is None and made is not None and len(text) >= self.LARGE:
            self._read = known = weakref.ref(original), text, _copied(made)
            run_context.at_end.append(functools.partial(self._give_back, known, made, run_context))
        return made

    def _unchanged(self, known: _Read) -> dict[str, object] | None:
        with contextlib.suppress(IndexError):  # another thread has taken it
            of, copied = self._spare.pop()
            if of is known and copied == known[2]:
                return copied
        return None

    def _give_back(self, known: _Read, copied: dict[str, object], run_context: RunContext) -> None:
        # A thread that the run has left behind could still change it.
        if not (run_context.left_behind or run_context.abandoned or run_context.lingering):
            self._spare[:] = [(known, copied)]


def _copied(value: _Value) -> _Value:
    """As copy.deepcopy for what YAML gives, in a tenth of the time: most of a table is small dicts of texts, which can be shared."""
    kind = type(value)
    if kind is str:
        return value
    if kind is dict:
        return cast("_Value", {key: _copied(one) for key, one in cast("dict[object, object]", value).items()})
    return copy.deepcopy(value)


_last_large = _LastLarge()


def routing(original: Callable[..., dict[str, object]], _site: str) -> Callable[..., dict[str, object]]:
    """_meta_yml_to_dict. Any thread may call it."""

    @functools.wraps(original)
    def read(yaml_string_data: bytes | str, content_id: object) -> dict[str, object]:
        run_context = context.current()
        if run_context is not None and NAME not in run_context.off:
            try:
                text = yaml_string_data if isinstance(yaml_string_data, str) else yaml_string_data.decode()
                found = _last_large.get(text, original, content_id, run_context)
            except Exception:  # noqa: BLE001  # a part of the text alone may be no YAML; ansible-core reads the whole, or reports it
                found = None
            if found is not None:
                return found
        return original(yaml_string_data, content_id)

    return read


SEAMS = (
    for_speed(
        "ansible.utils.collection_loader._collection_finder:_meta_yml_to_dict",
        "every start would parse 9,800 lines of YAML, most of which are one redirection each",
        routing,
    ),
)
