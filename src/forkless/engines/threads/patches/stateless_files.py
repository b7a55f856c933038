# SPDX-License-Identifier: GPL-3.0-or-later
"""
Tells from a Python file's syntax tree whether the file can hold state between two calls.

A stateless file of a collection may be executed once and shared by all workers. The analysis is conservative: a statement, call or
decorator that is not listed here counts as state, and the file is executed for each worker that imports it.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkless.core.syntax_trees import one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Findings", "examine"]

_parse = one_at_a_time(ast.parse)

# Calls whose result is immutable, or an object that ansible-core or the stdlib keeps once for the process.
_CALLS = frozenset(
    {
        "abc.ABCMeta",
        "ansible.module_utils._text.to_bytes",
        "ansible.module_utils._text.to_native",
        "ansible.module_utils._text.to_text",
        "ansible.module_utils.basic.missing_required_lib",
        "ansible.module_utils.common.text.converters.to_bytes",
        "ansible.module_utils.common.text.converters.to_native",
        "ansible.module_utils.common.text.converters.to_text",
        "ansible.utils.display.Display",
        "collections.namedtuple",
        "dataclasses.field",
        "logging.getLogger",
        "os.path.basename",
        "os.path.dirname",
        "os.path.join",
        "re.compile",
        "traceback.format_exc",
        "typing.NewType",
        "typing.TypeVar",
        "typing.cast",
        *(
            f"builtins.{name}"
            for name in ("bool", "bytes", "float", "frozenset", "hasattr", "int", "isinstance", "issubclass", "len", "max")
        ),
        *(f"builtins.{name}" for name in ("min", "object", "range", "repr", "str", "sum", "tuple")),
    }
)  # fmt: skip
# Calls whose result is mutable, and the same for the same arguments.
_SAME = frozenset(
    {
        *(
            f"builtins.{name}"
            for name in ("dict", "list", "set", "sorted", "zip", "map", "enumerate", "super", "bytearray")
        ),
        *(f"collections.{name}" for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
        *(f"threading.{name}" for name in ("Condition", "Event", "Lock", "RLock", "local")),
        "contextvars.ContextVar",
    }
)
_DECORATORS = frozenset(
    {
        "abc.abstractmethod",
        "builtins.classmethod",
        "builtins.property",
        "builtins.staticmethod",
        "contextlib.contextmanager",
        "dataclasses.dataclass",
        "functools.total_ordering",
        "functools.wraps",
        "jinja2.filters.pass_context",
        "jinja2.filters.pass_environment",
        "jinja2.filters.pass_eval_context",
        "jinja2.pass_context",
        "jinja2.pass_environment",
        "jinja2.pass_eval_context",
        "typing.overload",
    }
)
_METACLASSES = frozenset({"abc.ABCMeta"})
# Methods of a string constant whose result is immutable.
_STRING_METHODS = frozenset({"encode", "format", "join", "lower", "replace", "strip", "upper"})
# Names with which code can reach a namespace indirectly.
_REFLECTION = frozenset(
    {"__dict__", "delattr", "eval", "exec", "globals", "setattr", "vars", "__setattr__", "__import__"}
)
# Attributes of `sys` with the same value in every run; a file that reads another one at module level counts as stateful.
_SYS = frozenset({"version_info", "platform", "maxsize", "byteorder", "hexversion", "implementation"})
# Lists that no code modifies, by convention.
_LISTS = frozenset({"__all__", "__slots__"})


@dataclass
class Findings:
    """What the syntax tree of one file shows."""

    state: list[tuple[int, str]] = field(default_factory=list)
    """Line and kind of everything that may be state."""
    imports: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)
    """Imports that are executed with the file: module, names, and level as in `__import__`."""
    patches: set[str] = field(default_factory=set)
    """Full names of modules whose attributes the file sets."""
    varies: bool = False
    """Whether two imports of the file may leave different values: a call at module level may return the time, or a random number."""


def examine(source: bytes, package: str = "") -> Findings:
    """Analyze one file. `package` is the package for its relative imports. Raises SyntaxError for invalid source."""
    tree: ast.Module = _parse(source)
    found = Findings()
    file = _File(found)
    file.visit_body(tree.body)
    found.varies = any(file.may_vary(node) for node in _called_by_import(tree))
    imported: dict[str, str] = {}
    stored: list[str] = []
    for node in ast.walk(tree):
        _in_functions(node, found)
        if isinstance(node, ast.Import):
            imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            above = _resolved(node.module or "", node.level, package)
            imported |= {alias.asname or alias.name: f"{above}.{alias.name}" for alias in node.names}
        elif (
            isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name)
        ):
            stored.append(node.value.id)
    found.patches = {imported[name] for name in stored if name in imported}
    return found


def _called_by_import(node: ast.AST) -> Iterator[ast.Call]:
    """All calls outside of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from _called_by_import(child)


