# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limits of a job, by a systemd scope. Runs on the target: nothing but the standard library."""

from __future__ import annotations

import os
import re
import shlex
import shutil

PROPERTY = re.compile(r"[A-Z][A-Za-z]*")


def prefix(limits, run_command):
    """
    The words before a command that start it in a scope with these limits, quoted for a shell, and why there are none.

    systemd-run registers its own process as the scope and then executes the command: pid, session and environment stay the
    same, so a job's processes are recognised as they are without a scope. Whether systemd runs, permits it, and knows the
    properties is found out by starting a program that does nothing in such a scope.
    """
    odd = [name for name, value in limits.items() if not PROPERTY.fullmatch(name) or not _is_plain(value)]
    if odd:
        return "", "'%s' is no property of a systemd unit with a value, as MemoryMax: 1G is." % odd[0]
    program = shutil.which("systemd-run")
    if program is None:
        return "", "there is no systemd-run on this host."
    words = [program, "--scope", "--quiet", "--collect", "--no-ask-password"]
    if os.geteuid() != 0:
        words.insert(1, "--user")
        if "XDG_RUNTIME_DIR" not in os.environ:  # become does not set it
            words[:0] = ["env", "XDG_RUNTIME_DIR=/run/user/%d" % os.geteuid()]
    for name, value in limits.items():
        words += ["-p", "%s=%s" % (name, value)]
    words.append("--")
    rc, _dummy, err = run_command([*words, "true"])
    if rc != 0:
        return "", "systemd-run says: %s" % (" ".join(err.split()) or "nothing, exit status %d" % rc)
    return " ".join(shlex.quote(word) for word in words), ""


def _is_plain(value):
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).isprintable()
