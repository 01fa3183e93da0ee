"""The ``headrace`` command: modules of this package declare and run its subcommands."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Sequence
from typing import Any

import headrace
from headrace.cli import config, datasets, explain, init, inspect, prepare, run
from headrace.cli.arguments import CommandParser
from headrace.cli.commands import COMMANDS, GROUPS
from headrace.errors import HeadraceError
from headrace.errors.display import printable
from headrace.errors.redaction import redact

__all__ = ['COMMANDS', 'main']

_MODULES = (config, datasets, explain, init, inspect, prepare, run)  # each declares its commands when it is imported


def _grouped_commands() -> str:
    width = min(shutil.get_terminal_size().columns, 110) - 2
    lines: list[str] = []
    for group, commands in GROUPS.items():
        lines += ['', f'to {group}:']
        for name, text in commands.items():
            lines += textwrap.wrap(f'{name:16}{text}', width, initial_indent='  ', subsequent_indent=' ' * 18)
    return '\n'.join([*lines[1:], '', '`headrace COMMAND --help` shows the options and examples of a command.'])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments``, those of this process by default; returns the exit status."""
    parser = CommandParser(
        prog='headrace',
        description='Feeds training data to PyTorch: in the same order on any number of GPUs, from any point.',
        epilog=_grouped_commands(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--version', action='version', version=f'headrace {headrace.__version__}')
    arguments, commands = list(sys.argv[1:] if arguments is None else arguments), dict(COMMANDS)
    if arguments[:1] == ['convert'] and arguments[1:2] and arguments[1] in datasets.ORIGINALS:
        # Each known dataset has a separate command and options.
        commands['convert ' + arguments[1]] = datasets.original_command(arguments[1])
        arguments[:2] = ['convert ' + arguments[1]]
    subparsers = parser.add_subparsers(dest='command', metavar='COMMAND', required=True, help='one of those below')
    for name, command in commands.items():
        # `completion` looks for a line of help here; `--help` has it in a group.
        line: dict[str, Any] = {'help': command.help} if arguments[:1] == ['completion'] else {}
        subparser = subparsers.add_parser(
            name,
            paths=parser.paths,
            description=command.help,
            **line,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        command.add_arguments(subparser)
        if command.json is not None:
            subparser.add_argument('--json', action='store_true', help=command.json)
    parser.set_defaults(parser=parser)  # for `completion`
    parsed, rest = parser.parse_known_args(arguments)
    # argparse takes all KEY=VALUE from one place only; here they may stand before and after the options.
    if rest and (not hasattr(parsed, 'overrides') or any(text.startswith('-') for text in rest)):
        parser.error(f'unrecognized arguments: {" ".join(rest)}')
    if rest:
        parsed.overrides += rest
    if threading.current_thread() is threading.main_thread():
        # SIGTERM acts like Ctrl-C, so that child processes end with the command.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = commands[parsed.command].run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`). The rest is discarded, also when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (HeadraceError, OSError) as error:
        # Names come from the files of others, and a terminal obeys control characters.
        print(printable(redact(f'headrace: {error}'), keep='\n'), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status
