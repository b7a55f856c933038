# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plugin sets in loggers counts for its worker, as it did when workers were processes: not for others, nor for the program."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import types

import pytest

from engines_support import messages

pytestmark = pytest.mark.spawns

# A library of the program, which logs to a logger of its own.
LIBRARY = """
import logging
logger = logging.getLogger("t_library.part")

def seen():
    return [logger.isEnabledFor(logging.DEBUG), logger.getEffectiveLevel(), logging.getLogger().getEffectiveLevel()]

def wait(path):
    with open(path) as file:
        file.read()

def say(text):
    logger.warning(text)
"""
PLUGIN = """
import logging
import t_library
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        if terms[0] == "set":
            {sets}
        return [{said}]
"""
TASK = "- debug: {msg: \"{{ lookup('logs', 'set' if inventory_hostname == 'h1' else 'look') }}\"}\n"


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


@pytest.fixture
def library(monkeypatch):
    made = types.ModuleType("t_library")
    exec(LIBRARY, vars(made))
    monkeypatch.setitem(sys.modules, "t_library", made)
    return made


@contextlib.contextmanager
def program_log(*handlers, level=logging.ERROR):
    """The root logger of a program that has set its level and its handlers. Not a fixture: pytest adds its own when a test begins."""
    root = logging.root
    before = root.handlers, root.level
    root.handlers = list(handlers)
    root.setLevel(level)
    try:
        yield
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])


def state():
    return [logging.root.level, list(logging.root.handlers), [list(one.filters) for one in logging.root.handlers],
            logging.root.manager.disable, logging.getLogger("t_library").level]  # fmt: skip


SETS = {
    "a logger": ('logging.getLogger("t_library").setLevel("DEBUG")', [True, 10, 40]),
    "its level": ('logging.getLogger("t_library").level = logging.DEBUG', [True, 10, 40]),
    "a child of one": ('logging.getLogger("t_library").getChild("part").setLevel(10)', [True, 10, 40]),
    "the root logger": ("logging.getLogger().setLevel(logging.DEBUG)", [True, 10, 10]),
    "root": ("logging.root.setLevel(logging.DEBUG)", [True, 10, 10]),
    "the parent": ('logging.getLogger("t_library").parent.setLevel(logging.DEBUG)', [True, 10, 10]),
    "basicConfig": ("logging.basicConfig(level=logging.DEBUG, force=True)", [True, 10, 10]),
    "disable": ("logging.root.setLevel(10); logging.disable(logging.DEBUG)", [False, 10, 10]),
    "from": ("from logging import getLogger, DEBUG; getLogger().setLevel(DEBUG)", [True, 10, 10]),
}


@pytest.mark.parametrize("what", SETS)
def test_a_level_that_a_plugin_sets_is_that_of_its_worker(project, library, what):
    """Of the libraries that it calls, too."""
    sets, expected = SETS[what]
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=sets, said="t_library.seen()"))
    with program_log(Kept()):
        before = state()
        result = project.run(TASK, head="serial: 1", limit="h1,h2")
        assert messages(result) == {"h1": expected, "h2": [False, 40, 40]}, result.stdout
        assert state() == before


def test_what_a_plugin_of_the_run_itself_sets_counts_for_its_workers(project, library):
    """A forked worker inherited it."""
    project.write("callback_plugins/sets.py", """
        import logging
        from ansible.plugins.callback import CallbackBase
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_TYPE, CALLBACK_NEEDS_ENABLED = 2.0, 'sets', 'notification', False
            def v2_playbook_on_start(self, playbook):
                logging.getLogger("t_library").setLevel(logging.INFO)
    """)  # fmt: skip
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets="pass", said="t_library.seen()"))
    with program_log(Kept()):
        before = state()
        assert messages(project.run(TASK, limit="h1")) == {"h1": [False, 20, 40]}
        assert state() == before


def test_a_handler_that_a_plugin_of_the_run_itself_adds_gets_the_records_of_its_workers(project, library):
    """A forked worker inherited it. A plugin there that asks whether there is a handler already finds it, and adds none."""
    project.write("callback_plugins/sets.py", """
        import logging
        from ansible.plugins.callback import CallbackBase
        class Writes(logging.Handler):
            def emit(self, record):
                with open("told.log", "a") as file:
                    file.write(record.getMessage() + "\\n")
        class CallbackModule(CallbackBase):
            CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_TYPE, CALLBACK_NEEDS_ENABLED = 2.0, 'sets', 'notification', False
            def v2_playbook_on_start(self, playbook):
                logging.getLogger("t_library").addHandler(Writes())
    """)  # fmt: skip
    said = "[t_library.say(variables['inventory_hostname']), len(logging.getLogger('t_library').handlers)][1]"
    removes = 'logging.getLogger("t_library").handlers = []'
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=removes, said=said))
    with program_log(Kept(), level=logging.WARNING):
        result = project.run(TASK, head="serial: 1", limit="h1,h2,h3")
        library.say("the program")
    assert messages(result) == {"h1": 0, "h2": 1, "h3": 1}, result.stdout
    assert (project.folder / "told.log").read_text() == "h2\nh3\n"
    assert logging.getLogger("t_library").handlers == []