def _resolved(name: str, level: int, package: str) -> str:
    try:
        return importlib.util.resolve_name("." * level + name, package) if level else name
    except ImportError:
        return name


def _in_functions(node: ast.AST, found: Findings) -> None:
    """Record state that any code in the file may create when it is called."""
    if isinstance(node, ast.Global):
        found.state.append((node.lineno, "global statement"))
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _REFLECTION:
        found.state.append((node.lineno, f"reflection: {node.id}"))
    elif isinstance(node, ast.Attribute):
        if node.attr in _REFLECTION:
            found.state.append((node.lineno, f"reflection: {node.attr}"))
        elif isinstance(node.ctx, ast.Store | ast.Del) and not (
            isinstance(node.value, ast.Name) and node.value.id == "self"
        ):
            found.state.append((node.lineno, "sets an attribute of something else than self"))


class _File:
    """Walks the statements that an import executes: those of the module and of its classes."""

    def __init__(self, found: Findings) -> None:
        self._found = found
        self._names: dict[str, str] = {}
        """The full name of what each name was imported from."""

    def visit_body(self, body: list[ast.stmt], *, in_class: bool = False) -> None:
        for statement in body:
            self._statement(statement, in_class=in_class)

    def _say(self, node: ast.AST, kind: str) -> None:
        self._found.state.append((getattr(node, "lineno", 0), kind))

    def _statement(self, node: ast.stmt, *, in_class: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            self._assign(node)
        elif isinstance(node, ast.If):
            self._if(node, in_class=in_class)
        elif isinstance(node, ast.Try):
            for body in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                self.visit_body(body, in_class=in_class)
        elif isinstance(node, ast.Expr):
            if not self._immutable(node.value):
                self._say(node, "call")
        elif not isinstance(node, ast.Pass | ast.Raise | ast.Global):
            self._say(node, f"{type(node).__name__} statement")

    def _if(self, node: ast.If, *, in_class: bool) -> None:
        test = node.test
        if (
            isinstance(test, ast.Compare)
            and isinstance(test.left, ast.Name)
            and test.left.id == "__name__"
            and isinstance(test.ops[0], ast.Eq)
        ):
            return  # the code after `if __name__ == "__main__"` runs only if the file is a program
        if not self._immutable(test):
            self._say(node, "call")
        self.visit_body(node.body, in_class=in_class)
        self.visit_body(node.orelse, in_class=in_class)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._found.imports.append((alias.name, (), 0))
                self._names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
            return
        names = tuple(alias.name for alias in node.names)
        self._found.imports.append((node.module or "", names, node.level))
        if "*" in names:
            self._say(node, "import *")
        for alias in node.names:
            self._names[alias.asname or alias.name] = f"{'.' * node.level}{node.module or ''}.{alias.name}"

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self._decorator(decorator)
        self._defaults(node.args)

    def _decorator(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            node = node.func
        if isinstance(node, ast.Attribute) and node.attr in ("setter", "getter", "deleter"):
            return
        name = self._full(node)
        if name not in _DECORATORS:
            self._say(node, f"decorator: {name or ast.unparse(node)}")

    def _defaults(self, arguments: ast.arguments) -> None:
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None and not self._immutable(default):
                self._say(default, "mutable default")

    def _class(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self._decorator(decorator)
        for base in node.bases:
            if self._full(base) == "builtins.type" or not isinstance(base, ast.Name | ast.Attribute | ast.Subscript):
                self._say(base, "metaclass")
        for keyword in node.keywords:
            if keyword.arg != "metaclass" or self._full(keyword.value) not in _METACLASSES:
                self._say(node, "metaclass")
        self.visit_body(node.body, in_class=True)

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if not all(isinstance(name, ast.Name) for name in names):
                self._say(node, "sets what is not a name")
        if node.value is None or all(isinstance(name, ast.Name) and name.id in _LISTS for name in targets):
            return
        if isinstance(node, ast.AugAssign) and not isinstance(node.value, ast.Constant):
            self._say(node, "mutable value")
        elif not self._immutable(node.value):
            self._say(node, self._kind(node.value))

    def _kind(self, node: ast.expr) -> str:
        if isinstance(node, ast.Call):
            return f"call: {self._full(node.func) or ast.unparse(node.func)}"
        return "mutable value"

    def _full(self, node: ast.expr) -> str | None:
        """The full name that a name or an attribute was imported from; None if it is defined in this file."""
        if isinstance(node, ast.Name):
            if node.id in self._names:
                return self._names[node.id]
            return f"builtins.{node.id}" if hasattr(builtins, node.id) else None
        if isinstance(node, ast.Attribute):
            owner = self._full(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

    def _immutable(self, node: ast.expr) -> bool:
        """Whether the value is immutable, or another name for an existing object."""
        if isinstance(node, ast.Constant | ast.Name):
            return True
        if isinstance(node, ast.JoinedStr):
            return all(self._immutable(one) for one in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._immutable(node.value) and (node.format_spec is None or self._immutable(node.format_spec))
        if isinstance(node, ast.Attribute):
            name = self._full(node) or ""
            return not name.startswith("sys.") or name.split(".")[1] in _SYS
        if isinstance(node, ast.Tuple):
            return all(self._immutable(one) for one in node.elts)
        if isinstance(node, ast.UnaryOp):
            return self._immutable(node.operand)
        if isinstance(node, ast.BoolOp):
            return all(self._immutable(one) for one in node.values)
        if isinstance(node, ast.Compare):
            return all(self._immutable(one) or self._literal(one) for one in (node.left, *node.comparators))
        if isinstance(node, ast.IfExp):
            return all(self._immutable(one) for one in (node.test, node.body, node.orelse))
        if isinstance(node, ast.BinOp):
            return self._plain(node) and self._immutable(node.left) and self._immutable(node.right)
        if isinstance(node, ast.Lambda):
            self._defaults(node.args)
            return True
        return isinstance(node, ast.Call) and self._call(node)

    def _plain(self, node: ast.expr) -> bool:
        """Whether a constant is an operand: without one, the operands may be lists, and the sum a new list."""
        if isinstance(node, ast.BinOp):
            return self._plain(node.left) or self._plain(node.right)
        return isinstance(node, ast.Constant | ast.JoinedStr)

    def _literal(self, node: ast.expr) -> bool:
        """Whether it is a list, set or dict of immutable values: harmless as an argument that is not kept."""
        if isinstance(node, ast.List | ast.Set):
            return all(self._immutable(one) for one in node.elts)
        return isinstance(node, ast.Dict) and all(
            one is not None and self._immutable(one) for one in (*node.keys, *node.values)
        )

    def may_vary(self, node: ast.Call) -> bool:
        """Whether two calls with the same arguments may return different values."""
        function = node.func
        return self._full(function) not in _CALLS | _SAME and not (
            isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant | ast.JoinedStr)
        )

    def _call(self, node: ast.Call) -> bool:
        function = node.func
        known = self._full(function) in _CALLS or (
            isinstance(function, ast.Attribute)
            and function.attr in _STRING_METHODS
            and isinstance(function.value, ast.Constant | ast.JoinedStr)
            and self._immutable(function.value)
        )
        given = (*node.args, *(keyword.value for keyword in node.keywords))
        return known and all(self._immutable(one) or self._literal(one) for one in given)
