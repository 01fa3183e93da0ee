"""``headrace completion``: the script with which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
import json
from typing import Any, cast

from headrace.cli.arguments import CommandParser, show_examples

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'print a script with which bash, zsh or fish completes commands, options and files'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.add_argument('shell', choices=['bash', 'zsh', 'fish', 'tcsh'], help='the shell that reads the script')
    parser.add_argument('--json', action='store_true', help='print JSON, with the script as a text')
    show_examples(
        parser,
        'headrace completion bash > ~/.local/share/bash-completion/completions/headrace',
        'headrace completion zsh > ~/.zfunc/_headrace        # with: fpath+=~/.zfunc; compinit',
        'headrace completion fish > ~/.config/fish/completions/headrace.fish',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    parser: CommandParser = arguments.parser
    for action in parser.paths:
        cast('Any', action).complete = shtab.FILE
    script = shtab.complete(parser, arguments.shell)
    print(json.dumps({'shell': arguments.shell, 'script': script}) if arguments.json else script)
    return 0
