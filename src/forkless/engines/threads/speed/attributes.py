# SPDX-License-Identifier: GPL-3.0-or-later
"""
unset-attributes: skips templating and validation of a task's attributes (some forty) that they would not change.

Most attributes are unset: None, a flag, an empty list. Where the value alone does not show that, ansible-core's code is called.
Unset is different from set to the default: an unset attribute may be inherited later, by a copy or under another parent. So
nothing is stored that ansible-core would not store.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from forkless.engines.threads import context
from forkless.patching.seams import uses_only

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["post_validate"]

_UNKNOWN = object()


class _Field:
    """One attribute of one class, and what decides whether ansible-core's post-validation would change its value."""

    __slots__ = ("alone", "default", "has_alias", "inherits", "keeps_default", "name", "slot", "static", "ways")

    def __init__(self, kind: object, name: str, attribute: Any) -> None:
        from ansible.playbook.attribute import NonInheritableFieldAttribute
        from ansible.playbook.task import Task

        self.name = name
        self.slot = f"_{attribute.name}"
        self.static: bool = attribute.static
        # Whether the value always comes from the slot, never from a parent; or from a parent only if the slot is unset.
        parents = getattr(kind, "_get_parent_attribute", None)
        self.alone = type(attribute) is NonInheritableFieldAttribute or parents is None
        self.inherits = parents is Task._get_parent_attribute and not attribute.extend if not self.alone else False
        self.has_alias = attribute.alias is not None
        self.default = attribute.default
        # Reading one of these attributes stores the result of its default.
        self.keeps_default = type(attribute) is NonInheritableFieldAttribute and callable(attribute.default)
        self.ways = _ways(kind, name, attribute)

    def is_settled(self, fields: dict[str, object], squashed: object, unset: object) -> bool:
        """Whether the value needs no post-validation, or was converted here in the known way for its type."""
        value = fields.get(self.slot, unset)
        if value is unset:
            if self.has_alias or not (self.alone or squashed):
                return False
            value = self.default() if callable(self.default) else self.default
            if self.keeps_default:
                fields[self.slot] = value
        elif not (self.alone or squashed or self.inherits):
            return False
        if value is None:
            return True
        way = self.ways.get(type(value))
        if way is None:
            return False
        after = way(value)
        if after is _UNKNOWN or (self.has_alias and after is not value):
            return False
        if not self.static:
            fields[self.slot] = after
        return True

    def is_silent(self, thing: object) -> bool:
        """For a static attribute: whether its value, own or inherited, causes no warning."""
        if not self.static:
            return False
        value = getattr(thing, self.name)
        way = self.ways.get(type(value))
        return value is None or (way is not None and way(value) is not _UNKNOWN)


def _ways(kind: object, name: str, attribute: Any) -> dict[type, Callable[[Any], object]]:
    """By type, the function that gives the result of templating and conversion where that is simple; it returns `_UNKNOWN` elsewhere."""
    from ansible._internal._templating._utils import IGNORE_SCALAR_VAR_TYPES
    from ansible.module_utils._internal._datatag import _AnsibleTaggedDict, _AnsibleTaggedStr

    if attribute.static and name == "vars":  # templates in it are resolved later
        return {dict: _same, _AnsibleTaggedDict: _same}
    if attribute.static:  # not templated; ansible-core warns if it contains a template
        return {bool: _same, str: _same_text, list: _same_texts}
    if type(attribute).__name__ == "ConnectionFieldAttribute":  # up to 2.20: replaces "smart" and "persistent"
        return {str: _same_connection, _AnsibleTaggedStr: _same_connection}
    method = getattr(kind, f"_post_validate_{name}", None)
    if method is not None:
        # Some methods only return the value, because it is templated later.
        if method.__code__.co_names or attribute.listof is not None:
            return {}
        return {list: _same} if attribute.isa == "list" else {}
    if attribute.isa == "int":
        return {one: _same for one in IGNORE_SCALAR_VAR_TYPES if issubclass(one, int)}
    ways: dict[str, dict[type, Callable[[Any], object]]] = {
        "bool": {bool: _same},
        "float": {float: _same, int: float},
        "string": {str: _same_text, _AnsibleTaggedStr: _same_tagged},
        # A new object, not the one that the parent or the play holds.
        "list": {list: _fresh_list},
        "dict": {dict: _fresh_dict},
    }
    return ways.get(str(attribute.isa), {})


def _same(value: object) -> object:
    return value


def _same_text(value: str) -> object:
    return _UNKNOWN if "{" in value else value


def _same_tagged(value: Any) -> object:
    from ansible._internal._templating._jinja_bits import _JinjaConstTemplate

    return _UNKNOWN if "{" in value or _JinjaConstTemplate.is_tagged_on(value) else value


def _same_connection(value: object) -> object:
    return _UNKNOWN if value in ("smart", "persistent") else _same_tagged(value)


def _same_texts(value: list[object]) -> object:
    return value if all(type(one) is str and "{" not in one for one in value) else _UNKNOWN


def _fresh_list(value: list[object]) -> object:
    return _UNKNOWN if value else []


def _fresh_dict(value: dict[object, object]) -> object:
    return _UNKNOWN if value else {}


def _field(kind: Any, name: str, attribute: Any) -> _Field | str | None:
    """How to post-validate an attribute: by inspecting its value (_Field), by ansible-core's method (its name), or not at all (None)."""
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
    if not (attribute.static or attribute.always_post_validate or kind._post_validate_object):
        # A block's attributes are not validated: its tasks inherit them and are. But reading some defaults stores them.
        return name if type(attribute) is NonInheritableFieldAttribute and callable(attribute.default) else None
    return _Field(kind, name, attribute)


# All names that ansible-core's functions use in the minors for which they are replaced. If a function uses another name, it does more
# than this replacement, and the original is called.
_VALIDATE = {"fattributes", "post_validate_attribute", "Sentinel", "setattr", "_finalized"}
_VALIDATE_ONE = {
    "fattributes", "getattr", "static", "is_template", "display", "warning", "Sentinel", "required", "AnsibleFieldAttributeError", "get_ds",
    "role_include", "IncludeRole", "always_post_validate", "isinstance", "statically_loaded", "_post_validate_object", "isa", "template",
    "AnsibleValueOmittedError", "set_to_context", "get_validated_value", "Exception",
}  # fmt: skip
# How to post-validate the attributes of each class. Classes do not change, so the plans are valid for later runs.
_plans: weakref.WeakKeyDictionary[type, list[_Field | str]] = weakref.WeakKeyDictionary()


def post_validate(original: Callable[..., object], _site: str) -> object:
    """
    FieldAttributeBase.post_validate: upstream's loop over all attributes, without those whose value it would not change.

    Most are unset: None, a flag, an empty list. Each class is analyzed once.
    """
    from ansible.playbook.base import FieldAttributeBase
    from ansible.playbook.role_include import IncludeRole
    from ansible.utils.sentinel import Sentinel

    if not (uses_only(original, _VALIDATE) and uses_only(FieldAttributeBase.post_validate_attribute, _VALIDATE_ONE)):
        return original
    plans = _plans

    @functools.wraps(original)
    def validate(thing: Any, templar: object) -> None:
        run_context = context.current()
        if run_context is None or "unset-attributes" in run_context.off:
            original(thing, templar)
            return
        if isinstance(thing, IncludeRole) and thing.statically_loaded:  # import_role: most attributes are not validated
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
