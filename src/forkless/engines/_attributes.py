# SPDX-License-Identifier: GPL-3.0-or-later
"""
unset-attributes: those of a task's forty attributes that come out of templating and checking as they went in are not sent through it.

Most are what nobody set: None, a flag, an empty list. Where it cannot be told from the value alone, ansible-core's own code is called.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from forkless.engines import _scene
from forkless.engines._stitch import uses_only

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["post_validate"]

_UNKNOWN = object()


class _Field:
    """One attribute of one class, and all that tells whether ansible-core's way through it would change anything."""

    __slots__ = ("alone", "default", "has_alias", "inherits", "name", "slot", "static", "ways")

    def __init__(self, kind: Any, name: str, attribute: Any) -> None:
        from ansible.playbook.attribute import NonInheritableFieldAttribute
        from ansible.playbook.task import Task

        self.name = name
        self.slot = f"_{attribute.name}"
        self.static: bool = attribute.static
        # Whether the value is what lies in the slot, never a parent's; or a parent's only where nothing lies there.
        parents = getattr(kind, "_get_parent_attribute", None)
        self.alone = type(attribute) is NonInheritableFieldAttribute or parents is None
        self.inherits = parents is Task._get_parent_attribute and not attribute.extend if not self.alone else False
        self.has_alias = attribute.alias is not None
        self.default = attribute.default
        self.ways = _ways(kind, name, attribute)

    def is_settled(self, fields: dict[str, Any], squashed: Any, unset: Any) -> bool:
        """Whether it is at its end, or brought there by a way that is known for the type of its value."""
        value = fields.get(self.slot, unset)
        if value is unset:
            if self.has_alias or not (self.alone or squashed):
                return False
            value = self.default() if callable(self.default) else self.default
        elif not (self.alone or squashed or self.inherits):
            return False
        if value is None:
            return True
        way = self.ways.get(type(value))
        if way is None:
            return False
        after = way(value)
        if after is _UNKNOWN:
            return False
        fields[self.slot] = after
        return True

    def is_silent(self, thing: Any) -> bool:
        """Of a static attribute: whether its value, wherever it comes from, gives nothing to say."""
        if not self.static:
            return False
        value = getattr(thing, self.name)
        way = self.ways.get(type(value))
        return value is None or (way is not None and way(value) is not _UNKNOWN)


def _ways(kind: Any, name: str, attribute: Any) -> dict[type, Callable[[Any], Any]]:
    """What templating and conversion make of a value, by its type, where that is simple; `_UNKNOWN` where it is not."""
    from ansible._internal._templating._utils import IGNORE_SCALAR_VAR_TYPES
    from ansible.module_utils._internal._datatag import _AnsibleTaggedStr

    if attribute.static:  # is not templated; if it looks as if it should have been, something is said
        return {bool: _same, str: _same_text, list: _same_texts}
    if type(attribute).__name__ == "ConnectionFieldAttribute":  # up to 2.20: two words stand for others
        return {str: _same_connection, _AnsibleTaggedStr: _same_connection}
    method = getattr(kind, f"_post_validate_{name}", None)
    if method is not None:
        # Some say no more than that theirs is not templated yet.
        if method.__code__.co_names or attribute.listof is not None:
            return {}
        return {list: _same} if attribute.isa == "list" else {}
    if attribute.isa == "int":
        return {one: _same for one in IGNORE_SCALAR_VAR_TYPES if issubclass(one, int)}
    ways: dict[str, dict[type, Callable[[Any], Any]]] = {
        "bool": {bool: _same},
        "float": {float: _same, int: float},
        "string": {str: _same_text, _AnsibleTaggedStr: _same_tagged},
        # Not the very one that a parent, or the play, has.
        "list": {list: _fresh_list},
        "dict": {dict: _fresh_dict},
    }
    return ways.get(str(attribute.isa), {})


def _same(value: Any) -> Any:
    return value


def _same_text(value: str) -> Any:
    return _UNKNOWN if "{" in value else value


