# SPDX-License-Identifier: GPL-3.0-or-later
"""
The code blocks of a page, and how they are run: in order, in an empty folder, as a reader would run them.

    ```yaml title="site.yml"     is written to a file of that name; another block has to name the file
    ```python                    is executed; the blocks of a page share their variables, and may use await
    ```python title="app.py"     is written to a file
    ```bash                      is executed by bash, and must succeed
    ```console                   lines after "$ " are executed; the lines below them must be in the output
    ```text                      is not executed

A comment on the line before a block changes this:

    <!-- not run: REASON -->     the block is not executed; the test counts such blocks and prints the reason
    <!-- exits: 2 -->            the exit code of the last command of the block
    <!-- free port: 8000 -->     anywhere on the page: 8000 is replaced by a free port
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n+)?^(?P<indent> *)(?P<tick>`{3,})(?P<lang>\w*)(?P<more>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=tick)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
RUN = ("python", "bash", "console")
FILES = ("yaml", "ini", "toml", "json", "python")
# The most seconds for one block. The limit is only for hangs, and generous for slow machines.
PATIENCE = 150.0

# A program that reads blocks of code from stdin, executes each, and writes its error, if any, to the descriptor in argv[1].
READER = """
import ast, asyncio, inspect, json, os, sys, traceback
names = {"__name__": "__main__"}
sys.path.insert(0, "")
answers = os.fdopen(int(sys.argv[1]), "w")
loop = asyncio.Runner()
for line in sys.stdin:
    told = json.loads(line)
    error = ""
    try:
        code = compile(told["code"], told["name"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, names)
        if inspect.iscoroutine(value):
            loop.run(value)
    except BaseException:
        error = traceback.format_exc()
    sys.stdout.flush()
    answers.write(json.dumps(error) + "\\n")
    answers.flush()
loop.close()
"""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    lang: str
    title: str
    text: str
    mark: str

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def reason(self):
        """The reason why the block is not run; "" if it is run."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""


def pages():
    made = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
    return [page for page in made if not page.startswith("docs/_make")]


def blocks(page):
    text = (ROOT / page).read_text()
    port = free_port(text)
    found = []
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match["more"])
        body = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        if port:
            body = body.replace(port[0], port[1])
        line = text.count("\n", 0, match.start("tick")) + 1
        found.append(Block(page, line, match["lang"], title[1] if title else "", body, match["mark"] or ""))
    return found


def free_port(text):
    asked = re.search(r"<!-- free port: (\d+) -->", text)
    if not asked:
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return asked[1], str(free.getsockname()[1])


def commands(block):
    """The commands of a console block, each with the lines of output that the page shows."""
    found = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and not found[-1][1] and found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line.removeprefix('> ')}", [])
        elif found:
            found[-1][1].append(line)
    return found


def loosely(line):
    """A line without the parts that differ between runs: numbers, folders and widths."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    line = re.sub(r"(/[\w.@%+-]+)+/", "/", line)
    return re.sub(r"\s+", " ", re.sub(r"\*+", "*", re.sub(r"\d+", "0", line))).strip()


def missing(shown, printed):
    """The lines that the page shows and the command did not print, in any order. A line of three dots matches anything."""
    there = collections.Counter(loosely(line) for line in printed.splitlines())
    wanted = collections.Counter(loosely(line) for line in shown if line.strip() and not line.startswith("..."))
    return list((wanted - there).elements())


class Session:
    """Runs the blocks of one page, with one folder, one shell environment and one Python process."""

    def __init__(self, folder, env):
        self.folder = folder
        self.env = env
        self.here = str(folder)
        self._python = None
        self._groups = []
        self._count = 0

    def run(self, block):
        if block.title:
            path = os.path.join(self.here, block.title)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            pathlib.Path(path).write_text(block.text)
        elif block.lang == "python":
            self._run_python(block)
        elif block.lang == "bash":
            printed, code = self._shell(block.text)
            assert code == self._wanted(block), f"{block}: exit code {code}\n{printed}"
        else:
            self._run_console(block)

    @staticmethod
    def _wanted(block):
        return int(block.mark.removeprefix("exits: ")) if block.mark.startswith("exits: ") else 0

    def _run_console(self, block):
        all_of_it = commands(block)
        assert all_of_it, f"{block}: a console block without '$ '"
        for number, (command, shown) in enumerate(all_of_it, 1):
            printed, code = self._shell(command)
            wanted = self._wanted(block) if number == len(all_of_it) else 0
            assert code == wanted, f"{block}: {command!r} ended with {code}, not {wanted}\n{printed}"
            lost = missing(shown, printed)
            assert not lost, f"{block}: {command!r} did not print {lost!r}, but\n{printed}"

    def _shell(self, text):
        """Run it in the folder where the last command ended. The output is a file, as background programs may keep it open."""
        self._count += 1
        place = self.folder.parent / f"pwd-{self._count}"
        log = self.folder.parent / f"out-{self._count}"
        script = f"trap 'pwd > {place}' EXIT\nset -u\n{text}"
        with open(log, "w") as out:
            shell = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.here,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._groups.append(shell.pid)
        try:
            code = shell.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.close()
            shell.wait()
            raise AssertionError(f"{text!r} did not end within {PATIENCE:.0f} s\n{log.read_text()}") from None
        if place.exists():
            self.here = place.read_text().rstrip("\n")
        return log.read_text(errors="replace"), code

    def _run_python(self, block):
        if self._python is None:
            read, write = os.pipe()
            self._answers = os.fdopen(read)
            self._log = open(self.folder.parent / "python.log", "w+")
            self._python = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", READER, str(write)],
                cwd=self.here,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[write],
                text=True,
                start_new_session=True,
            )
            os.close(write)
            self._groups.append(self._python.pid)
        self._python.stdin.write(json.dumps({"code": block.text, "name": str(block)}) + "\n")
        self._python.stdin.flush()
        answer = self._answers.readline()
        error = json.loads(answer) if answer else "Python ended"
        assert not error, f"{block}:\n{error}\n{pathlib.Path(self._log.name).read_text()}"

    def close(self):
        if self._python is not None and not self._python.stdin.closed:
            self._python.stdin.close()
            try:
                self._python.wait(30)
            except subprocess.TimeoutExpired:
                self._python.kill()
                self._python.wait()
            self._answers.close()
            self._log.close()
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGTERM)
            except ProcessLookupError:
                continue
        for pid in self._left():
            os.kill(pid, signal.SIGKILL)

    def _left(self):
        """Processes of jobs that outlived their play, found by this session's HOME in their environment."""
        mark = f"HOME={self.env['HOME']}\0".encode()
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes() + b"\0":
                    yield int(path.parent.name)
            except OSError:  # the process has ended, or belongs to another user
                continue
