# SPDX-License-Identifier: GPL-3.0-or-later
"""
The pictures of the page in docs/img, made from a real server with a real run: start, watch, cancel on a phone, relaunch, compare.

    python docs/_make/page_pictures.py                  # the three pictures of the docs
    python docs/_make/page_pictures.py --all FOLDER     # every page, in light, in dark and at the width of a phone, to look at

Needs chromium and playwright. Everything lies in a temporary folder and ends with the command.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = pathlib.Path(__file__).parents[1] / "img"
PATIENCE = 240_000
PAGES = (
    "/",
    "/start",
    "/queue",
    "/hosts",
    "/host?name=web07",
    "/schedules",
    "/workers",
    "/api/docs",
    "/me",
    "/nowhere",
)
HOSTS = [f"web{number:02}" for number in range(1, 17)] + [f"db{number:02}" for number in range(1, 5)]

SITE = """
- name: Web servers
  hosts: all
  gather_facts: false
  tasks:
    - {name: Look at the release, command: 'true', changed_when: false}
    - {name: Take it out of the balancer, debug: {msg: drained}}
    - name: Write the configuration
      copy: {dest: "{{ base }}/{{ inventory_hostname }}.conf", content: "workers 8\\nrelease {{ 9999 | random }}\\n"}
    - {name: Unpack the release, shell: 'for n in 1 2 3; do echo part $n of 3; sleep 0.2; done', changed_when: inventory_hostname is match('web')}
    - name: Migrate the database
      command: sh -c 'echo "ERROR 1205 (HY000) Lock wait timeout exceeded; try restarting transaction" >&2; exit 1'
      when: inventory_hostname in ['db03', 'web07'] and not (fixed | default(false))
    - {name: Restart the service, command: sleep 0.1}
    - {name: Wait for its port, debug: {msg: open}}
    - {name: Put it back, debug: {msg: back}}
"""
ROLLING = """
- name: Rolling update
  hosts: all
  gather_facts: false
  tasks:
    - {name: Fetch the packages, command: 'true'}
    - {name: Rebuild the index, shell: 'n=0; while true; do n=$((n+1)); echo "shard $n of 4096 indexed"; sleep 0.5; done'}
"""
DURABLE = """
- hosts: web07
  gather_facts: false
  vars: {ansible_async_dir: "{{ base }}/async"}
  tasks:
    - {name: Begin, shell: 'while test -d {{ base }}; do date +"%T rows copied" >> {{ base }}/copy.log; sleep 1; done > {{ base }}/copy.out', async: 600, poll: 0, register: started}
    - include_role: {name: forkless.core.async_job_save}
      vars: {async_job_save_job_name: nightly-copy, async_job_save_ansible_job_id: '{{ started.ansible_job_id }}'}
