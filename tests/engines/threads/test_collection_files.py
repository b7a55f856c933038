# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of collections, which are compiled and examined once for all workers."""

from __future__ import annotations

import threading

import pytest

from forkless.engines.threads.patches import collection_modules, stateless_files


def test_workers_that_import_a_file_at_once_compile_it_once(tmp_path, monkeypatch):
    file = tmp_path / "plugin.py"
    file.write_text("STATE = {}\n")
    examined = []

    def examine(*args):
        examined.append(threading.get_ident())
        threading.Event().wait(0.3)  # as long as a large file takes; the others come meanwhile
        return original(*args)

    original = stateless_files.examine
    monkeypatch.setattr(stateless_files, "examine", examine)
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(collection_modules.code_of(str(file)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(examined) == 1
    assert len(codes) == 8
    assert len(set(map(id, codes))) == 1


def test_a_file_that_cannot_be_compiled_keeps_no_other_file_waiting(tmp_path):
    wrong, right = tmp_path / "wrong.py", tmp_path / "right.py"
    wrong.write_text("def (:\n")
    right.write_text("VALUE = 1\n")
    for _ in range(2):
        with pytest.raises(SyntaxError):
            collection_modules.code_of(str(wrong))
    assert collection_modules.code_of(str(right)).co_filename == str(right)
