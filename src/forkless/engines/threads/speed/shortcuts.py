# SPDX-License-Identifier: GPL-3.0-or-later
"""
Steps of ansible-core that have no effect for most tasks, skipped where that can be seen beforehand.

| name             | what is skipped                                                                      | never skipped                          |
| ---------------- | ------------------------------------------------------------------------------------ | -------------------------------------- |
| unset-attributes | templating and validating attributes of a task that it would not change              | possible templates, non-empty containers |
| fast-copies      | a descriptor call for each attribute of a task, copying immutable values             | copying lists and dicts                |
| plain-text       | inside a template: templating text without a template, such as host names in `groups` | possible templates                     |

Each gives the result of ansible-core's code; where the value alone does not show the result, that code is called.
`FORKLESS_DISABLE=unset-attributes` switches one off by name, to find out which one causes a problem.
"""

from __future__ import annotations

import copy
import functools
import weakref
from typing import TYPE_CHECKING, Any

from forkless.core.versions import since
from forkless.engines.threads import context
from forkless.engines.threads.patches.worker_view import WorkerView
from forkless.engines.threads.speed import attributes as attributes_module
from forkless.engines.threads.workers import copy_variables
from forkless.patching.seams import for_speed, uses_only

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NAMES", "SEAMS"]

NAMES = ("unset-attributes", "fast-copies", "plain-text")

# The slots of each class's attributes. Classes do not change, so these are valid for later runs.
_copied: weakref.WeakKeyDictionary[type, list[tuple[str, str]]] = weakref.WeakKeyDictionary()
_dumped: weakref.WeakKeyDictionary[type, list[tuple[str, str, bool]]] = weakref.WeakKeyDictionary()


def copied(original: Callable[..., object], _site: str) -> object:
    """FieldAttributeBase.copy: the same copy without a descriptor call for each of some forty values, and without copying immutable ones."""
    from ansible.utils.sentinel import Sentinel

    if not uses_only(original, _COPY):
        return original
    plans = _copied

    @functools.wraps(original)
    def twin(thing: object) -> object:
        run_context = context.current()
        kind = type(thing)
        plan = plans.get(kind)
        if plan is None:
            plan = plans[kind] = _slots(kind)
        if not plan or run_context is None or "fast-copies" in run_context.off:
            return original(thing)
        try:
            made = kind()
        except RecursionError:
            return original(thing)  # raises ansible-core's error message
        old, new = thing.__dict__, made.__dict__
        for read, write in plan:
            value = old.get(read, Sentinel)
            new[write] = value if type(value) in _PLAIN or copy_variables.is_scalar(value) else copy.copy(value)
        for name in _BESIDE:
            if name in old:
                new[name] = old[name]
        return made

    return twin


# The other attributes that upstream's copy copies.
_BESIDE = ("_loader", "_variable_manager", "_origin", "_validated", "_finalized", "_uuid", "_ds")
_PLAIN = frozenset((str, int, float, bool, type(None), type))


def _slots(kind: Any) -> list[tuple[str, str]]:
    """The slots that hold the values of a class's attributes, and those of its copy; empty if the class stores values in another way."""
    from ansible.playbook.attribute import Attribute

    slots = []
    for name, attribute in kind.fattributes.items():
        if type(attribute).__set__ is not Attribute.__set__ or hasattr(kind, f"_{name}"):
            return []
        slots += [(f"_{name}", f"_{own}") for own in (attribute.name, attribute.alias) if own is not None]
    return slots


def dumped(original: Callable[..., object], _site: str) -> object:
    """FieldAttributeBase.dump_attrs of a finalized task: its values are in their slots, so no parent has to be searched."""
    from ansible.utils.sentinel import Sentinel

    if not uses_only(original, _DUMP):
        return original
    up_to_2_19 = "serialize" in original.__code__.co_names
    plans = _dumped

    @functools.wraps(original)
    def dump(thing: object) -> object:
        run_context = context.current()
        fields = thing.__dict__
        if (
            run_context is None
            or "fast-copies" in run_context.off
            or not (fields.get("_squashed") or fields.get("_finalized"))
        ):
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
    """For each attribute: its name, its slot ("" if it must be read by getattr), and whether its value is an object with attributes."""
    from ansible.playbook.attribute import FieldAttribute, NonInheritableFieldAttribute

    found = []
    for name, attribute in kind.fattributes.items():
        simple = type(attribute) in (FieldAttribute, NonInheritableFieldAttribute) and not hasattr(
            kind, f"_get_attr_{attribute.name}"
        )
        found.append((name, f"_{attribute.name}" if simple else "", attribute.isa == "class"))
    return found


def deep_copy(original: Callable[..., object], _site: str) -> Any:
    """
    `deepcopy` of a task's arguments before they are checked against a specification.

    The result is the same for values from YAML, JSON and templates, but tagged text and numbers are shared instead of being reduced and
    reconstructed, because they are immutable. Anything else is copied by the stdlib.
    """

    def quick(value: object) -> object:
        run_context = context.current()
        if run_context is None or "fast-copies" in run_context.off or not copy_variables.is_plain_tree(value):
            return original(value)
        return copy_variables.private_vars(value)

    return quick


def deep_copies(_original: object, site: str) -> object:
    """`copy` in the module that copies a cached file's content for each reader, so that a reader's changes do not reach the next."""

    class Copy(WorkerView):
        deepcopy = staticmethod(deep_copy(copy.deepcopy, site))

    return Copy(copy)


