# SPDX-License-Identifier: GPL-3.0-or-later
"""forkless completion: shell completion of commands and flags; Ansible's flags are read from Ansible's own parsers."""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import dataclass

from forkless.cli import COMMANDS
from forkless.cli.command_flags import add_slice_flags

__all__ = ["Flag", "flags", "main", "script"]

EXAMPLES = """\
examples:
  source <(forkless completion bash)                                        this shell; put it into ~/.bashrc to keep it
  forkless completion zsh > ~/.zfunc/_forkless                              with ~/.zfunc in fpath, before compinit
  forkless completion fish > ~/.config/fish/completions/forkless.fish
"""

# Commands that have commands of their own.
_GROUPS = ("jobs", "runs", "schedule", "queue", "users")
# Flags with one of these words take a file. Ansible's parsers have no such information.
_FILES = ("inventory", "file", "path", "dir", "key", "report")


@dataclass(frozen=True)
class Flag:
    """One flag: its names, its help, and its argument."""

    names: tuple[str, ...]
    text: str
    value: str = ""
    """"" for none, "file", "any", or the choices with spaces between."""


def _flag(action: argparse.Action) -> Flag:
    value = ""
    if action.nargs != 0:
        path = any(word in name for name in action.option_strings for word in _FILES)
        value = " ".join(map(str, action.choices)) if action.choices else "file" if path else "any"
    text = "" if action.help in (None, argparse.SUPPRESS) else " ".join(str(action.help).replace("%%", "%").split())
    return Flag(tuple(action.option_strings), text.split(" (default")[0].partition(". ")[0][:90], value)


def _of(parser: argparse.ArgumentParser) -> list[Flag]:
    return [_flag(action) for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]


def _ansible(command: str) -> list[Flag]:
    from forkless.engines.threads import importing

    importing.import_ansible(ours=False)
    from forkless.cli.ansible_command import NAMES, add_flags
    from forkless.engines.threads.terminal_command import ansible_class

    made = ansible_class(next(name for name, ours in NAMES.items() if ours == command))([command])
    made.init_parser()
    if command != "console":
        add_flags(made.parser)
    return _of(made.parser)


def flags() -> dict[str, list[Flag]]:
    """The flags of every command; subcommands have keys like `jobs list`."""
    found = {name: _ansible(name) for name in ("playbook", "adhoc", "console")}
    slices = argparse.ArgumentParser(add_help=False)
    add_slice_flags(slices)
    found["playbook"] += _of(slices)
    for name in ("exec", "shim", "run", "watch", "launch", "worker", "serve", "doctor", "completion"):
        found[name] = _of(importlib.import_module(f"forkless.cli.commands.{name}").parser())
    for name in _GROUPS:
        module = importlib.import_module(f"forkless.cli.commands.{name}")
        made = module._parser() if name == "jobs" else module.parser()
        found[name] = _of(made)
        for action in made._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {f"{name} {one}": _of(sub) for one, sub in action.choices.items()}
    return found


def _subcommands(found: dict[str, list[Flag]], group: str) -> str:
    return " ".join(name.split()[1] for name in found if name.startswith(f"{group} "))


