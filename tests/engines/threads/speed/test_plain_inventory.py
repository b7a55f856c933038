# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventories come out as from ansible-core itself, whether their lines are plain or not."""

from __future__ import annotations

import random
import sys

import pytest

from engines_support import messages
from forkless.core import switches
from forkless.core.stop import Stop
from forkless.core.versions import nearest
from forkless.engines.threads import context
from forkless.engines.threads.speed import inventory
from forkless.patching import seams

pytestmark = [pytest.mark.spawns, pytest.mark.matrix]

VALUES = [
    "", " ", "0", "00", "007", "7", "-7", "+7", "1_000", "1e5", "1j", "0x1f", "1.5", ".5", "5.", "9" * 18, "9" * 19, "9" * 5000,
    "True", "False", "None", "true", "yes", "no", "null", "inf", "nan", "...", "_", "__debug__", "__import__", "lambda", "if", "not",
    "a", "a.b", "a-b", "a--b", "a-1", "a-1j", "a.1", "a.", "a..b", "-a", "a b", "a=b", "a#b", "web-1.example.com", "10.0.0.1", "999.1.1.1",
    "1.2.3", "1.2.3.4.5", "10.0.0.1.", "/usr/bin/python3", "/", "//", "/1", "/-", "/a=b", "/a==1", "/1,", "/~x@y:1%2", "'a'", '"a"', "b'a'", "r'a'", "'a", "[1, 'x']", "(1,)",
    "{'a': 1}", "{{ x }}", "{% x %}", "{1}", "set()", "a\\b", "a\tb", "1if 1else 2", "\u00e4", "\uff34\uff52\uff55\uff45", "\u0661", "a\n", "1\n", "x" * 201,
    "x" * 202, "(" * 300, "@", "%", "~", "a:b", "a,b", "1,2", "a/b", "1/2", "not/a", "1-1", "1-1j", "1+1j",
]  # fmt: skip
LINES = [
    "h1", "h1 a=1", "h1  a=1\tb=x", "h1 a='x y'", 'h1 a="x" b=2', "h1 a=x # told", "h1 a=x#y", "h1 a=\\x", "h[1:3] a=b", "h1:2222 a=[1,2]",
    "h1 a=1 ", " h1", "h1 a='", "h1\u00a0a=1", "h1\x0ba=1", "h1\x1ca=1", "#", "", "h1 a=~/x b=%c d=u@v", "\u00e4 a=1",
]  # fmt: skip
ALPHABET = "aZ_09.-/+'\"\\ \t#=[]{}(),:jexTrue\u00e4\u00a0"


@pytest.fixture
def running(monkeypatch):
    run_context = context.RunContext(ident="x", stop=Stop())
    monkeypatch.setattr(context, "current", lambda: run_context)
    return run_context


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error), str(error)


def random_texts(count):
    chance = random.Random(19)
    return ["".join(chance.choices(ALPHABET, k=chance.randrange(1, 9))) for _ in range(count)]


def test_a_line_is_split_as_by_ansible_core(running):
    from ansible.utils.shlex import shlex_split

    ours = inventory.tokens(shlex_split, "")
    for line in LINES + random_texts(3000):
        assert outcome(ours, line, True) == outcome(shlex_split, line, True), repr(line)
    asked = []
    quick = inventory.tokens(lambda *arguments: asked.append(arguments), "")
    assert quick("h1 a=1", comments=True) == ["h1", "a=1"]
    assert not asked
    running.off = frozenset({inventory.NAME})
    quick("h1 a=1", comments=True)
    assert asked == [("h1 a=1", True, True)]


@pytest.mark.skipif(nearest(seams.version()) == "2.18", reason="2.18 has another method, which is left alone")
def test_a_value_is_that_of_ansible_core_with_its_type_and_tags(running):
    from ansible._internal._datatag._tags import Origin
    from ansible.module_utils._internal._datatag import AnsibleTagHelper
    from ansible.plugins.inventory.ini import InventoryModule

    theirs = InventoryModule._parse_value
    ours = inventory.value(theirs, "")
    assert ours is not theirs, "ansible-core's own method was not recognized"
    plugin = InventoryModule()
    plugin._origin = Origin(path="/hosts", line_num=3)
    for text in VALUES + random_texts(3000):
        mine, expected = (outcome(one, plugin, text) for one in (ours, theirs))
        assert (type(mine), mine) == (type(expected), expected), repr(text)
        assert AnsibleTagHelper.tags(mine) == AnsibleTagHelper.tags(expected), repr(text)
    for path in ("/opt/py-3.15+x/bin/python", "/opt/core==2.22/bin/python", "/opt/~x@y:1%2,3"):
        with pytest.MonkeyPatch.context() as patched:
            # Not by its dotted name: a package that was imported anew need not have the module as an attribute.
            ini = sys.modules[InventoryModule.__module__]
            patched.setattr(ini.ast, "literal_eval", lambda _: pytest.fail("was parsed"))
            assert ours(plugin, path) == path


def test_the_folder_of_an_inventory_is_looked_for_again_when_its_path_becomes_another_thing(
    running, tmp_path, monkeypatch
):
    from ansible.utils.path import basedir

    ours = inventory.folder(basedir, "")
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "place"
    for make in (lambda: None, place.touch, place.mkdir):
        if place.exists():
            place.unlink()
        make()
        for source in (str(place), "place", "", ".", str(place) + "/", "/no/such", "a\0b", "/a\0b"):
            for _ in range(2):
                assert outcome(ours, source) == outcome(basedir, source), source


def test_a_run_reads_the_same_inventory_with_it_and_without(project):
    project.write(
        "hosts.ini",
        """\
        h1 ansible_host=127.0.0.1 number=7 word=web-1.example.com path=/usr/bin old=007 yes=True quoted='a b' list=[1,2]  # told
        [some]
        h[2:3] a=1
        [some:vars]
        inner={'a': 'x'}
        [all:vars]
        ansible_connection=local
        """,
    )
    names = "ansible_host number word path old yes quoted list a inner inventory_dir inventory_file"
    shown = f"""
        - name: shown
          debug: {{msg: "{{{{ '{names}'.split() | map('extract', vars) | map('default', '-') | list }}}}"}}
    """
    with_it, without = (
        messages(project.run(shown, env={"FORKLESS_DISABLE": off}), "shown") for off in ("", inventory.NAME)
    )
    assert with_it == without
    assert with_it["h1"][:5] == ["127.0.0.1", 7, "web-1.example.com", "/usr/bin", "007"]
    assert set(with_it) == {"h1", "h2", "h3"}


def test_it_has_a_name_that_switches_it_off_and_leaves_a_method_alone_that_does_more():
    assert inventory.NAME in switches.NAMES

    def parse(self, text):
        return self._something_new(text)

    assert inventory.value(parse, "") is parse
