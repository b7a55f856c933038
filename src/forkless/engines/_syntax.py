# SPDX-License-Identifier: GPL-3.0-or-later
"""Syntax trees as Ansible's modules see them: one at a time, see `forkless.modules._trees`."""

from __future__ import annotations

import ast
import builtins

from forkless.engines._views import View
from forkless.modules._trees import literal_eval, one_at_a_time

__all__ = ["ast_view", "compile_one_at_a_time", "literal_eval"]

compile_one_at_a_time = one_at_a_time(builtins.compile)


class _Ast(View):
    parse = staticmethod(one_at_a_time(ast.parse))
    literal_eval = staticmethod(literal_eval)


ast_view = _Ast(ast)
