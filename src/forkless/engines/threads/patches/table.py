# SPDX-License-Identifier: GPL-3.0-or-later
"""
Every name in ansible-core that forkless replaces, and most of those in the stdlib.

A seam has a site, a reason, a stand-in and, in fingerprints.json, the fingerprint of its site in each known minor. `patching.seams`
installs and undoes them; a seam that only some minors need names them.
"""

from __future__ import annotations

import collections
import importlib.util

from forkless import modules
from forkless.engines.threads.network import patches as network
from forkless.engines.threads.patches import (
    collection_modules,
    command_line,
    csv_dialects,
    file_locks,
    plugin_loader,
    plugin_logging,
    plugin_threads,
    process_defaults,
    process_wide,
    prompts,
    run_state,
    secret_masker,
    slices,
    stdlib_views,
    strategy,
    syntax_trees,
    url_openers,
)
from forkless.engines.threads.speed import (
    caches,
    facts,
    host_variables,
    inventory,
    lazy_values,
    native_results,
    plugin_folders,
    plugin_options,
    routing,
    shortcuts,
    tags,
    templates,
    unused_plugins,
)
from forkless.engines.threads.workers import loop_items, result_queue, worker, worker_process
from forkless.patching.seam import for_speed
from forkless.patching.seams import KNOWN, Seam, always, made_by

__all__ = ["SEAMS"]

SINCE_2_19 = KNOWN[1:]
SINCE_2_21 = KNOWN[3:]
SINCE_2_22 = KNOWN[4:]


_LOADER = "ansible.plugins.loader:PluginLoader"
_JINJA = "ansible.plugins.loader:Jinja2Loader"
_COLLECTION = "ansible.utils.collection_loader._collection_finder:_AnsibleCollectionLoader"
_DISPLAY = "ansible.utils.display:Display"
_VARS = "ansible.vars.manager:VariableManager"
_INVENTORY = "ansible.inventory.manager:InventoryManager"
_IMPLICIT = "each run has its own: otherwise another run's value would be used"
_SNAPSHOT = "a forked worker had a snapshot of the variables; a thread may read them while the strategy writes"

