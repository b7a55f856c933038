# SPDX-License-Identifier: GPL-3.0-or-later
"""
What mkdocs calls while it builds: pages that are made from the code and from the files at the root are put in here.

They are made anew in every build, so that none of them can be out of date.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
import re
from typing import Any

import reference
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"(!?\[[^\]\n]*\])\(([^)\s]+)\)")
FENCES = re.compile(r"^( *)(`{3,}).*?^\1\2`*[ \t]*$", re.MULTILINE | re.DOTALL)
# Files at the root that are pages, too.
PAGES = {"README.md": "index.md", "ARCHITECTURE.md": "design.md", "CHANGELOG.md": "changes.md"}
LANGUAGES = {".py": "python", ".yml": "yaml", ".ini": "ini", ".md": "markdown", ".toml": "toml"}


def changes() -> str:
    """What is in CHANGELOG.md, and before it what waits in changelog.d for the next release."""
    told = (ROOT / "CHANGELOG.md").read_text().replace("# Changelog", "# Changes", 1)
    fragments = sorted((ROOT / "changelog.d").glob("*.md"))
    waiting = ["- " + " ".join(path.read_text().split()) for path in fragments]
    heading = ["## Not released yet", ""] if waiting else []
    return told.replace("<!-- towncrier release notes start -->", "\n".join([*heading, *waiting]) + "\n")


def source(path: str) -> str:
    """A file of the repository as a page, for links that lead to it."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n`````{LANGUAGES.get(posixpath.splitext(path)[1], 'text')}\n{text}`````\n"


def outside(links_from: pathlib.Path) -> set[str]:
    """The files outside docs/ that a page links to, as paths from the root."""
    prose = FENCES.sub("", links_from.read_text())
    found = set()
    for _, target in LINK.findall(prose):
        path = os.path.normpath(links_from.parent / target.partition("#")[0])
        if not re.match(r"[a-z+]+:|#", target) and os.path.isfile(path) and not path.startswith(str(ROOT / "docs")):
            found.add(os.path.relpath(path, ROOT))
    return found


def page_of(path: str) -> str:
    """Where on the site a file of the repository stands."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path.removesuffix('.md')}.md"


def on_files(files: Any, config: Any) -> Any:
    def put(name: str, content: str) -> None:
        files.append(File.generated(config, name, content=content))

    put("index.md", (ROOT / "README.md").read_text())
    put("design.md", (ROOT / "ARCHITECTURE.md").read_text())
    put("changes.md", changes())
    for name, make in reference.PAGES.items():
        put(f"reference/{name}.md", make())
    wanted: set[str] = set()
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        wanted |= outside(page)
    for path in sorted(wanted - set(PAGES)):
        put(page_of(path), source(path))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """In the repository links lead from file to file; on the site, from page to page."""
    here = page.file.src_uri
    origin = {made: name for name, made in PAGES.items()}.get(here)
    if origin is None:
        origin = here.removeprefix("source/") if here.startswith("source/") else f"docs/{here}"
    folder = posixpath.dirname(origin)

    def lead(match: re.Match[str]) -> str:
        target, hash_, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z+]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if not (ROOT / path).is_file():
            return match[0]  # a page that is made from the code, or a mistake: mkdocs tells which
        to = posixpath.relpath(page_of(path), posixpath.dirname(here) or ".")
        return f"{match[1]}({to}{hash_}{anchor})"

    pieces, end = [], 0
    for fence in FENCES.finditer(markdown):
        pieces += [LINK.sub(lead, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, LINK.sub(lead, markdown[end:])])