def script(shell: str) -> str:
    made: str = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](flags())
    return made


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _bash(found: dict[str, list[Flag]]) -> str:
    cases, files, choices = [], set(), []
    for command, its in found.items():
        words = " ".join(name for flag in its for name in flag.names)
        cases.append(f"    {_quoted(command)}) words={_quoted(words)} ;;")
        for flag in its:
            if flag.value == "file":
                files |= set(flag.names)
            elif flag.value not in ("", "any"):
                case = "|".join(_quoted(f"{command} {name}") for name in flag.names)
                choices.append(f'    {case}) COMPREPLY=($(compgen -W {_quoted(flag.value)} -- "$cur")); return ;;')
    groups = "".join(
        f"""
  if [ "$command" = {group} ]; then
    if [ "$COMP_CWORD" -eq 2 ]; then COMPREPLY=($(compgen -W {_quoted(_subcommands(found, group) + " --help")} -- "$cur")); return; fi
    command="{group} ${{COMP_WORDS[2]}}"
  fi"""
        for group in _GROUPS
    )
    return f"""\
# completions for forkless; made by `forkless completion bash`
_forkless() {{
  local cur prev command words
  COMPREPLY=()
  cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {_quoted(" ".join(COMMANDS) + " --help --version")} -- "$cur")); return
  fi
  command=${{COMP_WORDS[1]}}{groups}
  if [ "$command" = completion ]; then COMPREPLY=($(compgen -W 'bash zsh fish --help' -- "$cur")); return; fi
  case "$command $prev" in
{chr(10).join(choices)}
  esac
  case "$prev" in {"|".join(sorted(files))}) COMPREPLY=($(compgen -f -- "$cur")); return ;; esac
  case "$command" in
{chr(10).join(cases)}
  esac
  case "$cur" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
  esac
}}
complete -o filenames -F _forkless forkless
"""


def _zsh(found: dict[str, list[Flag]]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "").replace("[", "(").replace("]", ")").replace(":", " ").replace("'", "")

    def arguments(its: list[Flag], *, files: bool) -> str:
        lines = []
        for flag in its:
            after = {"": "", "file": ":file:_files", "any": ":value:"}.get(flag.value, f":value:({flag.value})")
            lines += [f"      '*{name}[{escaped(flag.text)}]{after}'" for name in flag.names]
        return " \\\n".join(lines + (["      '*:file:_files'"] if files else []))

    cases = [
        f"    {name}) _arguments -S \\\n{arguments(its, files=name in ('playbook', 'run', 'launch'))} ;;"
        for name, its in found.items()
        if " " not in name and name not in (*_GROUPS, "completion")
    ]
    for group in _GROUPS:
        subs = _subcommands(found, group)
        sub_cases = [
            f"        {name}) _arguments -S \\\n{arguments(found[f'{group} {name}'], files=False)} ;;"
            for name in subs.split()
        ]
        cases.append(f"""\
    {group})
      if (( CURRENT == 2 )); then _values command {subs}; return; fi
      local sub=$words[2]
      shift words
      (( CURRENT-- ))
      case $sub in
{chr(10).join(sub_cases)}
      esac ;;""")
    commands = " ".join(_quoted(f"{name}:{escaped(what)}") for name, what in COMMANDS.items())
    return f"""\
#compdef forkless
# completions for forkless; made by `forkless completion zsh`
_forkless() {{
  local -a commands
  commands=({commands})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
    completion) _values shell bash zsh fish ;;
  esac
}}
if [ "$funcstack[1]" = "_forkless" ]; then _forkless "$@"; else compdef _forkless forkless; fi
"""


def _fish(found: dict[str, list[Flag]]) -> str:
    lines = ["# completions for forkless; made by `forkless completion fish`", "complete -c forkless -e"]
    first = "__fish_use_subcommand"
    lines += [f"complete -c forkless -n {first} -f -a {name} -d {_quoted(what)}" for name, what in COMMANDS.items()]
    for group in _GROUPS:
        subs = _subcommands(found, group)
        lines.append(
            f"complete -c forkless -n '__fish_seen_subcommand_from {group}; and not __fish_seen_subcommand_from {subs}' -f -a '{subs}'"
        )
    lines.append("complete -c forkless -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'")
    for command, its in found.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        for flag in its:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"
                for name in flag.names
            )
            after = {"": "", "file": " -r", "any": " -x"}.get(flag.value, f" -x -a {_quoted(flag.value)}")
            lines.append(f"complete -c forkless -n {_quoted(seen)} {names}{after} -d {_quoted(flag.text)}")
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="forkless completion",
        description="Print completions for a shell: commands, our flags, and Ansible's own.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("shell", choices=["bash", "zsh", "fish"])
    return made


def main(argv: list[str]) -> int:
    sys.stdout.write(script(parser().parse_args(argv).shell))
    return 0
