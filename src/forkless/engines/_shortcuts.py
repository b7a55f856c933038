# SPDX-License-Identifier: GPL-3.0-or-later
"""
Steps of ansible-core that come to nothing for most tasks, left out where that can be seen beforehand.

| name             | what is left out                                                                         | never left out                      |
| ---------------- | ---------------------------------------------------------------------------------------- | ----------------------------------- |
| unset-attributes | templating and checking those of a task's forty attributes that come out as they went in | what may be a template, what is full |
| quick-copies     | a call for each of them when a task is copied or told of; copying what is immutable      | copying lists and dicts             |
| plain-text       | within a template: templating text that is none, as each host's name in `groups` is       | what may be a template              |

Each does nothing but what ansible-core's own code would have come to; where that cannot be told from the value alone, ansible-core's own code
is called. `FORKLESS_DISABLE=unset-attributes` switches off by name, to find a culprit.
"""

from __future__ import annotations

import copy
import functools
import weakref
from typing import Any

from forkless.engines import _attributes, _copies, _scene
from forkless.engines._stitch import uses_only
from forkless.engines._views import View

__all__ = ["NAMES", "touches"]

NAMES = ("unset-attributes", "quick-copies", "plain-text")

# How the attributes of a class are gone through. A class does not change: they are good for the next run as well.
_copied: weakref.WeakKeyDictionary[type, list[tuple[str, str]]] = weakref.WeakKeyDictionary()
_dumped: weakref.WeakKeyDictionary[type, list[tuple[str, str, bool]]] = weakref.WeakKeyDictionary()


def copied(original: Any, _site: str) -> Any:
    """FieldAttributeBase.copy: the same copy, without a descriptor's call for each of forty values, and without copying what nobody can change."""
    from ansible.utils.sentinel import Sentinel

    if not uses_only(original, _COPY):
        return original
    plans = _copied

    @functools.wraps(original)
    def twin(thing: Any) -> Any:
        scene = _scene.current()
        kind = type(thing)
        plan = plans.get(kind)
        if plan is None:
            plan = plans[kind] = _slots(kind)
        if not plan or scene is None or "quick-copies" in scene.off:
            return original(thing)
        try:
            made = kind()
        except RecursionError:
            return original(thing)  # says it in its own words
        old, new = thing.__dict__, made.__dict__
        for read, write in plan:
            value = old.get(read, Sentinel)
            new[write] = value if type(value) in _PLAIN or _copies.is_scalar(value) else copy.copy(value)
        for name in _BESIDE:
            if name in old:
                new[name] = old[name]
        return made

    return twin


# What else upstream's copy takes along.
_BESIDE = ("_loader", "_variable_manager", "_origin", "_validated", "_finalized", "_uuid", "_ds")
_PLAIN = frozenset((str, int, float, bool, type(None), type))


def _slots(kind: Any) -> list[tuple[str, str]]:
    """Where the values of a class's attributes lie, and where its copy's go; nothing where that is not the whole story."""
    from ansible.playbook.attribute import Attribute

    slots = []
    for name, attribute in kind.fattributes.items():
        if type(attribute).__set__ is not Attribute.__set__ or hasattr(kind, f"_{name}"):
            return []
        slots += [(f"_{name}", f"_{own}") for own in (attribute.name, attribute.alias) if own is not None]
    return slots


def dumped(original: Any, _site: str) -> Any:
    """FieldAttributeBase.dump_attrs of a task that is at its end: its values lie in their slots, and no parent has to be asked for them."""
    from ansible.utils.sentinel import Sentinel

    if not uses_only(original, _DUMP):
        return original
    up_to_2_19 = "serialize" in original.__code__.co_names
    plans = _dumped

    @functools.wraps(original)
    def dump(thing: Any) -> Any:
        scene = _scene.current()
        fields = thing.__dict__
        if scene is None or "quick-copies" in scene.off or not (fields.get("_squashed") or fields.get("_finalized")):
            return original(thing)
        kind = type(thing)
        plan = plans.get(kind)
        if plan is None:
            plan = plans[kind] = _where(kind)
        attributes = {}
        for name, slot, is_object in plan:
            value = fields.get(slot, Sentinel)
            if value is Sentinel:
                value = getattr(thing, name)
            if is_object and not up_to_2_19:
                value = value.dump_attrs()
            elif is_object and hasattr(value, "serialize"):
                value = value.serialize()
            attributes[name] = value
        return attributes

    return dump