SHARES = {
    "added": "[logging.getLogger('t_plugin').addHandler(one) for one in logging.root.handlers]",
    "assigned": "logging.getLogger('t_plugin').handlers = logging.root.handlers",
    "removed and added": "one = logging.root.handlers[0]; logging.root.removeHandler(one); logging.root.addHandler(one)",
}


@pytest.mark.parametrize("how", SHARES)
def test_a_handler_of_the_program_that_a_plugin_adds_stays_the_programs(project, library, how):
    said = "[t_library.say(variables['inventory_hostname']), logging.getLogger('t_plugin').error('plugin')][1]"
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=SHARES[how], said=said))
    handler = Kept()
    with program_log(handler, level=logging.WARNING):
        before = state()
        result = project.run(TASK, head="serial: 1", limit="h1,h2")
        assert result.rc == 0, result.stdout
        assert state() == before
        library.say("program")
        assert logging.getLogger("t_plugin").handlers == []
    once = ["h1", "plugin", "h2", "plugin", "program"]
    # As with stock: the record goes to the handler of the logger, and to the same one of the root logger.
    assert handler.said == (once if how == "removed and added" else [*once[:2], "plugin", *once[2:]])


def test_a_copy_of_what_holds_a_logger_has_the_same_logger(project, library):
    sets = "import copy, pickle; log = {'log': logging.getLogger('t_library.part')}; self.made = [copy.deepcopy(log), copy.copy(log['log']), pickle.loads(pickle.dumps(log))]"
    said = "str([str(one) for one in getattr(self, 'made', [])])"
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=sets, said=said))
    result = project.run(TASK, limit="h1")
    assert result.rc == 0, result.stdout


def test_the_program_logs_as_before_while_a_plugin_has_its_own_levels(project, library, capfd):
    os.mkfifo(project.folder / "gate")
    sets = 'logging.root.setLevel(10); logging.basicConfig(force=True); t_library.wait("gate")'
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=sets, said="t_library.seen()"))
    handler = Kept()
    with program_log(handler):
        run = project.start(TASK, limit="h1")
        with open(project.folder / "gate", "w"):  # returns when the plugin has set its levels
            library.say("not enabled")
            logging.getLogger("t_library").error("enabled")
            seen = library.seen()
            assert handler in logging.root.handlers
        assert messages(run.wait(120)) == {"h1": [True, 10, 10]}
    assert seen == [False, 40, 40]
    assert handler.said == ["enabled"]
    assert "enabled" not in capfd.readouterr().err, "the plugin's handler writes what its worker logs"


REMOVES = {
    "removeHandler": "[logging.root.removeHandler(one) for one in logging.root.handlers]",
    "handlers": "logging.root.handlers = []",
    "force": "logging.basicConfig(force=True, handlers=[logging.NullHandler()])",
}


@pytest.mark.parametrize("how", REMOVES)
def test_a_handler_of_the_program_that_a_plugin_removes_stays_the_programs(project, library, how):
    said = "[t_library.say(variables['inventory_hostname']), len(logging.root.handlers)][1]"
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=REMOVES[how], said=said))
    handler = Kept()
    with program_log(handler, level=logging.WARNING):
        before = state()
        result = project.run(TASK, head="serial: 1", limit="h1,h2")
        assert messages(result) == {"h1": 1 if how == "force" else 0, "h2": 1}, result.stdout
        assert state() == before
    assert handler.said == ["h2"]


def test_a_plugin_that_logs_to_the_root_logger_leaves_no_handler_there(project, library, capfd):
    """The stdlib's functions add one if there is none; the program's own basicConfig would then do nothing."""
    sets = 'logging.error("once"); logging.exception("twice"); logging.debug("never")'
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=sets, said="len(logging.getLogger().handlers)"))
    with program_log():
        result = project.run(TASK, head="serial: 1", limit="h1,h2")
        assert messages(result) == {"h1": 1, "h2": 0}, result.stdout
        assert logging.root.handlers == []
    assert capfd.readouterr().err == "ERROR:root:once\nERROR:root:twice\nNoneType: None\n"