def text_within(original: Callable[..., object], _site: str) -> object:
    """
    TemplateEngine.template for text inside a template that is not a template itself.

    Upstream templates each name in a list of hosts, with a new context for each, although nothing changes.
    """
    from ansible._internal._templating._utils import TemplateContext
    from ansible.module_utils._internal._datatag import _AnsibleTaggedStr

    if not uses_only(original, _TEMPLATE):
        return original
    texts = (str, _AnsibleTaggedStr)

    @functools.wraps(original)
    def template(engine: object, variable: Any, **how: object) -> object:
        if (
            type(variable) in texts
            and "{" not in variable
            and not variable.startswith("#jinja2:")
            and how.keys() <= _LAZY
            and TemplateContext.current(optional=True) is not None
        ):
            run_context = context.current()
            if run_context is not None and "plain-text" not in run_context.off:
                return variable
        return original(engine, variable, **how)

    return template


def texts_within(original: Callable[..., object], _site: str) -> object:
    """
    All values of a lazy list at once, as `in` and `==` need them: unchanged if all are plain text without a template.

    Upstream templates every name of a group to find out whether a host is in it.
    """
    from ansible._internal._templating._access import AnsibleAccessContext
    from ansible._internal._templating._lazy_containers import _LazyValue
    from ansible._internal._templating._utils import TemplateContext

    if not uses_only(original, set()):
        return original

    @functools.wraps(original)
    def render(values: Any) -> object:
        run_context = context.current()
        if run_context is None or "plain-text" in run_context.off or TemplateContext.current(optional=True) is None:
            return original(values)
        texts = [one.value if type(one) is _LazyValue else one for one in list.__iter__(values)]
        if not _TEXT.issuperset(map(type, texts)):  # an access context may want to be notified of a tag
            return original(values)
        together = "\n".join(texts)
        watching = AnsibleAccessContext.current()._notify_contexts
        if "{" in together or "#jinja2:" in together or any(str in one._type_interest for one in watching):
            return original(values)
        list.__setitem__(values, slice(None), texts)
        return None

    return render


class _Again:
    """
    The tag of `vars`, in which get_vars puts all variables a second time: the same tagged values, made faster.

    Text and numbers are immutable, so the tagged copy of the same object is made once for the run. Containers are copied each time.
    """

    def __init__(self, original: Any) -> None:
        from ansible.module_utils._internal._datatag import AnsibleTaggedObject

        self._original = original
        tagged = AnsibleTaggedObject._tagged_type_map
        self._containers = {kind: tagged[kind] for kind in (list, dict)}
        self._scalars = {bool, type(None), *(one for kind in (str, int, float) for one in (kind, tagged[kind]))}
        self._mapping = original.tag("")._ansible_tags_mapping

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)

    def tag(self, value: Any) -> object:
        run_context = context.current()
        if run_context is None or "fast-copies" in run_context.off:
            return self._original.tag(value)
        kind = type(value)
        if kind in self._scalars:
            state = run_context.state
            known: dict[int, tuple[object, object]] = state.get(_TAGGED) or state.setdefault(_TAGGED, {})
            found = known.get(id(value))
            if (
                found is None or found[0] is not value
            ):  # the entry keeps its value alive, so that no other object gets its id
                if len(known) >= _TAGGED_AT_MOST:
                    known.clear()
                found = known[id(value)] = (value, self._original.tag(value))
            return found[1]
        container = self._containers.get(kind)
        return self._original.tag(value) if container is None else container._instance_factory(value, self._mapping)


_TAGGED = "tagged for vars"
_TAGGED_AT_MOST = 16384


def variables_again(original: object, _site: str) -> object:
    return _Again(original)


# -- names that the replaced functions may use -----------------------------------------------------------------------

# All names that ansible-core's functions use in the minors for which they are replaced. If a function uses another name, it does more
# than this replacement, and the original is called.
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


_BASE = "ansible.playbook.base:FieldAttributeBase"
_TEMPLATING = "ansible._internal._templating"
SEAMS = (
    for_speed(
        f"{_BASE}.post_validate",
        "every host would validate unset attributes again",
        attributes_module.post_validate,
        since("2.19"),
    ),
    for_speed(
        f"{_TEMPLATING}._engine:TemplateEngine.template",
        "every name in a list of hosts would be templated",
        text_within,
        since("2.19"),
    ),
    for_speed(
        f"{_TEMPLATING}._lazy_containers:_AnsibleLazyTemplateList._proxy_or_render_lazy_values",
        "every name in a list of hosts would be templated",
        texts_within,
        since("2.19"),
    ),
    for_speed(f"{_BASE}.copy", "every host would copy immutable values", copied),
    for_speed(f"{_BASE}.dump_attrs", "every host would search the parents for values in its own slots", dumped),
    for_speed(
        "ansible.vars.manager:_DEPRECATE_VARS",
        "every host would tag and copy all variables twice",
        variables_again,
        since("2.20"),
    ),
    for_speed(
        "ansible.parsing.dataloader:copy", "takes every tagged text apart, to copy it", deep_copies, since("2.19")
    ),
    for_speed("ansible.module_utils.common.arg_spec:deepcopy", "takes every tagged text apart, to copy it", deep_copy),
)