SEAMS: tuple[Seam, ...] = (
    # -- the worker
    Seam(
        "ansible.plugins.strategy:WorkerProcess",
        "a thread in place of the process",
        made_by(worker_process.make_worker),
    ),
    for_speed(
        "ansible.executor.task_executor:TaskExecutor._run_loop",
        "items in parallel, where a task asks for it",
        loop_items.run_loop,
    ),
    for_speed(
        "ansible.executor.task_executor:TaskExecutor._get_loop_items",
        "a loop's lookups are evaluated once",
        loop_items.loop_items_of,
    ),
    Seam("ansible.executor.process.worker:sys", "each worker has its own streams", always(stdlib_views.sys_view)),
    Seam(
        "ansible.executor.process.worker:os",
        "os._exit would end the program that hosts us",
        always(stdlib_views.os_view),
    ),
    Seam(
        "ansible.executor.process.worker:signal",
        "signal handlers belong to the program, and only its main thread may set them",
        always(stdlib_views.signal_view),
        SINCE_2_19,
    ),
    Seam(
        "ansible.executor.task_executor:os",
        "getppid() must return the play's process id, which is this process's own",
        always(stdlib_views.os_view),
    ),
    Seam(
        "ansible.executor.task_executor:time", "retries and polls must be interruptible", always(stdlib_views.time_view)
    ),
    Seam(
        "ansible.executor.task_executor:subprocess",
        "the persistent connection's child belongs to the worker",
        always(stdlib_views.subprocess_view),
    ),
    Seam(
        "ansible.executor.task_executor:signal",
        "SIGALRM is one for the whole process; each worker has its alarm",
        always(stdlib_views.signal_view),
        KNOWN[:1],
    ),
    Seam(
        "ansible._internal._errors._alarm_timeout:signal",
        "SIGALRM is one for the whole process; each worker has its alarm",
        always(stdlib_views.signal_view),
        SINCE_2_19,
    ),
    Seam(
        "ansible.plugins.action:ActionBase._configure_module",
        "an exception in the middle of building a module leaves a broken archive behind",
        worker.uninterrupted,
    ),
    Seam(
        "ansible.plugins.action:os", "a module that runs here has the run's environment", always(stdlib_views.os_view)
    ),
    # -- the queue manager and the strategy
    Seam(
        "ansible.executor.task_queue_manager:FinalQueue",
        "no pipe and no semaphore are needed between threads",
        made_by(result_queue.make_queue),
    ),
    Seam(
        "ansible.executor.task_queue_manager:signal",
        "signals are the program's",
        always(stdlib_views.signal_view),
        SINCE_2_19,
    ),
    Seam(
        "ansible.executor.task_queue_manager:os",
        "the program's descriptors 0, 1 and 2 must stay inheritable",
        always(stdlib_views.os_view),
    ),
    Seam("ansible.executor.task_queue_manager:sys", "flushes the run's output", always(stdlib_views.sys_view)),
    Seam("ansible.executor.task_queue_manager:time", "woken, not polling", always(stdlib_views.strategy_time_view)),
    Seam("ansible.executor.task_queue_manager:TaskQueueManager.load_callbacks", "events", strategy.load_callbacks),
    Seam("ansible.executor.task_queue_manager:TaskQueueManager.run", "stop between plays", strategy.run_play),
    Seam(
        "ansible.executor.task_queue_manager:TaskQueueManager.has_dead_workers",
        "workers that were interrupted must not be reported as dead",
        strategy.checks_stop,
    ),
    Seam(
        "ansible.executor.task_queue_manager:TaskQueueManager.cleanup",
        "leaves a descriptor open until the process ends",
        strategy.cleanup_play,
    ),
    Seam(
        "ansible.executor.task_queue_manager:TaskQueueManager._cleanup_processes",
        "a worker that does not end is abandoned and named",
        strategy.cleanup_workers,
    ),
    Seam("ansible.plugins.strategy:time", "woken, not polling", always(stdlib_views.strategy_time_view)),
    Seam("ansible.plugins.strategy:sys", "the debugger must not exit the program", always(stdlib_views.sys_view)),
    Seam("ansible.plugins.strategy:results_thread_main", "a result wakes the strategy", strategy.results_thread),
    Seam(
        "ansible.plugins.strategy:StrategyBase._process_pending_results",
        "stop between results",
        strategy.checks_stop,
    ),
    Seam("ansible.plugins.strategy:StrategyBase._queue_task", "no new task after a stop request", strategy.queues_task),
    Seam(
        "ansible.plugins.strategy:StrategyBase._execute_meta",
        "no meta task for all hosts in a slice",
        slices.refuses_meta,
    ),
    Seam("ansible.plugins.strategy.free:time", "woken, not polling", always(stdlib_views.strategy_time_view)),
    Seam(
        "ansible._internal._rpc_host:LocalManager.shared_instance",
        "threads need no server to call back to",
        run_state.no_rpc_server,
        SINCE_2_21,
    ),
    Seam(
        "ansible._internal._rpc_host:AutoRegisterRPC.get_client",
        "threads call directly",
        run_state.rpc_direct,
        SINCE_2_21,
    ),
    Seam(
        "ansible._internal._rpc_host:AsyncRPCOperation",
        "a worker's request wakes the strategy",
        strategy.rpc_operation,
        SINCE_2_21,
    ),
    Seam(
        "ansible._internal._plugins._strategy:StrategyContext.activate",
        _IMPLICIT,
        run_state.strategy_activate,
        SINCE_2_21,
    ),
    Seam(
        "ansible._internal._plugins._strategy:StrategyContext.current",
        _IMPLICIT,
        run_state.strategy_current,
        SINCE_2_21,
    ),
    # -- display
    Seam("ansible.utils.display:sys", "the run's output", always(stdlib_views.sys_view)),
    Seam("ansible.utils.display:subprocess", "cowsay is a child of the run", always(stdlib_views.subprocess_view)),
    Seam(f"{_DISPLAY}._final_q", "set on a worker's thread only", run_state.final_queue, optional=True),
    Seam(f"{_DISPLAY}.set_queue", "upstream raises an error in a process that was not forked", run_state.set_queue),
    Seam(f"{_DISPLAY}.prompt_until", "the answer goes to who asked", prompts.prompt_until),
    Seam(f"{_DISPLAY}.prompt", "the run answers, not the program's terminal", prompts.prompt),
    Seam(f"{_DISPLAY}.do_var_prompt", "the run answers if there is no terminal", prompts.var_prompt),
    Seam("ansible.cli:CLI._get_secret", "the run answers, not the program's terminal", prompts.prompt),
    Seam(
        "ansible.executor.task_result:TaskResult.clean_copy",
        "what was typed with echo: false is not reported",
        prompts.without_hidden_input,
        ("2.18",),
    ),
    Seam(
        "ansible.executor.task_result:_RawTaskResult.as_callback_task_result",
        "what was typed with echo: false is not reported",
        prompts.without_hidden_input,
        ("2.19", "2.20"),
    ),
    Seam(
        "ansible._internal._task:UnifiedTaskResult.as_result_dict",
        "what was typed with echo: false is not reported",  # since 2.22 Ansible masks it itself
        prompts.without_hidden_input,
        ("2.21",),
    ),
    Seam(
        "ansible.plugins.strategy:Debugger.cmdloop",
        "the live view pauses while a person types",
        strategy.asks,
    ),
    Seam(f"{_DISPLAY}.verbosity", _IMPLICIT, run_state.verbosity, optional=True),
    Seam(
        f"{_DISPLAY}._warns",
        "said once in each run",
        run_state.per_run(run_state.copy_of_outside("_warns"), by_worker=True),
        optional=True,
    ),
    Seam(
        f"{_DISPLAY}._deprecations",
        "said once in each run",
        run_state.per_run(run_state.copy_of_outside("_deprecations"), by_worker=True),
        optional=True,
    ),
    Seam(
        f"{_DISPLAY}._errors",
        "said once in each run",
        run_state.per_run(run_state.copy_of_outside("_errors"), by_worker=True),
        optional=True,
    ),
    Seam(
        "ansible.utils.display:_report_config_warnings",
        "upstream empties a list that all workers share",
        plugin_loader.config_warnings,
        SINCE_2_21,
    ),
    # -- the command line, and caches of its values
    Seam("ansible.context:CLIARGS", _IMPLICIT, command_line.cli_args),
    Seam("ansible.context:_init_global_context", "a singleton keeps the first run's", command_line.init_cli_args),
    Seam("ansible.cli:sys", "the run's output", always(stdlib_views.sys_view)),
    Seam("ansible.cli:subprocess", "children of the run", always(stdlib_views.subprocess_view)),
    Seam(
        "ansible.cli.arguments.option_helpers:ArgumentParser._print_message",
        "help and errors go to the run's output",
        command_line.print_message,
    ),
    Seam(
        "ansible.cli.arguments.option_helpers:print",
        "--version goes to the run's output",
        always(stdlib_views.print_to_run),
        optional=True,
    ),
    Seam(
        "ansible.cli:CLI.ask_passwords", "the run's passwords are used instead of a prompt", command_line.ask_passwords
    ),
    Seam("ansible.cli:CLI.setup_vault_secrets", "the run's vault password is added", command_line.vault_secrets),
    Seam("ansible.vars.manager:load_extra_vars", _IMPLICIT, command_line.not_cached("extra_vars")),
    Seam("ansible.plugins.inventory:load_extra_vars", _IMPLICIT, command_line.not_cached("extra_vars")),
    Seam("ansible.vars.manager:load_options_vars", _IMPLICIT, command_line.not_cached("options_vars")),
    Seam(
        "ansible.parsing.vault:VaultSecretsContext.initialize",
        "upstream may be called only once in a process",
        command_line.vault_initialize,
        SINCE_2_19,
    ),
    Seam("ansible.parsing.vault:VaultSecretsContext.current", _IMPLICIT, command_line.vault_current, SINCE_2_19),
    Seam(
        "ansible.parsing.vault:subprocess",
        "password scripts must be children of the run",
        always(stdlib_views.subprocess_view),
    ),
    *(
        Seam(
            f"ansible.config.manager:ConfigManager.{name}",
            "what a worker's settings give rise to is told of by that worker",
            run_state.copy_of_worker,
            optional=name == "_errors",  # an instance's
        )
        for name in ("DEPRECATED", "WARNINGS", "_errors")
    ),
    Seam("ansible.config.manager:os", "ANSIBLE_* of the run", always(stdlib_views.os_view)),
    # -- secrets
    *(
        Seam(
            f"ansible.module_utils._internal._secrets:SecretMasker.{name}",
            "a secret of one run would be masked in all others; a stop would leave the lock taken",
            run_state.per_run(fresh),
            SINCE_2_22,
            optional=True,
        )
        for name, fresh in secret_masker.PARTS
    ),
    Seam(
        "ansible._internal._secret_input:subprocess",
        "a program that prints secrets must be a child of the run",
        always(stdlib_views.subprocess_view),
        SINCE_2_22,
    ),
    # -- plugins
    *(
        Seam(
            f"{_LOADER}.{name}",
            "grows with every run and is searched by name",
            run_state.per_run(fresh),
            optional=True,
        )
        for name, fresh in (
            ("_extra_dirs", lambda _: []),
            ("_paths", lambda _: None),
            ("_plugin_path_cache", lambda _: collections.defaultdict(dict)),
            ("_searched_paths", lambda _: set()),
            ("_plugin_instance_cache", lambda loader: {} if loader.subdir == "vars_plugins" else None),
        )
    ),
    Seam(
        f"{_LOADER}._cached_non_collection_wrappers",
        "grows with every run and is searched by name",
        plugin_loader.jinja_table,
        optional=True,
    ),
    Seam(
        f"{_LOADER}._module_cache",
        "module-level state of a plugin was the worker's own",
        run_state.per_run(lambda _: {}, by_worker=True),
        optional=True,
    ),
    Seam(f"{_LOADER}._load_module_source", "modules are kept by file name alone", plugin_loader.load_module_source),
    Seam("ansible.plugins.loader:warnings", "filters are the program's", plugin_loader.quiet_warnings),
    Seam(
        "ansible.plugins.loader:_configure_collection_loader",
        "there is one collection finder in a process",
        plugin_loader.collection_loader,
    ),
    *(
        Seam(f"{_LOADER}.{name}", "has no lock of its own", plugin_loader.locked("loader_lock"))
        for name in ("find_plugin_with_context", "add_directory", "_clear_caches", "has_plugin")
    ),
    Seam(f"{_JINJA}._clear_caches", "has no lock of its own", plugin_loader.locked("loader_lock")),
    Seam(f"{_JINJA}._ensure_non_collection_wrappers", "a partly filled table counts as full", plugin_loader.fill_table),
    Seam(
        f"{_JINJA}.get_with_context",
        "module-level state of a plugin was the worker's own",
        plugin_loader.private_filter,
    ),
    Seam(
        "ansible.plugins.connection.ssh:Connection._init_shm",
        "the program that ssh runs to get a password need not be beside the running program",
        plugin_loader.asker,
        KNOWN[1:],
    ),
    Seam(
        "ansible.plugins.connection.ssh:Connection._sshpass_available",
        "another run may have another PATH",
        run_state.test_for_each_run("SSHPASS_AVAILABLE"),
        KNOWN[:2],
    ),
    Seam(
        "ansible.utils.ssh_functions:_HAS_CONTROLPERSIST",
        "another run may have another PATH, and another ssh",
        run_state.per_run_container(dict),
        KNOWN[:3],
    ),
    Seam(
        "ansible.parsing.ajson:AnsibleJSONDecoder._vaults",
        "one run's passwords would be tried for another's files",
        run_state.per_run_container(dict),
        KNOWN[:1],
    ),
    # -- collections
    Seam(
        f"{_COLLECTION}.create_module",
        "module-level state of a plugin was the worker's own",
        collection_modules.create_module,
    ),
    Seam(f"{_COLLECTION}.exec_module", "a plugin may block while Python holds a lock", collection_modules.exec_module),
    Seam(
        "ansible.plugins.action:ActionBase.get_connection_option",
        "a module that runs inside the worker could return another host's result",
        run_state.no_direct_execution,
        KNOWN[:1],
    ),
    Seam(
        "ansible.module_utils.urls:urllib",
        "one request would be sent with the credentials, cookies and certificates of another",
        url_openers.urllib_of_each_thread,
        late=True,
    ),
    # -- defaults of the stdlib
    Seam(
        "socket:setdefaulttimeout",
        "a plugin's default timeout is not that of the program",
        process_defaults.set_default_timeout,
    ),
    Seam("socket:getdefaulttimeout", "as above", process_defaults.get_default_timeout),
    Seam("socket:socket.__init__", "as above", process_defaults.new_socket),
    Seam(
        "urllib.request:install_opener",
        "a plugin's opener, with its credentials, is not that of the program",
        process_defaults.install_opener,
        late=True,
    ),
    Seam("urllib.request:urlopen", "as above", process_defaults.open_url, late=True),
    *(
        Seam(
            "ssl:_create_default_https_context",
            "a plugin that verifies no certificates does so for its own requests",
            process_defaults.tls_context,
            late=True,
        )
        for _ in range(importlib.util.find_spec("_ssl") is not None)  # a Python may be built without OpenSSL
    ),
    Seam("argparse:_sys", "a plugin's arguments in sys.argv are not those of the program", process_wide.sys_of_parser),
    Seam("optparse:sys", "as above", process_wide.sys_of_parser, late=True),
    Seam(
        "csv:register_dialect",
        "a host's text would be read by the delimiter that a plugin registered for another",
        csv_dialects.register_dialect,
        late=True,
    ),
    Seam("csv:unregister_dialect", "as above", csv_dialects.unregister_dialect, late=True),
    Seam("csv:get_dialect", "as above", csv_dialects.get_dialect, late=True),
    Seam("csv:list_dialects", "as above", csv_dialects.list_dialects, late=True),
    Seam("csv:reader", "as above", csv_dialects.read_or_write, late=True),
    Seam("csv:writer", "as above", csv_dialects.read_or_write, late=True),
    Seam(
        "logging:Logger.getEffectiveLevel",
        "a level that a plugin sets is not that of the program",
        plugin_logging.effective_level,
    ),
    Seam("logging:Logger.isEnabledFor", "as above", plugin_logging.is_enabled_for),
    Seam("logging:Logger.handle", "nor are a logger's filters", plugin_logging.handle),
    Seam("logging:Logger.callHandlers", "nor is whether its records propagate", plugin_logging.call_handlers),
    # -- network devices
    Seam(
        "ansible.executor.task_executor:start_connection",
        "a device's connection is a thread of the run, not a process",
        network.start_connection,
    ),
    Seam(
        "ansible.module_utils.connection:Connection.send",
        "a device's connection is a thread of the run, not a process",
        network.connection_send,
    ),
    Seam(
        "ansible.module_utils.connection:os",
        "a connection that is a thread has no socket file",
        network.connection_os,
    ),
    Seam(
        "ansible.plugins.action:ActionBase._configure_module",
        "a module that is a process needs the socket of its device",
        network.configure_module,
    ),
    # -- syntax trees
    Seam(
        "ansible.executor.module_common:compile",
        "up to Python 3.12 two threads must not make a syntax tree at once",
        always(syntax_trees.compile_one_at_a_time),
        optional=True,
    ),
    *(
        Seam(
            f"{module}:ast",
            "up to Python 3.12 two threads must not make a syntax tree at once",
            always(syntax_trees.ast_view),
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
            always(syntax_trees.literal_eval),
        )
        for module in ("ansible.module_utils.common.validation", "jinja2.lexer")
    ),
    # -- threads that plugins or their libraries start
    Seam("threading:Thread.start", "a thread works for its starter's run", plugin_threads.thread_start),
    Seam(
        "concurrent.futures.thread:ThreadPoolExecutor.submit",
        "a pool's thread works for the run of the thread that submitted the work",
        plugin_threads.executor_submit,
    ),
    *(
        Seam(
            f"multiprocessing.pool:Pool.{name}",
            "what a pool's thread does is done for the run of who asked for it",
            plugin_threads.thread_pool_method,
        )
        for name in ("apply_async", "_map_async", "imap", "imap_unordered")
    ),
    # -- locks
    Seam("fcntl:lockf", "locks of a process do not part its threads", file_locks.lockf),
    Seam("fcntl:fcntl", "locks of a process do not part its threads", file_locks.control),
    # -- variables, inventory, files
    *host_variables.SEAMS,  # before the next one, which holds the lock and copies what this one shares
    Seam(f"{_VARS}.get_vars", _SNAPSHOT, worker_process.snapshot_of_vars),
    *(
        Seam(f"{_VARS}.{name}", _SNAPSHOT, plugin_loader.locked("vars_lock"))
        for name in (
            "clear_facts",
            "set_host_facts",
            "set_nonpersistent_facts",
            "set_host_variable",
        )
    ),
    *(
        Seam(f"{_INVENTORY}.{name}", _SNAPSHOT, plugin_loader.locked("vars_lock"))
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
        "upstream changes the shared base folder while it searches",
        run_state.path_dwim_relative,
    ),
    Seam("ansible.constants:__class__", "each run has its own folder for local files", run_state.constants_class),
    *(
        Seam(
            f"ansible.plugins.vars.host_group_vars:{name}",
            "never looks twice",
            run_state.per_run_container(kind),
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
        Seam(f"ansible.{where}:get_unique_id", "two threads could get the same number", run_state.unique_id)
        for where in ("utils.vars", "playbook.base", "inventory.host")
    ),
    Seam(
        "ansible.utils.collection_loader._collection_config:_AnsibleCollectionConfig._default_collection",
        _IMPLICIT,
        run_state.per_run(lambda _: None),
        optional=True,
    ),
    Seam(
        "ansible.plugins.connection:ConnectionBase.connection_lock",
        "lockf does not part threads",
        run_state.connection_lock,
    ),
    Seam(
        "ansible.plugins.connection:ConnectionBase.connection_unlock",
        "lockf does not part threads",
        run_state.connection_unlock,
    ),
    # -- caches; after the locks above, so that a cache hit does not wait for a lock
    *templates.SEAMS,
    *caches.SEAMS,
    # -- steps without effect for most tasks
    *shortcuts.SEAMS,
    *lazy_values.SEAMS,
    *facts.SEAMS,
    *native_results.SEAMS,
    *tags.SEAMS,
    *plugin_options.SEAMS,
    *inventory.SEAMS,
    *plugin_folders.SEAMS,
    *routing.SEAMS,
    *unused_plugins.SEAMS,
    # -- modules that run in this process, because no program can be started or by request
    *modules.STAND_INS,
)