def _where(kind: Any) -> list[tuple[str, str, bool]]:
    """Of each attribute: its name, where its value lies ("" where it must be asked for), and whether it is an object with attributes of its own."""
    from ansible.playbook.attribute import FieldAttribute, NonInheritableFieldAttribute

    found = []
    for name, attribute in kind.fattributes.items():
        simple = type(attribute) in (FieldAttribute, NonInheritableFieldAttribute) and not hasattr(
            kind, f"_get_attr_{attribute.name}"
        )
        found.append((name, f"_{attribute.name}" if simple else "", attribute.isa == "class"))
    return found


def deep_copy(original: Any, _site: str) -> Any:
    """
    `deepcopy` of a task's arguments before they are checked against a specification.

    The same copy of what comes from YAML, JSON and templates; but text and numbers with tags are not taken apart and put together again, for nobody can
    change them. Anything else is copied by the stdlib.
    """

    def quick(value: Any) -> Any:
        scene = _scene.current()
        if scene is None or "quick-copies" in scene.off or not _copies.is_plain_tree(value):
            return original(value)
        return _copies.private_vars(value)

    return quick


def deep_copies(_original: Any, site: str) -> Any:
    """`copy` where a file's content is copied for whoever reads it, so that the next reader gets it as it was."""

    class Copy(View):
        deepcopy = staticmethod(deep_copy(copy.deepcopy, site))

    return Copy(copy)


def text_within(original: Any, _site: str) -> Any:
    """
    TemplateEngine.template of text that is met within a template, and is none itself.

    A list of hosts is gone through name by name, each with contexts of its own, to find that there is nothing to do.
    """
    from ansible._internal._templating._utils import TemplateContext
    from ansible.module_utils._internal._datatag import _AnsibleTaggedStr

    if not uses_only(original, _TEMPLATE):
        return original
    texts = (str, _AnsibleTaggedStr)

    @functools.wraps(original)
    def template(engine: Any, variable: Any, **how: Any) -> Any:
        if (
            type(variable) in texts
            and "{" not in variable
            and not variable.startswith("#jinja2:")
            and how.keys() <= _LAZY
            and TemplateContext.current(optional=True) is not None
        ):
            scene = _scene.current()
            if scene is not None and "plain-text" not in scene.off:
                return variable
        return original(engine, variable, **how)

    return template


def texts_within(original: Any, _site: str) -> Any:
    """
    All values of a lazy list at once, as `in` and `==` need them: of one that has nothing but text, none of it a template, as they are.

    Whether a host is in a group would be found out by going through all of its names.
    """
    from ansible._internal._templating._access import AnsibleAccessContext
    from ansible._internal._templating._lazy_containers import _LazyValue
    from ansible._internal._templating._utils import TemplateContext

    if not uses_only(original, set()):
        return original

    @functools.wraps(original)
    def render(values: Any) -> Any:
        scene = _scene.current()
        if scene is None or "plain-text" in scene.off or TemplateContext.current(optional=True) is None:
            return original(values)
        texts = [one.value if type(one) is _LazyValue else one for one in list.__iter__(values)]
        if not _TEXT.issuperset(map(type, texts)):  # what has tags may have one of which somebody wants to be told
            return original(values)
        together = "\n".join(texts)
        watching = AnsibleAccessContext.current()._notify_contexts
        if "{" in together or "#jinja2:" in together or any(str in one._type_interest for one in watching):
            return original(values)
        list.__setitem__(values, slice(None), texts)
        return None

    return render


