# SPDX-License-Identifier: GPL-3.0-or-later
"""The screen: a list, two buttons, the output."""

from __future__ import annotations

import pathlib

import toga
from toga.style import Pack

from forkless_app.library import PlaybookLibrary, Session


class ForklessApp(toga.App):
    def __init__(self, *args, home=None, **kwargs):
        self.home = home  # where the app keeps its files; its own folder on the device unless told otherwise
        super().__init__(*args, **kwargs)

    def startup(self):
        self.home = self.home or self.paths.data
        shipped = pathlib.Path(__file__).parent / "playbooks"
        self.library = PlaybookLibrary(shipped, self.home / "playbooks")
        self.session = Session(self.home, self.say, self.refresh)
        self.selection = toga.Selection(
            items=[playbook.title for playbook in self.library.playbooks()], style=Pack(flex=1)
        )
        self.run_button = toga.Button("Run", on_press=self.run)
        self.stop_button = toga.Button("Stop", on_press=self.stop, enabled=False)
        self.output = toga.MultilineTextInput(readonly=True, style=Pack(flex=1, font_family="monospace"))
        self.status = toga.Label("ready")
        bar = toga.Box(children=[self.selection, self.run_button, self.stop_button])
        self.main_window = toga.MainWindow(title=self.formal_name)
        self.main_window.content = toga.Box(
            children=[bar, self.output, self.status], style=Pack(direction="column", margin=8)
        )
        self.main_window.show()

    def run(self, _button):
        self.output.value = ""
        chosen = self.selection.value
        self.task = self.session.start(
            next(playbook for playbook in self.library.playbooks() if playbook.title == chosen)
        )

    def stop(self, _button):
        self.session.stop()

    def say(self, text):
        self.output.value += text
        self.output.scroll_to_bottom()

    def refresh(self):
        self.status.text = self.session.verdict
        self.run_button.enabled = self.session.verdict not in ("running", "stopping")
        self.stop_button.enabled = self.session.verdict == "running"


def main(home=None):
    return ForklessApp("Forkless", "org.forkless.app", home=home)
