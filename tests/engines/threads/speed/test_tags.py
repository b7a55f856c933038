# SPDX-License-Identifier: GPL-3.0-or-later
"""What is tagged with a place has the tags that ansible-core gives it, and an inventory is what ansible-core reads."""

from __future__ import annotations

import random

import pytest

from forkless.core import versions
from forkless.core.stop import Stop
from forkless.engines.threads import context, importing
from forkless.engines.threads.speed import caches, inventory, tags
from forkless.patching import place, seams

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]

HAS_TAGS = pytest.mark.skipif(
    versions.nearest(seams.version()) not in versions.since("2.19"), reason="ansible-core 2.18 has no tags"
)


@pytest.fixture
def both():
    """ansible-core's function at the site that ends so, and the one in its place."""
    importing.import_ansible(ours=False)

    def find(ending):
        (seam,) = [one for one in (*tags.SEAMS, *inventory.SEAMS) if one.site.endswith(ending)]
        theirs, _ = place.find(seam.site).read()
        ours = seam.stand_in(theirs, seam.site)
        assert ours is not theirs, "the function does more than the replacement knows of"
        return getattr(theirs, "__func__", theirs), getattr(ours, "__func__", ours)

    with context.enter(context.RunContext(ident="a run", stop=Stop())):
        yield find


def _told(value):
    return type(value), value, list(getattr(value, "_ansible_tags_mapping", {}).items())


@HAS_TAGS
def test_random_values_are_tagged_as_by_ansible_core_itself(both):
    from ansible._internal._datatag._tags import Origin, TrustedAsTemplate

    theirs, ours = both("AnsibleTagHelper.tag")
    dice = random.Random(17)
    lines = [Origin(path="/f", line_num=number) for number in (1, 2)]
    known = [*lines, TrustedAsTemplate(), [lines[0], TrustedAsTemplate()], [], ()]
    values = ["", "text", 7, 2.5, True, None, ["x"], {"a": 1}, ("t",), {1}, b"bytes", object(), 1j]
    shared = 0
    for _ in range(2000):
        value = dice.choice(values)
        results = []
        wanted = [dice.choice(known) for _ in range(dice.randrange(1, 4))]
        asked = {"value_type": list} if type(value) is tuple and dice.random() < 0.5 else {}
        for tag in (theirs, ours):
            made, before = value, None
            try:
                for one in wanted:
                    before, made = made, tag(made, one, **asked)
            except TypeError as error:
                made = str(error)
            results.append(_told(made))
            if made is not before and isinstance(made, list | dict):
                assert made is not value, "a container is copied"
        assert results[0] == results[1]
        first, second = ours("a", lines[0]), ours(1, lines[0])
        shared += first._ansible_tags_mapping is second._ansible_tags_mapping
    assert shared == 2000, "the values of a line have one mapping"


@HAS_TAGS
def test_an_origin_with_another_line_is_that_of_ansible_core(both):
    from ansible._internal._datatag._tags import Origin

    theirs, ours = both("Origin.replace")
    for origin in (Origin(path="/f"), Origin(description="d", line_num=3), Origin(path="/f", line_num=1, col_num=2)):
        for change in ({}, {"line_num": 7}, {"line_num": 7, "col_num": 8}, {"col_num": None}, {"path": "/g"},
                       {"line_num": "7"}, {"line_num": True}, {"path": "g"}, {"description": "e", "line_num": 1}):  # fmt: skip
            results = []
            for replace in (theirs, ours):
                try:
                    made = replace(origin, **change)
                    results.append((type(made), made, hash(made), made is origin))
                except (TypeError, RuntimeError) as error:
                    results.append((type(error), str(error)))
            assert results[0] == results[1], change


@HAS_TAGS
def test_trust_is_removed_from_names_that_have_it(both):
    from ansible._internal._datatag._tags import Origin, TrustedAsTemplate

    theirs, ours = both("remove_trust")
    origin, trust = Origin(path="/f"), TrustedAsTemplate()
    for name in ("plain", origin.tag("told"), trust.tag("trusted"), trust.tag(origin.tag("both")), 7, None, ["x"]):
        assert _told(ours(name)) == _told(theirs(name))
        assert (ours(name) is name) == (theirs(name) is name)


@pytest.mark.parametrize("only_own", [True, False])
@pytest.mark.parametrize("setting", ["demand", "start"])
def test_vars_plugins_are_asked_for_each_host_if_they_run_when_the_inventory_is_read(
    both, monkeypatch, only_own, setting
):
    from ansible.vars import plugins as upstream

    asked = []

    class Plugin:
        ansible_name = "host_group_vars"

        def get_option(self, name):
            raise KeyError(name)

        def get_vars(self, _loader, _path, entities):
            asked.append(entities)
            return {"found": 1}

    plugin, looked = Plugin(), []
    loader = type(
        "Loader",
        (),
        {"_paths": [], "_plugin_instance_cache": {"x": (plugin, None)}, "get": lambda *_: looked.append(1) or plugin},
    )()
    monkeypatch.setattr(upstream, "vars_loader", loader)
    monkeypatch.setattr("ansible.plugins.loader.vars_loader", loader)
    monkeypatch.setattr(upstream.C, "RUN_VARS_PLUGINS", setting)
    monkeypatch.setattr(caches, "only_own_vars_plugin", lambda: only_own)
    theirs, ours = both("inventory.manager:get_vars_from_inventory_sources")
    for get in (theirs, ours):
        asked.clear()
        looked.clear()
        upstream._plugin_should_run.cache_clear()
        assert get(None, ["/etc/hosts"], ["h1"], "inventory") == ({} if setting == "demand" else {"found": 1})
        assert len(asked) == (setting == "start")
        assert bool(looked) == (get is theirs or setting == "start" or not only_own)
    upstream._plugin_should_run.cache_clear()
