# SPDX-License-Identifier: GPL-3.0-or-later
"""
Makes docs/img/live.svg: the live view in the middle of a real run, drawn by rich.

    python docs/make_live_svg.py [OUT.svg]
"""

from __future__ import annotations

import io
import pathlib
import re
import sys
import tempfile
import threading

from rich.console import Console
from rich.text import Text

import forkless
from forkless.cli.view.panel import Panel
from forkless.cli.view.plan import Plan
from forkless.cli.view.timeline import Timeline

OUT = pathlib.Path(__file__).parent / "img" / "live.svg"
WIDTH = 100
PLAY = """
- name: Web servers
  hosts: web
  gather_facts: false
  tasks:
    - name: Look who is there
      debug: {msg: hello}
    - name: Write the settings
      set_fact: {port: 8080}
      changed_when: inventory_hostname is search('[24]$')
    - name: Enough space on the disk
      fail: {msg: "only 312 MB are left on /var"}
      when: inventory_hostname == 'web07'
    - name: Only on the first ones
      debug: {msg: first}
      when: inventory_hostname < 'web04'
    - name: Wait for the service
      wait_for: {timeout: "{{ 60 if inventory_hostname in ('web03', 'web05', 'web09') else 1 }}"}
- name: Databases
  hosts: web
  tasks: []
"""


def main() -> int:
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    line, printed = Timeline(), []
    waiting = threading.Event()

    def heard(event: forkless.Event) -> None:
        line.feed(event)
        if event.stdout:
            printed.append(event.stdout.replace("\r\n", "\n"))
        left = {run.host for run in line.running.values()}
        at_last = sum(len(line.tasks) - 1 in host.cells for host in line.hosts.values())
        if line.tasks and line.tasks[-1].name.startswith("Wait") and at_last == 11 and len(left) == 3:
            waiting.set()

    with tempfile.TemporaryDirectory() as folder:
        play, hosts = pathlib.Path(folder, "site.yml"), pathlib.Path(folder, "hosts.ini")
        play.write_text(PLAY, encoding="utf-8")
        hosts.write_text(
            "[web]\n" + "".join(f"web{n:02} ansible_connection=local\n" for n in range(1, 13)), encoding="utf-8"
        )
        run = forkless.start(
            play,
            inventory=hosts,
            forks=12,
            modules="in-process",
            env={"ANSIBLE_FORCE_COLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "0"},
        )
        follower = threading.Thread(target=lambda: [heard(event) for event in run.events()])
        follower.start()
        if waiting.wait(300):
            threading.Event().wait(3.0)  # so that the clocks of the slow ones have something to tell
        console = Console(record=True, width=WIDTH, force_terminal=True, file=io.StringIO(), color_system="truecolor")
        console.print(Text("$ forkless playbook site.yml -i hosts.ini", style="bold"))
        whole = "\n".join(printed)
        for text in whole[whole.rindex("TASK [") :].splitlines():
            console.print(Text.from_ansi(text), soft_wrap=False, no_wrap=True, overflow="ellipsis", crop=True)
        plan = Plan()
        plan.weights = [5 * 12, 12]  # what the play above comes to: five tasks on twelve hosts, then facts of each
        for text in Panel(line, plan).lines(WIDTH - 1, 18):
            console.print(text, soft_wrap=True)
        run.cancel()
        run.wait()
        follower.join()
    out.parent.mkdir(parents=True, exist_ok=True)
    # rich names fonts on a server of others; whoever looks at a picture should not have to call there.
    picture = re.sub(r"\s*@font-face \{.*?\}", "", console.export_svg(title="forkless playbook"), flags=re.DOTALL)
    out.write_text(picture, encoding="utf-8")
    print(out)
    return 0 if waiting.is_set() else 1


if __name__ == "__main__":
    sys.exit(main())
