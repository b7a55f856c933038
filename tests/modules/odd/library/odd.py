#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""One module with many odd ways."""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.near import WORD

COUNT = []


def where(module):
    COUNT.append(1)
    mask = os.umask(0)
    os.umask(mask)
    module.exit_json(
        cwd=os.getcwd(), umask=mask, word=WORD, count=len(COUNT), environ=os.environ.get("TASK"), lang=os.environ.get("LC_ALL"),
        stdin=sys.stdin.read(), tty=[os.isatty(n) for n in (0, 1, 2)], leader=os.getsid(0) != os.getppid(), argv=len(sys.argv),
        encoding=sys.stdout.encoding, main=__name__, tz=time.strftime("%H", time.gmtime(0)) == time.strftime("%H", time.localtime(0)),
        temp=tempfile.gettempdir(), threads=threading.active_count(), secret=module.params["secret"], check=module.check_mode,
        fds=sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3],
    )  # fmt: skip


def main():
    module = AnsibleModule(
        argument_spec={
            "way": {"type": "str"},
            "path": {"type": "str"},
            "secret": {"type": "str", "no_log": True},
            "old": {"type": "str", "removed_in_version": "9.9.9", "removed_from_collection": "ansible.builtin"},
        },
        supports_check_mode=True,
    )
    way = module.params["way"]
    if way == "where":
        where(module)
    elif way == "junk":
        print("some words before")
        sys.stderr.write("and on the other side\n")
        print('{"not": "this"')
        sys.stdout.flush()
        atexit.register(print, "and after")
        module.exit_json(changed=True)
    elif way == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif way == "raise":
        raise ValueError("an error of its own")
    elif way == "interrupted":
        raise KeyboardInterrupt
    elif way == "silent":
        sys.exit(3)
    elif way == "says":
        sys.exit("last words")
    elif way == "hard":
        os.write(1, b'{"changed": true}')
        os._exit(7)
    elif way == "daemon":
        code = f"import time; time.sleep(0.5); open({module.params['path']!r}, 'w').write('done')"
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        module.exit_json()
    elif way == "big":
        module.exit_json(text="x" * 50_000_000)
    elif way == "unclosed":
        globals()["kept"] = open(module.params["path"], "w")  # noqa: SIM115
        globals()["kept"].write("flushed at the end")
        module.exit_json()
    elif way == "thread":
        threading.Thread(target=lambda: (time.sleep(0.3), open(module.params["path"], "w").write("waited"))).start()
        module.exit_json()
    elif way == "warn":
        module.warn("a warning")
        module.deprecate("a deprecation", version="9.9.9", collection_name="ansible.builtin")
        module.exit_json()
    elif way == "chdir":
        os.chdir("/")
        os.umask(0)
        os.environ["TASK"] = "left behind"
        COUNT.append(1)
        module.exit_json()
    elif way == "tmpdir":
        module.exit_json(under=os.path.dirname(module.tmpdir.rstrip("/")))
    module.fail_json(msg="no such way")


if __name__ == "__main__":
    main()