"""


class Demo:
    """A server of its own with a project that has something to show."""

    def __init__(self, program: list[str], folder: pathlib.Path) -> None:
        project = folder / "infra"
        project.mkdir()
        groups = "".join(
            f"[{name}]\n" + "".join(f"{host}\n" for host in HOSTS if host.startswith(name)) for name in ("web", "db")
        )
        settings = f"ansible_connection=local\nansible_python_interpreter={sys.executable}\nbase={folder}\n"
        (project / "hosts.ini").write_text(f"{groups}[all:vars]\n{settings}")
        for name, text in (("site.yml", SITE), ("rolling-update.yml", ROLLING), ("copy-tables.yml", DURABLE)):
            (project / name).write_text(text.lstrip())
        (project / "ansible.cfg").write_text("[defaults]\nforks = 8\n")
        self._log = folder / "serve.log"
        environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "FORKLESS_DATABASE": "",
            "ANSIBLE_FORCE_COLOR": "0",
        }
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [*program, "serve", "--project", ".", "--port", "0", "--processes", "2"], cwd=project, stdout=out, stderr=out, env=environment
            )  # fmt: skip
        while not (found := re.search(r"(http://\S+?)/\?token=\S+", self._log.read_text())):
            if self._process.poll() is not None:
                raise SystemExit(self._log.read_text())
            time.sleep(0.1)
        self.first, self.address = found[0], found[1]

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def start(page: Page, playbook: str, **fields: str) -> int:
    page.get_by_role("link", name="Start", exact=True).click()
    page.get_by_label("Playbook").select_option(playbook)
    page.get_by_label("Inventory").select_option("hosts.ini")
    for label, value in fields.items():
        page.get_by_label(label).fill(value)
    page.get_by_label("Diff").check()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/runs/*")
    return int(page.url.rsplit("/", 1)[1])


def opened(browser: Browser, demo: Demo, width: int, height: int, scheme: str) -> Page:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB")  # type: ignore[arg-type]  # light or dark
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(demo.first)
    return page


def settled(page: Page, state: str) -> None:
    page.locator("#state", has_text=state).wait_for()
    page.locator("#log", has_text="PLAY RECAP").wait_for()


def take(browser: Browser, demo: Demo, folder: pathlib.Path | None) -> None:
    page = opened(browser, demo, 1000, 760, "light")
    failed = start(page, "site.yml")
    settled(page, "failed")
    if folder is None:
        page.screenshot(path=IMAGES / "page-run.png")
    page.get_by_role("button", name="Relaunch on failed hosts").click()
    page.get_by_text("Again from").wait_for()
    settled(page, "failed")
    again = int(page.url.rsplit("/", 1)[1])
    start(page, "copy-tables.yml")
    settled(page, "successful")
    dark = opened(browser, demo, 1000, 640, "dark")
    live = start(dark, "rolling-update.yml", Limit="web0*")
    dark.locator("#running", has_text="shard 3 of").first.wait_for()
    if folder is None:
        dark.screenshot(path=IMAGES / "page-live.png")
        dark.goto(demo.address + "/")
        dark.set_viewport_size({"width": 1100, "height": 520})
        dark.locator("#rows tr").nth(3).wait_for()
        dark.screenshot(path=IMAGES / "page-runs.png")
    phone = opened(browser, demo, 390, 800, "light")
    if folder is not None:
        phone.goto(f"{demo.address}/runs/{live}")
        phone.locator("#running", has_text="shard").first.wait_for()
        phone.screenshot(path=folder / "run-live-phone.png", full_page=True)
        dark.screenshot(path=folder / "run-live-dark.png", full_page=True)
        look(browser, demo, folder, (*PAGES, f"/runs/{failed}", f"/compare?first={failed}&second={again}"))
    phone.goto(f"{demo.address}/runs/{live}")
    phone.get_by_role("button", name="Cancel").click()
    phone.locator("#state", has_text="canceled").wait_for()
    if folder is not None:
        phone.screenshot(path=folder / "run-canceled-phone.png", full_page=True)


def shrink() -> None:
    """With a palette a picture has a third of its size; without Pillow it stays as it is."""
    with contextlib.suppress(ImportError):
        from PIL import Image

        for name in ("page-run.png", "page-live.png", "page-runs.png"):
            with Image.open(IMAGES / name) as picture:
                picture.convert("RGB").quantize(255, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
                    IMAGES / name, optimize=True
                )


def look(browser: Browser, demo: Demo, folder: pathlib.Path, paths: tuple[str, ...]) -> None:
    for name, width, scheme in (("light", 1200, "light"), ("dark", 1200, "dark"), ("phone", 390, "light")):
        page = opened(browser, demo, width, 800, scheme)
        for path in paths:
            page.goto(demo.address + path)
            page.wait_for_load_state("load")
            if path.startswith("/compare"):
                page.locator("#comparison > *").first.wait_for()
            if path.startswith("/runs/"):
                page.locator("#log", has_text="PLAY RECAP").wait_for()
            shown = re.sub(r"\W+", "-", path).strip("-") or "runs"
            page.screenshot(path=folder / f"{shown}-{name}.png", full_page=not path.startswith("/api/"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--forkless", help="the program that serves; by default this Python's")
    asked = parser.parse_args()
    program = [asked.forkless] if asked.forkless else [sys.executable, "-m", "forkless"]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="forkless-pictures-"))
    folder.chmod(0o711)  # as root the database runs as another user
    try:
        demo = Demo(program, folder)
        try:
            with sync_playwright() as driver:
                browser = driver.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
                )
                take(browser, demo, asked.all)
                browser.close()
        finally:
            demo.close()
        if asked.all is None:
            shrink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
