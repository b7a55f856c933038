# SPDX-License-Identifier: GPL-3.0-or-later
"""What a type checker, and with it an editor, knows of the calls that everybody makes."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import subprocess
import sys

import pytest

import forkless
from forkless.core.spec import RunOptions, SpecOptions

# mypy runs once for each process that runs one of them.
pytestmark = [pytest.mark.xdist_group("types"), pytest.mark.spawns]

RIGHT = """
import pathlib
import forkless

async def main() -> None:
    result = await forkless.run_async("site.yml", inventory=["a.ini", pathlib.Path("b.ini")], engine="threads", timeout=3)
    async with forkless.open_run(["a.yml", "b.yml"], forks=3) as run:
        await run.wait()
    reveal_type(result)

spec = forkless.RunSpec(playbook=pathlib.Path("site.yml"), tags="one", cwd=None)
reveal_type(spec.playbook)
reveal_type(spec.tags)
reveal_type(spec.cwd)
forkless.run(spec=spec).raise_for_failures()
forkless.start("site.yml", extra_vars={"a": 1}).cancel()
"""
WRONG = {
    'forkless.run("site.yml", forks="3")': 'Argument "forks" to "run" has incompatible type "str"',
    'forkless.start("site.yml", inventry="x")': 'Unexpected keyword argument "inventry" for "start"',
    "forkless.run(3)": 'Argument 1 to "run" has incompatible type "int"',
    'forkless.RunSpec(playbook="site.yml", check="yes")': 'Argument "check" to "RunSpec" has incompatible type "str"',
    'forkless.open_run("site.yml", wait="no")': 'Argument "wait" to "open_run" has incompatible type "str"',
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What mypy says, by line."""
    pytest.importorskip("mypy", reason="mypy is in forkless[dev]")
    folder = tmp_path_factory.mktemp("types")
    path = folder / "program.py"
    path.write_text(RIGHT + "".join(f"{line}\n" for line in WRONG))
    root = pathlib.Path(forkless.__file__).parents[2]
    # What `make lint` has found out of forkless, with the same options: without it, mypy reads the whole of forkless again.
    if (root / ".mypy_cache").is_dir():
        shutil.copytree(root / ".mypy_cache", folder / "cache")
    # A process of its own: mypy changes the garbage collector's thresholds, and would leave them so to all later tests.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), str(path)],
        cwd=root, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert not done.stderr
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith(str(path)):
            number = int(line.split(":")[1])
            said[number] = said.get(number, "") + line
    return said


def test_right_calls_are_right_and_fields_have_their_final_types(told):
    numbers = range(1, RIGHT.count("\n") + 1)
    said = [told[number].partition('"')[2] for number in numbers if number in told]
    assert [one.rstrip('"').replace("builtins.", "") for one in said] == [
        "forkless.core.result.Result", "tuple[str, ...]", "tuple[str, ...]", "str"
    ]  # fmt: skip


@pytest.mark.parametrize("line", WRONG)
def test_wrong_calls_are_seen_before_they_run(told, line):
    number = RIGHT.count("\n") + 1 + list(WRONG).index(line)
    assert WRONG[line] in told[number]


def test_the_options_are_the_fields():
    fields = {field.name for field in dataclasses.fields(forkless.RunSpec)}
    assert set(SpecOptions.__annotations__) | set(RunOptions.__annotations__) == fields
    assert fields - set(RunOptions.__annotations__) == {"playbook", "command_line"}


def test_a_spec_made_anew_from_another_is_the_same():
    spec = forkless.RunSpec(playbook="site.yml", tags="a", artifacts=pathlib.Path("x"))
    assert dataclasses.replace(spec) == spec
    assert (spec.playbook, spec.tags, spec.artifacts, spec.inventory) == (("site.yml",), ("a",), "x", ())
