# SPDX-License-Identifier: GPL-3.0-or-later
"""The site: built with warnings as errors, its links checked, nothing fetched from elsewhere; and what is made from the code is whole."""

from __future__ import annotations

import html.parser
import importlib
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest

from docs_blocks import ROOT

pytestmark = [pytest.mark.spawns, pytest.mark.timeout(300), pytest.mark.xdist_group("docs-site")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is not installed; pip install 'forkless[docs]'")
    folder = tmp_path_factory.mktemp("site")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    # No network: a build that asked for anything would fail here.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        env[name] = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        if told.get("id"):
            self.ids.add(told["id"])
        if tag == "a" and told.get("href"):
            self.links.append(told["href"])
        elif tag in ("script", "img", "iframe", "source") and told.get("src"):
            self.fetched.append(told["src"])
        elif tag == "link" and told.get("rel") in ("stylesheet", "preconnect", "icon", "preload") and told.get("href"):
            self.fetched.append(told["href"])


@pytest.fixture(scope="module")
def parsed(site):
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_link_and_anchor_leads_somewhere(site, parsed):
    lost = []
    for path, page in parsed.items():
        if path.name == "404.html":
            continue  # its links count from the root of a server
        for link in page.links + page.fetched:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if there.is_dir():
                there /= "index.html"
            anchor = urllib.parse.unquote(parts.fragment)
            if not there.exists():
                lost.append(f"{path.relative_to(site)}: {link}")
            elif anchor and there.suffix == ".html" and anchor not in parsed[there].ids and not anchor.startswith("__"):
                lost.append(f"{path.relative_to(site)}: {link} (no such anchor)")
    assert not lost, "\n".join(lost)
    assert len(parsed) > 20


def test_nothing_is_fetched_from_elsewhere(site, parsed):
    far = [
        f"{path.name}: {url}" for path, page in parsed.items() for url in page.fetched if re.match(r"(https?:)?//", url)
    ]
    assert not far, far
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import[^;]*//|url\(['\"]?(https?:)?//", sheet.read_text()), sheet


def test_the_reference_has_every_public_name(site):
    text = (site / "reference/python.html").read_text() + (site / "reference/errors.html").read_text()
    for door in (
        "forkless",
        "forkless.runner",
        "forkless.multiprocessing",
        "forkless.jobs",
        "forkless.queue",
        "forkless.ssh",
    ):
        for name in importlib.import_module(door).__all__:
            assert f"{name}</code>" in text, f"{door}.{name} is not in the reference"


def test_the_reference_has_every_command(site):
    from forkless.cli import COMMANDS

    text = (site / "reference/commands.html").read_text()
    for name in COMMANDS:
        assert f"forkless {name}</code>" in text, name
    assert "forkless jobs wait</code>" in text


def test_every_variable_that_we_read_is_in_the_table():
    from forkless.core.environment import VARIABLES

    found = set()
    for path in pathlib.Path(ROOT / "src/forkless").rglob("*.py"):
        if path.name != "environment.py":
            found |= set(re.findall(r"[\"'](FORKLESS_[A-Z_]+)[\"']", path.read_text()))
    for path in pathlib.Path(ROOT / "src/forkless").rglob("*.sh"):
        found |= set(re.findall(r"\b(FORKLESS_[A-Z_]+)\b", path.read_text()))
    told = {name for name in VARIABLES if name.startswith("FORKLESS_")}
    assert found == told, f"only in the code: {found - told}; only in _environment.py: {told - found}"
