# SPDX-License-Identifier: GPL-3.0-or-later
"""
Every place where ansible-core is touched.

A seam has a site, a reason, a stand-in and, in fingerprints.json, the look of what it replaces in each minor that we know.
`_stitch` puts them in and takes them out again; where the minors differ, the seam says which it is for.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from forkless import modules
from forkless.engines import (
    _caches,
    _isolation,
    _plugins,
    _questions,
    _runtime,
    _shortcuts,
    _syntax,
    _views,
    _worker,
)
from forkless.engines._stitch import KNOWN, Seam

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SEAMS"]

SINCE_2_19 = KNOWN[1:]
SINCE_2_21 = KNOWN[3:]


def view(of: Any) -> Callable[[Any, str], Any]:
    return lambda _original, _site: of


def made_by(make: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    return lambda original, _site: make(original)


_LOADER = "ansible.plugins.loader:PluginLoader"
_JINJA = "ansible.plugins.loader:Jinja2Loader"
_DISPLAY = "ansible.utils.display:Display"
_VARS = "ansible.vars.manager:VariableManager"
_INVENTORY = "ansible.inventory.manager:InventoryManager"
_IMPLICIT = "the run's own: another run's, or the one before, would be obeyed"
_SNAPSHOT = "a worker that was a process had a snapshot; a thread may read while the strategy writes"

SEAMS: tuple[Seam, ...] = (
    # -- the worker
    Seam("ansible.plugins.strategy:WorkerProcess", "a thread in place of the process", made_by(_worker.make_worker)),
    Seam("ansible.executor.process.worker:sys", "a worker's streams are its own", view(_views.sys_view)),
    Seam("ansible.executor.process.worker:os", "os._exit would end the program that hosts us", view(_views.os_view)),
    Seam(
        "ansible.executor.process.worker:signal",
        "signals are the program's, and only its main thread may set them",
        view(_views.signal_view),
        SINCE_2_19,
    ),
    Seam(
        "ansible.executor.task_executor:os",
        "getppid() names the play, which is this process now",
        view(_views.os_view),
    ),
    Seam("ansible.executor.task_executor:time", "retries and polls must be interruptible", view(_views.time_view)),
    Seam(
        "ansible.executor.task_executor:subprocess",
        "the persistent connection's child belongs to the worker",
        view(_views.subprocess_view),
    ),
    Seam(
        "ansible.executor.task_executor:signal",
        "SIGALRM is one for the whole process; each worker has its alarm",
        view(_views.signal_view),
        KNOWN[:1],
    ),
    Seam(
        "ansible._internal._errors._alarm_timeout:signal",
        "SIGALRM is one for the whole process; each worker has its alarm",
        view(_views.signal_view),
        SINCE_2_19,
    ),
    Seam(
        "ansible.plugins.action:ActionBase._configure_module",
        "an exception in the middle of building a module leaves a broken archive behind",
        _worker.uninterrupted,
    ),
    # -- the queue manager and the strategy
    Seam(
        "ansible.executor.task_queue_manager:FinalQueue",
        "no pipe and no semaphore are needed between threads",
        made_by(_worker.make_queue),
    ),
    Seam(
        "ansible.executor.task_queue_manager:signal",
        "signals are the program's",
        view(_views.signal_view),
        SINCE_2_19,
    ),
    Seam(
        "ansible.executor.task_queue_manager:os",
        "0, 1 and 2 of the program must stay inheritable",
        view(_views.os_view),
    ),
    Seam("ansible.executor.task_queue_manager:sys", "flushes the run's output", view(_views.sys_view)),
    Seam("ansible.executor.task_queue_manager:time", "woken, not polling", view(_views.strategy_time_view)),
    Seam("ansible.executor.task_queue_manager:TaskQueueManager.load_callbacks", "events", _runtime.load_callbacks),
    Seam("ansible.executor.task_queue_manager:TaskQueueManager.run", "stop between plays", _runtime.checks_stop),
    Seam(
        "ansible.executor.task_queue_manager:TaskQueueManager.has_dead_workers",
        "workers that were told to stop are no accident",
        _runtime.checks_stop,
    ),
    Seam(
        "ansible.executor.task_queue_manager:TaskQueueManager.cleanup",
        "leaves a descriptor open until the process ends",
        _runtime.cleanup_play,
    ),
    Seam(
        "ansible.executor.task_queue_manager:TaskQueueManager._cleanup_processes",
        "a worker that does not end is abandoned and named",
        _runtime.cleanup_workers,
    ),
    Seam("ansible.plugins.strategy:time", "woken, not polling", view(_views.strategy_time_view)),
    Seam("ansible.plugins.strategy:threading", "the results thread works for its run", view(_views.threading_view)),
    Seam("ansible.plugins.strategy:sys", "the debugger's exit and streams", view(_views.sys_view)),
    Seam("ansible.plugins.strategy:results_thread_main", "a result wakes the strategy", _runtime.results_thread),
    Seam(
        "ansible.plugins.strategy:StrategyBase._process_pending_results",
        "stop between results",
        _runtime.checks_stop,
    ),
    Seam("ansible.plugins.strategy:StrategyBase._queue_task", "no new task once asked to stop", _runtime.checks_stop),
    Seam("ansible.plugins.strategy.free:time", "woken, not polling", view(_views.strategy_time_view)),
    Seam(
        "ansible._internal._rpc_host:LocalManager.shared_instance",
        "threads need no server to call back to",
        _isolation.no_rpc_server,
        SINCE_2_21,
    ),
    Seam(
        "ansible._internal._rpc_host:AutoRegisterRPC.get_client",
        "threads call directly",
        _isolation.rpc_direct,
        SINCE_2_21,
    ),
    Seam(
        "ansible._internal._rpc_host:AsyncRPCOperation",
        "a worker's request wakes the strategy",
        _runtime.rpc_operation,
        SINCE_2_21,
    ),
    Seam(
        "ansible._internal._plugins._strategy:StrategyContext.activate",
        _IMPLICIT,
        _isolation.strategy_activate,
        SINCE_2_21,
    ),
    Seam(
        "ansible._internal._plugins._strategy:StrategyContext.current",
        _IMPLICIT,
        _isolation.strategy_current,
        SINCE_2_21,
    ),
    # -- display
    Seam("ansible.utils.display:sys", "the run's output", view(_views.sys_view)),
    Seam("ansible.utils.display:subprocess", "cowsay is a child of the run", view(_views.subprocess_view)),
    Seam(f"{_DISPLAY}._final_q", "set in a worker and nowhere else", _isolation.final_queue, optional=True),
    Seam(f"{_DISPLAY}.set_queue", "refuses to be called in the parent process", _isolation.set_queue),
    Seam(f"{_DISPLAY}.prompt_until", "the answer goes to who asked", _questions.prompt_until),
    Seam(f"{_DISPLAY}.prompt", "the run's answers; a program's terminal is not the run's", _questions.prompt),
    Seam(f"{_DISPLAY}.do_var_prompt", "the run's answers, where there is no terminal", _questions.var_prompt),
    Seam("ansible.cli:CLI._get_secret", "the run's answers; a program's terminal is not the run's", _questions.prompt),
    Seam(
        "ansible.executor.task_result:TaskResult.clean_copy",
        "what was typed with echo: false is not reported",
        _questions.without_hidden_input,
        ("2.18",),
    ),
    Seam(
        "ansible.executor.task_result:_RawTaskResult.as_callback_task_result",
        "what was typed with echo: false is not reported",
        _questions.without_hidden_input,
        ("2.19", "2.20"),
    ),
    Seam(
        "ansible._internal._task:UnifiedTaskResult.as_result_dict",
        "what was typed with echo: false is not reported",
        _questions.without_hidden_input,
        SINCE_2_21,
    ),
    Seam(
        "ansible.plugins.strategy:Debugger.cmdloop",
        "a view of the run steps aside while someone types",
        _runtime.asks,
    ),
    Seam(f"{_DISPLAY}.verbosity", _IMPLICIT, _isolation.per_run(lambda _: 0), optional=True),
    Seam(
        f"{_DISPLAY}._warns",
        "said once in each run",
        _isolation.per_run(_isolation.fresh_like_outside("_warns")),
        optional=True,
    ),
    Seam(
        f"{_DISPLAY}._deprecations",
        "said once in each run",
        _isolation.per_run(_isolation.fresh_like_outside("_deprecations")),
        optional=True,
    ),
    Seam(
        f"{_DISPLAY}._errors",
        "said once in each run",
        _isolation.per_run(_isolation.fresh_like_outside("_errors")),
        optional=True,
    ),
    Seam(
        "ansible.utils.display:_report_config_warnings",
        "empties a list that every worker looks at",
        _plugins.locked("loader_lock"),
        SINCE_2_21,
    ),
    # -- the command line and what is remembered of it
    Seam("ansible.context:CLIARGS", _IMPLICIT, _isolation.cli_args),
    Seam("ansible.context:_init_global_context", "a singleton: keeps the first run's", _isolation.init_cli_args),
    Seam("ansible.cli:sys", "the run's output", view(_views.sys_view)),
    Seam("ansible.cli:subprocess", "children of the run", view(_views.subprocess_view)),
    Seam(
        "ansible.cli.arguments.option_helpers:ArgumentParser._print_message",
        "help and errors go to the run's output",
        _isolation.print_message,
    ),
    Seam("ansible.cli:CLI.ask_passwords", "a run that was given its passwords", _isolation.ask_passwords),
    Seam("ansible.cli:CLI.setup_vault_secrets", "a run that was given its vault password", _isolation.vault_secrets),
    Seam("ansible.vars.manager:load_extra_vars", _IMPLICIT, _isolation.not_cached("extra_vars")),
    Seam("ansible.plugins.inventory:load_extra_vars", _IMPLICIT, _isolation.not_cached("extra_vars")),
    Seam("ansible.vars.manager:load_options_vars", _IMPLICIT, _isolation.not_cached("options_vars")),
    Seam(
        "ansible.parsing.vault:VaultSecretsContext.initialize",
        "may be called once in a process",
        _isolation.vault_initialize,
        SINCE_2_19,
    ),
    Seam("ansible.parsing.vault:VaultSecretsContext.current", _IMPLICIT, _isolation.vault_current, SINCE_2_19),
    Seam("ansible.parsing.vault:subprocess", "password scripts are children of the run", view(_views.subprocess_view)),
    Seam("ansible.config.manager:os", "ANSIBLE_* of the run", view(_views.os_view)),
    # -- plugins
    *(
        Seam(
            f"{_LOADER}.{name}",
            "grows with every run and is searched by name",
            _isolation.per_run(fresh),
            optional=True,
        )
        for name, fresh in (
            ("_extra_dirs", lambda _: []),
            ("_paths", lambda _: None),
            ("_plugin_path_cache", lambda _: collections.defaultdict(dict)),
            ("_searched_paths", lambda _: set()),
            ("_plugin_instance_cache", lambda loader: {} if loader.subdir == "vars_plugins" else None),
            ("_cached_non_collection_wrappers", lambda _: {}),
        )
    ),
    Seam(
        f"{_LOADER}._module_cache",
        "module-level state of a plugin was the worker's own",
        _isolation.per_run(lambda _: {}, by_worker=True),
        optional=True,
    ),
    Seam(f"{_LOADER}._load_module_source", "named by file name alone, kept for ever", _plugins.load_module_source),
    Seam("ansible.plugins.loader:warnings", "filters are the program's", _plugins.quiet_warnings),
    Seam(
        "ansible.plugins.loader:_configure_collection_loader",
        "there is one finder in a process",
        _plugins.collection_loader,
    ),
    *(
        Seam(f"{_LOADER}.{name}", "has no lock of its own", _plugins.locked("loader_lock"))
        for name in ("get_with_context", "find_plugin_with_context", "add_directory", "_clear_caches", "has_plugin")
    ),
    *(
        Seam(f"{_JINJA}.{name}", "has no lock of its own", _plugins.locked("loader_lock"))
        for name in ("get_with_context", "_ensure_non_collection_wrappers", "get_contained_plugins", "_clear_caches")
    ),
    Seam(f"{_JINJA}.get_with_context", "module-level state of a plugin was the worker's own", _plugins.private_filter),
    Seam(f"{_LOADER}.all", "has no lock of its own", _plugins.locked_generator("loader_lock")),
    Seam(
        "ansible.plugins.connection.ssh:Connection._init_shm",
        "the program that ssh asks for a password lies beside no other",
        _plugins.asker,
        KNOWN[1:],
    ),
    Seam(f"{_JINJA}.all", "has no lock of its own", _plugins.locked_generator("loader_lock")),
    # -- syntax trees
    Seam(
        "ansible.executor.module_common:compile",
        "up to Python 3.12 two threads must not make a syntax tree at once",
        view(_syntax.compile_one_at_a_time),
        optional=True,
    ),
    *(
        Seam(
            f"{module}:ast",
            "up to Python 3.12 two threads must not make a syntax tree at once",
            view(_syntax.ast_view),
            minors,
        )
        for module, minors in (
            ("ansible.template", KNOWN[:1]),
            ("ansible.template.native_helpers", KNOWN[:1]),
            ("ansible._internal._templating._jinja_bits", SINCE_2_19),
            ("ansible.plugins.inventory.ini", KNOWN),
        )
    ),
    *(
        Seam(
            f"{module}:literal_eval",
            "up to Python 3.12 two threads must not make a syntax tree at once",
            view(_syntax.literal_eval),
        )
        for module in ("ansible.module_utils.common.validation", "jinja2.lexer")
    ),
    # -- variables, inventory, files
    Seam(f"{_VARS}.get_vars", _SNAPSHOT, _worker.snapshot_of_vars),
    *(
        Seam(f"{_VARS}.{name}", _SNAPSHOT, _plugins.locked("vars_lock"))
        for name in (
            "clear_facts",
            "set_host_facts",
            "set_nonpersistent_facts",
            "set_host_variable",
        )
    ),
    *(
        Seam(f"{_INVENTORY}.{name}", _SNAPSHOT, _plugins.locked("vars_lock"))
        for name in (
            "get_hosts",
            "get_host",
            "get_groups_dict",
            "reconcile_inventory",
            "refresh_inventory",
            "add_host",
            "add_group",
        )
    ),
    Seam(
        "ansible.parsing.dataloader:DataLoader.path_dwim_relative",
        "sets the shared base folder aside while it looks",
        _isolation.path_dwim_relative,
    ),
    Seam("ansible.constants:__class__", "one folder for local files in each run", _isolation.constants_class),
    *(
        Seam(
            f"ansible.plugins.vars.host_group_vars:{name}",
            "never looks twice",
            _isolation.per_run_container(kind),
            minors,
        )
        for name, kind, minors in (
            ("CANONICAL_PATHS", dict, KNOWN),
            ("FOUND", dict, KNOWN),
            ("NAK", set, KNOWN),
            ("PATH_CACHE", dict, KNOWN[:1]),
        )
    ),
    *(
        Seam(f"ansible.{where}:get_unique_id", "two threads may get one number", _isolation.unique_id)
        for where in ("utils.vars", "playbook.base", "inventory.host")
    ),
    Seam(
        "ansible.utils.collection_loader._collection_config:_AnsibleCollectionConfig._default_collection",
        _IMPLICIT,
        _isolation.per_run(lambda _: None),
        optional=True,
    ),
    Seam(
        "ansible.plugins.connection:ConnectionBase.connection_lock",
        "lockf does not part threads",
        _isolation.connection_lock,
    ),
    Seam(
        "ansible.plugins.connection:ConnectionBase.connection_unlock",
        "lockf does not part threads",
        _isolation.connection_unlock,
    ),
    # -- what a run finds out once; after the locks above, so that a hit waits for nobody
    *(Seam(*touch) for touch in _caches.touches(KNOWN)),
    # -- what comes to nothing for most tasks
    *(Seam(*touch) for touch in _shortcuts.touches(KNOWN)),
    # -- modules in this process, where nothing can be started or when that was asked for
    *(Seam(*touch) for touch in modules.STAND_INS),
)