def _same_tagged(value: Any) -> Any:
    from ansible._internal._templating._jinja_bits import _JinjaConstTemplate

    return _UNKNOWN if "{" in value or _JinjaConstTemplate.is_tagged_on(value) else value


def _same_connection(value: Any) -> Any:
    return _UNKNOWN if value in ("smart", "persistent") else _same_tagged(value)


def _same_texts(value: list[Any]) -> Any:
    return value if all(type(one) is str and "{" not in one for one in value) else _UNKNOWN


def _fresh_list(value: list[Any]) -> Any:
    return _UNKNOWN if value else []


def _fresh_dict(value: dict[Any, Any]) -> Any:
    return _UNKNOWN if value else {}


def _field(kind: Any, name: str, attribute: Any) -> _Field | str | None:
    """How an attribute is gone through: with a look at its value, by its name in ansible-core's own way, or (None) not at all."""
    from ansible.playbook.attribute import FieldAttribute, NonInheritableFieldAttribute
    from ansible.playbook.base import FieldAttributeBase

    for method in ("post_validate_attribute", "_get_validated_value", "get_validated_value"):
        if getattr(kind, method) is not getattr(FieldAttributeBase, method):
            return name
    if (
        (
            type(attribute) not in (FieldAttribute, NonInheritableFieldAttribute)
            and type(attribute).__name__ != "ConnectionFieldAttribute"
        )
        or hasattr(kind, f"_get_attr_{name}")
        or hasattr(kind, f"_{attribute.name}")
        or attribute.required
    ):
        return name
    if attribute.static and name == "vars":
        return None
    if not (attribute.static or attribute.always_post_validate or kind._post_validate_object):
        return None  # of a block nothing is checked: its tasks inherit it, and are
    return _Field(kind, name, attribute)


# All names that ansible-core's own functions use, in any minor for which we step in for them. One that uses another is one that does more,
# and is left to do it.
_VALIDATE = {"fattributes", "post_validate_attribute", "Sentinel", "setattr", "_finalized"}
_VALIDATE_ONE = {
    "fattributes", "getattr", "static", "is_template", "display", "warning", "Sentinel", "required", "AnsibleFieldAttributeError", "get_ds",
    "role_include", "IncludeRole", "always_post_validate", "isinstance", "statically_loaded", "_post_validate_object", "isa", "template",
    "AnsibleValueOmittedError", "set_to_context", "get_validated_value", "Exception",
}  # fmt: skip
# How the attributes of a class are gone through. A class does not change: they are good for the next run as well.
_plans: weakref.WeakKeyDictionary[type, list[_Field | str]] = weakref.WeakKeyDictionary()


def post_validate(original: Any, _site: str) -> Any:
    """
    FieldAttributeBase.post_validate: upstream's loop over all attributes, without those that come out as they went in.

    Most are what nobody set: None, a flag, an empty list. A class is looked at once.
    """
    from ansible.playbook.base import FieldAttributeBase
    from ansible.utils.sentinel import Sentinel

    if not (uses_only(original, _VALIDATE) and uses_only(FieldAttributeBase.post_validate_attribute, _VALIDATE_ONE)):
        return original
    plans = _plans

    @functools.wraps(original)
    def validate(thing: Any, templar: Any) -> None:
        scene = _scene.current()
        if scene is None or "unset-attributes" in scene.off:
            original(thing, templar)
            return
        kind = type(thing)
        plan = plans.get(kind)
        if plan is None:
            found = [_field(kind, name, attribute) for name, attribute in kind.fattributes.items()]
            plan = plans[kind] = [field for field in found if field is not None]
        fields = thing.__dict__
        squashed = fields.get("_squashed") or fields.get("_finalized")
        for field in plan:
            if type(field) is str:
                name = field
            elif field.is_settled(fields, squashed, Sentinel) or field.is_silent(thing):  # type: ignore[union-attr]
                continue
            else:
                name = field.name  # type: ignore[union-attr]
            value = thing.post_validate_attribute(name, templar=templar)
            if value is not Sentinel:
                setattr(thing, name, value)
        thing._finalized = True

    return validate
