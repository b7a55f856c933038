# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of templates are wrapped, passed on and announced as by ansible-core itself, without the steps that have no effect."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from forkless.core import versions
from forkless.core.stop import Stop
from forkless.engines.threads import context, importing
from forkless.engines.threads.speed import lazy_values
from forkless.patching import place, seams

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]

HAS_LAZY_VALUES = versions.nearest(seams.version()) in versions.since("2.19")
OLD = "ansible-core 2.18 has no lazy values"


@pytest.fixture
def run_context():
    importing.import_ansible(ours=False)
    made = context.RunContext(ident="a run", stop=Stop())
    with context.enter(made):
        yield made


@pytest.fixture
def both(run_context):
    """ansible-core's function at the site that ends so, and the one in its place."""

    def find(ending):
        (seam,) = [one for one in lazy_values.SEAMS if one.site.endswith(ending)]
        theirs, _ = place.find(seam.site).read()
        ours = seam.stand_in(theirs, seam.site)
        assert ours is not theirs, "the function does more than the replacement knows of"
        return getattr(theirs, "__func__", theirs), getattr(ours, "__func__", ours)

    return find


@pytest.fixture
def within_a_template(run_context):
    from ansible._internal._templating._engine import TemplateEngine, TemplateOptions
    from ansible._internal._templating._utils import TemplateContext

    engine = TemplateEngine()
    with TemplateContext(template_value="x", templar=engine, options=TemplateOptions.DEFAULT, stop_on_template=False):
        yield engine


def _value(dice, depth=2):
    from ansible._internal._datatag._tags import Origin

    kind = dice.randrange(9 if depth else 6)
    if kind >= 8:
        return {str(one): _value(dice, depth - 1) for one in range(dice.randrange(9))}
    if kind >= 6:
        return [_value(dice, depth - 1) for _ in range(dice.randrange(9))]
    value = dice.choice(
        ["", "text", "{{ a }}", 3, 2.5, True, None, b"bytes", ("a", 1), {1}, dt.date(2020, 1, 1), range(3)]
    )
    taggable = (str, int, float, list, dict, tuple)
    return Origin(path="/f").tag(value) if kind == 5 and type(value) in taggable else value


def _seen(source):
    """What a source of lazy values yields, with the objects in it told apart by identity."""
    values = list(source.source)
    return [
        (one[0], type(one[1]), id(one[1].value)) if isinstance(one, tuple) else (type(one), id(one.value))
        for one in values
    ]


def _content(made):
    """What is in a lazy container, not templated."""
    if isinstance(made, dict):
        return [(key, id(getattr(one, "value", one))) for key, one in dict.items(made)]
    return [id(getattr(one, "value", one)) for one in list.__iter__(made)] if isinstance(made, list) else None


@pytest.mark.skipif(not HAS_LAZY_VALUES, reason=OLD)
@pytest.mark.parametrize("kind", ["Dict", "List"])
def test_random_containers_are_wrapped_as_by_ansible_core_itself(both, within_a_template, run_context, kind):
    from ansible._internal._datatag._tags import Origin
    from ansible._internal._templating._utils import LazyOptions

    theirs, ours = both(f"{kind}._lazy_values")
    dice = random.Random(7)
    for turn in range(300):
        content = [_value(dice) for _ in range(dice.randrange(12))]
        values = {f"name{at}": one for at, one in enumerate(content)} if kind == "Dict" else content
        if turn % 3 == 0:
            values = Origin(path="/f").tag(values)
        options = dice.choice([LazyOptions.DEFAULT, LazyOptions.SKIP_TEMPLATES])
        expected, made = theirs(values, options), ours(values, options)
        assert (made.templar, made.lazy_options) == (expected.templar, expected.lazy_options)
        assert made.templar is within_a_template
        assert _seen(made) == _seen(expected)
    large = dict.fromkeys("abcdefgh", 1) if kind == "Dict" else list("abcdefgh")
    one = next(iter(ours(large, LazyOptions.DEFAULT).source))
    with pytest.raises(AttributeError):  # as frozen as theirs
        (one[1] if kind == "Dict" else one).value = 2


@pytest.mark.skipif(not HAS_LAZY_VALUES, reason=OLD)
@pytest.mark.parametrize("action", ["IGNORE", "WARNING", "ERROR"])
def test_random_values_become_lazy_where_ansible_core_makes_them_so(both, within_a_template, monkeypatch, action):
    from ansible._internal._errors import _handler
    from ansible._internal._templating import _jinja_common
    from ansible.errors import AnsibleVariableTypeError

    theirs, ours = both("Mixin._try_create")
    handler = _handler.ErrorHandler(_handler.ErrorAction[action])
    monkeypatch.setattr(_jinja_common._TemplateConfig, "unknown_type_encountered_handler", handler)
    dice = random.Random(11)
    values = [_value(dice) for _ in range(300)] + [object(), Exception, len, 1j]
    lazy = [theirs(one) for one in values if isinstance(one, list | dict)]
    for value in [*values, *lazy]:
        results = []
        for create in (theirs, ours):
            try:
                made = create(value)
                results.append((type(made), made is value, _content(made)))
            except AnsibleVariableTypeError as error:
                results.append(str(error))
        assert results[0] == results[1]


@pytest.mark.skipif(not HAS_LAZY_VALUES, reason=OLD)
def test_a_value_is_announced_to_those_whom_ansible_core_tells(both):
    from ansible._internal._datatag._tags import Origin, TrustedAsTemplate
    from ansible._internal._templating._access import AnsibleAccessContext, NotifiableAccessContextBase

    theirs, ours = both("AnsibleAccessContext.access")
    told = []

    def watcher(interest, mask):
        class Watcher(NotifiableAccessContextBase):
            _type_interest = frozenset(interest)
            _mask = mask

            def _notify(self, o):
                told.append((id(self), id(o)))

        return Watcher

    dice = random.Random(13)
    kinds = [str, int, bool, list, dict, type(None), Origin, TrustedAsTemplate]
    for _ in range(300):
        broker = AnsibleAccessContext()
        classes = [watcher(dice.sample(kinds, dice.randrange(4)), dice.random() < 0.5) for _ in range(2)]
        for _ in range(dice.randrange(4)):
            broker._register_interest(dice.choice(classes)())
        value = dice.choice(
            [_value(dice), TrustedAsTemplate().tag("x"), TrustedAsTemplate().tag(Origin(path="/f").tag("y"))]
        )
        seen = []
        for access in (theirs, ours):
            told.clear()
            access(broker, value)
            seen.append(list(told))
        assert seen[0] == seen[1]


def test_what_is_no_mapping_is_refused_as_by_ansible_core_itself(both):
    from ansible.errors import AnsibleError

    theirs, ours = both("_validate_mutable_mappings")
    for a in ({}, {"a": 1}, [], None, "text"):
        for b in ({}, {"a": 1}, [], 7):
            refused = []
            for validate in (theirs, ours):
                try:
                    refused.append(validate(a, b))
                except AnsibleError as error:
                    refused.append(str(error))
            assert refused[0] == refused[1]
