# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a warm interpreter executes: a greeting in its command line, and the files of `remote`, which are sent to it.

The files that every module needs are one program, sent when the interpreter has greeted; others are sent before the first order that needs them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import re
import struct
import zlib

from forkless.modules.warm.payload import Piece

__all__ = ["ASYNC_JOB", "BOOT", "LIVE_OUTPUT", "OLDEST", "PATIENCE", "PROGRAM", "server_part", "server_program"]

PATIENCE = 20  # seconds from an interpreter's greeting until the server's program must have begun there
# Greets, so that the controller knows this Python before it sends anything, which may then be bytecode. Then reads the server's program, exactly as long
# as its head says and by os.read, so that the frames after it stay in the pipe, and executes it. Imports make hardly any garbage, so the collector is off
# until a module's process begins. If the program cannot be executed, it says so (F): an interpreter that ends without a word may have carried out the
# order that followed the program. It says the same if its input has ended, or if the program has not begun in time: a wrapper may keep stdin for itself. The
# alarm is set here, not on the controller, which cannot know whether an order was carried out and its first word is late. It ends the process whatever is
# being executed, also where the signal was blocked or ignored before, which the server's `main` restores for modules. The greeting's first bytes (main.MAGIC)
# are not in the command line, which a shell or a terminal may echo.
BOOT = (
    "import gc,marshal,os,signal,sys,zlib,_frozen_importlib_external as e;gc.disable();"
    'q=lambda *a:(os.write(1,bytes(8)+b"F"),os._exit(3));'
    'x=sys.excepthook;sys.excepthook=lambda *a:os.write(1,bytes(8)+b"F")and x(*a);'
    'h="%s %d.%d"%("" if sys.flags.optimize else e.MAGIC_NUMBER.hex(),*sys.version_info[:2]);'  # bytecode depends on PYTHONOPTIMIZE, too
    "s=signal.signal(signal.SIGALRM,q),signal.pthread_sigmask(signal.SIG_UNBLOCK,[signal.SIGALRM]);"
    f"signal.alarm({PATIENCE});"
    'os.write(1,bytes(2)+b"forkless-warm"+bytes(1)+len(h).to_bytes(4,"big")+bytes(4)+b"H"+h.encode());'
    "r=lambda n,b=bytes():b if len(b)>=n else r(n,b+(os.read(0,n-len(b)) or q()));"
    'k=r(5);c=zlib.decompress(r(int.from_bytes(k[1:],"big")));'
    'exec(marshal.loads(c) if k[:1]==b"M" else c,dict(__name__="forkless_far",excepthook=x,alarm=s))'
)
PROGRAM = struct.Struct(">cI")  # the head of the server's program: M (bytecode) or T (text), and its length
OLDEST = (3, 8)  # the oldest Python that executes the server
LIVE_OUTPUT, ASYNC_JOB = "live_output.py", "async_job.py"  # parts of `remote` that are sent when they are needed
# Imports removed from all files but the first: `from __future__` must be at the top, and the host has no package
# `forkless`.
_ELSEWHERE = re.compile(
    r"^from (?:__future__|forkless\.modules\.warm\.remote\.\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE
)


@functools.cache
def server_program(*, ask_groups: bool) -> Piece:
    """The files of `remote` that every module needs as one file, in an order in which each uses only names of those before it."""
    texts = [_text(name) for name in ("importer.py", "child.py", "main.py")]
    joined = texts[0] + "".join(_ELSEWHERE.sub("", text) for text in texts[1:])
    text = f"{joined}\nmain({ask_groups})\n".encode()
    key = hashlib.sha1(text, usedforsecurity=False).hexdigest()
    return Piece(f"{key}:server.py", "server.py", zlib.compress(text, 9))


@functools.cache
def server_part(name: str) -> bytes:
    """A file of `remote` that only some tasks need: it is sent before the first of them, and compiled on the host then."""
    return zlib.compress(b"from __future__ import annotations\n" + _ELSEWHERE.sub("", _text(name)).encode(), 9)


def _text(name: str) -> str:
    return importlib.resources.files("forkless.modules.warm.remote").joinpath(name).read_text("utf-8")
