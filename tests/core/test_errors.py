# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pickle

import pytest

from forkless.core import errors

ARGS = {
    "GreenThreadsError": ("gevent", ["threading"]),
    "SeamError": ("2.99.1", ["worker: gone"]),
    "StuckWorkerError": ("web1", "sleep", 30.0, "File x"),
    "SpawnError": ("ansible-playbook", "no such file"),
}


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_survives_pickling_with_its_sentence(name):
    error = getattr(errors, name)(*ARGS.get(name, ("a sentence",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert isinstance(error, errors.ForklessError)


def test_the_tree_at_the_top_of_the_file_is_the_tree_in_the_code():
    drawn = [line.split("── ")[1].split()[0] for line in errors.__doc__.splitlines() if "── " in line]
    assert sorted([*drawn, "ForklessError"]) == errors.__all__