class _Again:
    """The tag of `vars`, in which get_vars puts all variables a second time: the same values, made with fewer steps where they have no tags yet."""

    def __init__(self, original: Any) -> None:
        from ansible.module_utils._internal._datatag import AnsibleTaggedObject

        self._original = original
        self._kinds = {kind: AnsibleTaggedObject._tagged_type_map[kind] for kind in (str, int, float, list, dict)}
        self._mapping = original.tag("")._ansible_tags_mapping

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def tag(self, value: Any) -> Any:
        kind = self._kinds.get(type(value))
        scene = _scene.current()
        if kind is None or scene is None or "quick-copies" in scene.off:
            return self._original.tag(value)
        return kind._instance_factory(value, self._mapping)


def variables_again(original: Any, _site: str) -> Any:
    return _Again(original)


def facts_cleaned(original: Any, _site: str) -> Any:
    """clean_facts: of a host without facts there is nothing to copy, and no names to look through."""

    @functools.wraps(original)
    def clean(facts: Any) -> Any:
        scene = _scene.current()
        if facts or type(facts) is not dict or scene is None or "quick-copies" in scene.off:
            return original(facts)
        return {}

    return clean


# -- is it what we know? ------------------------------------------------------------------------------------------

# All names that ansible-core's own functions use, in any minor for which we step in for them. One that uses another is one that does more,
# and is left to do it.
_COPY = {
    "__class__", "RuntimeError", "RecursionError", "AnsibleError", "fattributes", "setattr", "shallowcopy", "getattr", "Sentinel",
    "hasattr", *_BESIDE,
}  # fmt: skip


_TEMPLATE = {
    "range", "TRANSFORM_CHAIN_LIMIT", "type", "IGNORE_SCALAR_VAR_TYPES", "isinstance", "str", "TemplateContext", "current", "stop_on_template",
    "TemplateMode", "STOP_ON_TEMPLATE", "DeprecatedAccessAuditContext", "when", "is_top_level", "JinjaCallContext", "_type_transform_mapping",
    "get", "__name__", "unmask_type_names", "_AnsibleLazyTemplateMixin", "_try_create", "template", "is_possibly_template", "overrides",
    "_trust_check", "TemplateEncountered", "_compile_template", "_compile_expression", "available_variables", "_post_render_mutation", "Exception",
    "defer_template_error", "ALWAYS_FINALIZE", "_finalize_top_level_template_result", "STOP_ON_CONTAINER", "AnsibleTemplateTransformLimitError",
    "TemplateExpressionWrapper", "expression",
}  # fmt: skip
_LAZY = frozenset({"lazy_options"})
_TEXT = frozenset({str})
_DUMP = {"fattributes", "items", "getattr", "isa", "hasattr", "serialize", "dump_attrs"}


def touches(known: tuple[str, ...]) -> tuple[tuple[Any, ...], ...]:
    """The seams of this room, for the table."""
    base = "ansible.playbook.base:FieldAttributeBase"
    return (
        (f"{base}.post_validate", "every host would check again what nobody set", _attributes.post_validate, known[1:]),
        (
            "ansible._internal._templating._engine:TemplateEngine.template",
            "every name in a list of hosts would be templated",
            text_within,
            known[1:],
        ),
        (
            "ansible._internal._templating._lazy_containers:_AnsibleLazyTemplateList._proxy_or_render_lazy_values",
            "every name in a list of hosts would be templated",
            texts_within,
            known[1:],
        ),
        (f"{base}.copy", "every host would copy what nobody can change", copied),
        (f"{base}.dump_attrs", "every host would ask parents for what it has", dumped),
        (
            "ansible.vars.manager:_DEPRECATE_VARS",
            "every host would tag and copy all variables twice",
            variables_again,
            known[2:],
        ),
        ("ansible.vars.manager:clean_facts", "every host would look through facts that it has not", facts_cleaned),
        ("ansible.parsing.dataloader:copy", "takes every tagged text apart, to copy it", deep_copies, known[1:]),
        ("ansible.module_utils.common.arg_spec:deepcopy", "takes every tagged text apart, to copy it", deep_copy),
    )
