#!/bin/sh
# forkless shim 1: runs @COMMAND@ in forkless, or stock's where forkless cannot. `forkless shim remove` removes it.
# SPDX-License-Identifier: GPL-3.0-or-later
# PYTHON_ARGCOMPLETE_OK
''':'
# This file is a program for sh up to the quotes at the end of this part, and one for Python as a whole. sh finds the
# command that this one replaces, and has this file run by the Python of that command. There is no backslash in this
# part, as it is a string for Python, and nothing is started, as each start of a program would be felt.
command="@COMMAND@"
q="'"

# ansible-test copies commands into a folder of its own, and puts the Python that they shall have first on PATH.
case $0 in */ansible-test-*-bin/*) exec python "$0" "$@" ;; esac

# Reads the first two lines of a file.
read_lines() {
    first="" second=""
    { IFS= read -r first; IFS= read -r second; } 2>/dev/null < "$1" || :
}

# Whether this file was started by a command that it started, in the same process or in a child of it. A play that calls
# the command again is no such child: its command is found as the first one was. Each round of a loop counts.
came_from() {
    case ${FORKLESS_SHIM_WRAPPER:-} in
        "$$ "*" $1" | "${PPID:-} "*" $1" | *" +++++ $1") return 0 ;;
        *) return 1 ;;
    esac
}

# Whether the interpreter of the script that was read exists. A virtual environment that was moved, or whose Python was
# removed, leaves scripts without one: execvp, by which env, make and most programs start a command, passes them over.
can_start() {
    case $first in "#!"*) ;; *) return 0 ;; esac
    python=${first#"#!"}
    while [ "${python# }" != "$python" ]; do python=${python# }; done
    [ -x "${python%% *}" ]
}

# The first command of this name on PATH that is no shim and stands behind a shim; with "yes", also one before it.
find_stock() {
    behind=$1
    for folder in $path; do
        file=${folder:-.}/$command
        if [ ! -f "$file" ] || [ ! -x "$file" ]; then continue; fi
        read_lines "$file"
        case $second in "# forkless shim"*) behind=yes; continue ;; esac
        if [ "$behind" = yes ] && ! came_from "$file"; then
            if ! can_start; then broken=${broken:-$file}; continue; fi
            stock=$file
            return 0
        fi
    done
    return 1
}

# The interpreter of the script that was read, and the one argument that the kernel would give it.
find_python() {
    python="" flag=""
    case $first in
        "#!/bin/sh"*)  # how pip and uv write a path that is too long for the kernel, or has a space
            case $second in
                "$q$q${q}exec$q "'"$(dirname -- "$(realpath -- "$0")")"/'"$q"*)  # of an environment that may be moved
                    python=${second#*"$q$q${q}exec$q "*"/$q"}
                    python=${stock%/*}/${python%%"$q"*}
                    if [ -h "$stock" ]; then python=""; fi
                    ;;
                "$q$q${q}exec$q "*)
                    python=${second#"$q$q${q}exec$q "}
                    python=${python%%' "$0"'*}
                    case $python in
                        '"'*'"') python=${python#'"'}; python=${python%'"'} ;;
                        "$q"*"$q") python=${python#"$q"}; python=${python%"$q"} ;;
                    esac
                    ;;
            esac
            ;;
        "#!"*)
            python=${first#"#!"}
            while [ "${python# }" != "$python" ]; do python=${python# }; done
            flag=${python#"${python%% *}"}
            python=${python%% *}
            while [ "${flag# }" != "$flag" ]; do flag=${flag# }; done
            ;;
    esac
    case "${python##*/} $flag" in
        python* | pypy* | "env python"* | "env pypy"* | "env -S python"*) [ -x "$python" ] ;;
        *) return 1 ;;
    esac
}

path=$PATH
old_ifs=$IFS
set -f
IFS=:
stock="" broken=""
find_stock no || find_stock yes || stock=$broken
IFS=$old_ifs
set +f
if [ -z "$stock" ]; then
    if [ -x "@PYTHON@" ]; then exec "@PYTHON@" "$0" "$@"; fi
    echo "forkless shim: $command is not installed: there is no other $command on PATH" >&2
    exit 127
fi
read_lines "$stock"
if find_python; then
    FORKLESS_SHIM_STOCK=$stock
    export FORKLESS_SHIM_STOCK
    exec "$python" ${flag:+"$flag"} "$0" "$@"
fi
if [ -n "${FORKLESS_SHIM_ASK:-}" ]; then echo "$stock is not a Python script"; exit; fi
# Not a Python script, so it may look for its command on PATH and find this file again: next time it is passed over.
rounds=""
case ${FORKLESS_SHIM_WRAPPER:-} in *" $stock") rounds=${FORKLESS_SHIM_WRAPPER#* }; rounds=${rounds%" $stock"} ;; esac
FORKLESS_SHIM_WRAPPER="$$ $rounds+ $stock"
export FORKLESS_SHIM_WRAPPER
exec "$stock" "$@"
'''
# Any Python that an ansible-core ever ran on must understand this part.
import os
import sys

