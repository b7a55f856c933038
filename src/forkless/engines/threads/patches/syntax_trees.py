# SPDX-License-Identifier: GPL-3.0-or-later
"""Views of ast and compile for Ansible's modules: one thread at a time, see `forkless.core.syntax_trees`."""

from __future__ import annotations

import ast
import builtins

from forkless.core.syntax_trees import literal_eval, one_at_a_time
from forkless.engines.threads.patches.worker_view import WorkerView

__all__ = ["ast_view", "compile_one_at_a_time", "literal_eval"]

compile_one_at_a_time = one_at_a_time(builtins.compile)


class _Ast(WorkerView):
    parse = staticmethod(one_at_a_time(ast.parse))
    literal_eval = staticmethod(literal_eval)


ast_view = _Ast(ast)