ATTRIBUTES = {
    "disabled": 'logging.getLogger("t_library.part").disabled = True',
    "does not propagate": 'logging.getLogger("t_library").propagate = False',
    "a filter": 'logging.getLogger("t_library.part").addFilter(lambda record: False)',
    "filters assigned": 'logging.getLogger("t_library.part").filters = [lambda record: False]',
}


def attributes():
    loggers = [logging.root, logging.getLogger("t_library"), logging.getLogger("t_library.part")]
    return [(one.disabled, one.propagate, list(one.filters), one.level, list(one.handlers)) for one in loggers]


@pytest.mark.parametrize("what", ATTRIBUTES)
def test_what_keeps_the_records_of_a_plugin_from_the_log_does_not_keep_those_of_others(project, library, what):
    said = "t_library.say(variables['inventory_hostname'])"
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=ATTRIBUTES[what], said=said))
    handler = Kept()
    with program_log(handler, level=logging.WARNING):
        before = attributes()
        assert project.run(TASK * 2, head="serial: 1", limit="h1,h2").rc == 0
        assert attributes() == before
        library.say("program")
    assert handler.said == ["h2", "h2", "program"]


RESTORES = {
    "enabled": "logger.disabled = False",
    "propagates": "above.propagate = True",
    "without the filter": "logger.removeFilter(logger.filters[0])",
}


@pytest.mark.parametrize("what", RESTORES)
def test_a_plugin_can_let_through_what_the_program_keeps_from_its_log(project, library, what):
    loggers = 'logger, above = logging.getLogger("t_library.part"), logging.getLogger("t_library"); '
    said = "t_library.say(variables['inventory_hostname'])"
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=loggers + RESTORES[what], said=said))
    handler, logger, above = Kept(), logging.getLogger("t_library.part"), logging.getLogger("t_library")

    def refuses(_record):
        return False

    with program_log(handler, level=logging.WARNING):
        if what == "enabled":
            logger.disabled = True
        elif what == "propagates":
            above.propagate = False
        else:
            logger.addFilter(refuses)
        try:
            before = attributes()
            assert project.run(TASK, head="serial: 1", limit="h1,h2").rc == 0
            assert attributes() == before
        finally:
            logger.disabled, above.propagate = False, True
            logger.removeFilter(refuses)
    assert handler.said == ["h1"]


def test_filters_of_a_plugin_are_seen_by_itself_as_with_the_stdlib(project, library):
    sets = """
            logger, one = logging.getLogger("t_library.part"), logging.Filter("t_library")
            logger.addFilter(one)
            logger.addFilter(one)
            self.counts = [len(logger.filters), logger.filters[0] is one, logger.propagate, logger.disabled]
            logger.removeFilter(one)
            logger.propagate = False
            self.counts += [len(logger.filters), logger.propagate]
""".strip()
    said = "getattr(self, 'counts', [])"
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=sets, said=said))
    result = project.run(TASK, limit="h1")
    assert messages(result) == {"h1": [1, True, True, False, 0, False]}, result.stdout


CONFIGURES = {
    "import": "import logging.config; logging.config.dictConfig(config)",
    "from": "from logging.config import dictConfig; dictConfig(config)",
    "a package": "from logging import config as configures; configures.dictConfig(config)",
}
CONFIG = """
            config = {
                "version": 1,
                "formatters": {"plain": {"format": "%(name)s says %(message)s"}},
                "handlers": {"file": {"class": "logging.FileHandler", "filename": "told.log", "formatter": "plain"}},
                "root": {"handlers": ["file"], "level": "DEBUG"},
            }
            """


@pytest.mark.parametrize("how", CONFIGURES)
def test_a_configuration_that_a_plugin_sets_is_that_of_its_worker(project, library, how):
    """It replaces the handlers of the root logger and disables the loggers that it does not name."""
    name = f"t_new_{how}"  # a logger that is not there yet is not disabled
    sets = f"{CONFIG.strip()}\n            {CONFIGURES[how]}\n            logging.getLogger('{name}').debug('hello')"
    said = "t_library.say(variables['inventory_hostname'])"
    project.write("lookup_plugins/logs.py", PLUGIN.format(sets=sets, said=said))
    handler = Kept()
    with program_log(handler, level=logging.WARNING):
        before = attributes()
        result = project.run(TASK, head="serial: 1", limit="h1,h2")
        assert result.rc == 0, result.stdout
        assert attributes() == before
        library.say("program")
        logging.getLogger(name).warning("program")
    assert handler.said == ["h2", "program", "program"]
    assert (project.folder / "told.log").read_text() == f"{name} says hello\n"
