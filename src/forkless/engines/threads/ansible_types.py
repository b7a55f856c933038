# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine uses of ansible-core's untyped objects, as protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Hashable, Iterator, MutableMapping, MutableSequence, Sequence

    from jinja2 import Template

    from forkless.engines.threads.workers.worker import Worker

__all__ = [
    "CallbackQueue",
    "ForeignEvent",
    "FoundPlugin",
    "JinjaEnvironment",
    "JinjaPluginLoader",
    "LoadContext",
    "PlayStrategy",
    "PluginFinder",
    "ResultQueue",
    "TaskQueue",
]


class ResultQueue(Protocol):
    def get(self) -> object: ...


class PlayStrategy(Protocol):
    """StrategyBase."""

    _final_q: ResultQueue
    _hosts_cache: list[str]
    debugger_active: bool


class CallbackQueue(Protocol):
    """TaskQueueManager, as far as callbacks are concerned."""

    _callback_plugins: MutableSequence[object]


class _Named(Protocol):
    def get_name(self) -> str: ...


class _Identified(Protocol):
    _uuid: str


class CallbackResult(Protocol):
    """TaskResult, as a callback is given it."""

    _host: _Named
    _task: _Identified
    _result: dict[str, object]


class _Closable(Protocol):
    def close(self) -> None: ...


class TaskQueue(Protocol):
    """TaskQueueManager, at the end of a play."""

    _connection_lockfile: _Closable
    _workers: Sequence[Worker | None]


class ForeignEvent(Protocol):
    """threading.Event, or what ansible-core has in its place."""

    def set(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class LoadContext(Protocol):
    """PluginLoadContext: where a plugin was found, and what was noticed on the way."""

    resolved: bool
    deprecated: bool
    error_list: list[object]
    import_error_list: list[object]
    redirect_list: list[str]
    plugin_resolved_path: str


class FoundPlugin(Protocol):
    """get_with_context_result."""

    plugin_load_context: LoadContext

    def __init__(self, found: object, load_context: LoadContext) -> None: ...

    @property
    def object(self) -> Hashable: ...


class PluginFinder(Protocol):
    """PluginLoader."""

    package: str
    class_name: str
    subdir: str
    _extra_dirs: list[str]

    def all(self, *args: object, **kwargs: object) -> Iterator[object]: ...
    def _get_paths_with_context(self) -> Sequence[object]: ...


class JinjaPluginLoader(PluginFinder, Protocol):
    """Jinja2Loader."""

    method_map_name: str
    _cached_non_collection_wrappers: MutableMapping[str, object]

    def _ensure_non_collection_wrappers(self) -> None: ...
    def _plugin_wrapper_type(self, function: object) -> object: ...


class _TemplateClass(Protocol):
    def from_code(self, environment: object, code: types.CodeType, variables: object, uptodate: object) -> Template: ...


class _SyntaxNode(Protocol):
    """A node of Jinja's syntax tree."""

    def find_all(self, kinds: tuple[type, ...]) -> Iterator[_SyntaxNode]: ...


class JinjaEnvironment(Protocol):
    """AnsibleEnvironment."""

    block_start_string: str
    block_end_string: str
    variable_start_string: str
    variable_end_string: str
    comment_start_string: str
    comment_end_string: str
    line_statement_prefix: str | None
    line_comment_prefix: str | None
    trim_blocks: bool
    lstrip_blocks: bool
    newline_sequence: str
    keep_trailing_newline: bool
    optimized: bool
    finalize: Callable[..., object] | None
    autoescape: object
    extensions: Sequence[str]
    template_class: _TemplateClass

    def compile(self, source: object) -> types.CodeType: ...
    def parse(self, source: str) -> _SyntaxNode: ...
    def make_globals(self, own: object) -> object: ...