COMMAND = "@COMMAND@"
HERE = os.path.abspath(__file__)
STOCK = os.environ.pop("FORKLESS_SHIM_STOCK", "")
FILES = {"ansible": "adhoc.py", "ansible-playbook": "playbook.py", "ansible-console": "console.py", "ansible-pull": "pull.py"}


def say(sentence):
    """Writes one line to stderr, unless it was written in this session before."""
    if os.environ.get("FORKLESS_SHIM_QUIET", "0") not in ("", "0") or sys.stderr is None:
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(cache, "forkless", "shim-said")
    session = str(os.getsid(0))
    try:
        session += " %s" % os.stat("/proc/" + session).st_ctime  # the number alone is given to another session some day
    except OSError:
        pass
    said = "%s %s\n" % (session, sentence)
    before = []
    try:
        with open(path) as file:
            before = file.readlines()
    except (OSError, ValueError):
        pass
    if said in before:
        return
    try:
        sys.stderr.write("forkless shim: %s\n" % sentence)
        sys.stderr.flush()
        if not os.path.isabs(cache):  # an account without a home
            return
        if not os.path.isdir(os.path.dirname(path)):
            os.makedirs(os.path.dirname(path), 0o700)
        with open(path, "w") as file:
            file.write("".join(before[-50:]) + said)
    except Exception:  # nobody reads it, or it cannot be kept: stock runs all the same
        pass


def run_stock(why=""):
    """Replaces this process by stock's command: it does not return."""
    if os.environ.get("FORKLESS_SHIM_ASK"):  # `forkless shim status` asks
        sys.stdout.write(why + "\n")
        sys.exit()
    if why:
        say("%s; stock %s runs" % (why.split("\n")[0].rstrip(".:;"), COMMAND))
    if STOCK:
        os.execv(STOCK, [STOCK] + sys.argv[1:])
    import importlib.util

    found = importlib.util.find_spec("ansible")
    if COMMAND not in FILES or found is None:
        sys.exit("forkless shim: %s is not installed: there is no other %s on PATH" % (COMMAND, COMMAND))
    script = os.path.join(list(found.submodule_search_locations)[0], "cli", FILES[COMMAND])
    os.execv(sys.executable, [sys.executable, script] + sys.argv[1:])


if __name__ == "__main__":
    if STOCK and sys.path and sys.path[0] == os.path.dirname(os.path.realpath(__file__)):
        sys.path[0] = os.path.dirname(os.path.realpath(STOCK))
    if os.environ.get("FORKLESS") == "0":
        run_stock("FORKLESS=0 is set" if COMMAND not in ("ansible-pull", "ansible-test") else "")
    try:
        from forkless.cli.shim import launch
    except Exception as error:  # not installed, too old, or for another Python: all the same here
        run_stock("forkless cannot be imported by %s (%s)" % (sys.executable, error))
    sys.exit(launch.main(COMMAND, STOCK, HERE, run_stock))
