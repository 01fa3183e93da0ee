"""The ``headrace`` command: one module declares and runs each subcommand."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

import headrace
from headrace.cli import (
    bench,
    cache,
    completion,
    config,
    convert,
    convert_config,
    cp,
    demo,
    doctor,
    explain,
    init,
    inspect,
    merge,
    reshard,
    rollback,
    run,
    simulate,
    skip,
    tune,
    verify,
    warm,
    watch,
)
from headrace.cli.arguments import CommandParser
from headrace.cli.originals import ORIGINALS, OriginalCommand
from headrace.display import printable
from headrace.errors import HeadraceError
from headrace.redaction import redact

__all__ = ['COMMANDS', 'Command', 'main']


class Command(Protocol):
    """A subcommand: a module of this package. Importing it must be cheap; ``run`` imports what the work needs."""

    @property
    def HELP(self) -> str:  # noqa: N802 - a module's constant
        """One line, for ``headrace --help``."""
        ...

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the subcommand; returns the exit status."""
        ...


COMMANDS: dict[str, Command] = {
    'bench': bench,
    'cache': cache,
    'completion': completion,
    'config': config,
    'convert': convert,
    'convert-config': convert_config,
    'cp': cp,
    'demo': demo,
    'doctor': doctor,
    'explain': explain,
    'init': init,
    'inspect': inspect,
    'merge': merge,
    'reshard': reshard,
    'rollback': rollback,
    'run': run,
    'simulate': simulate,
    'skip': skip,
    'tune': tune,
    'verify': verify,
    'warm': warm,
    'watch': watch,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments``, those of this process by default; returns the exit status."""
    parser = CommandParser(
        prog='headrace', description='Feeds training data from object storage to PyTorch, in one order, from any point.'
    )
    parser.add_argument('--version', action='version', version=f'headrace {headrace.__version__}')
    arguments, commands = list(sys.argv[1:] if arguments is None else arguments), dict(COMMANDS)
    if arguments[:1] == ['convert'] and arguments[1:2] and arguments[1] in ORIGINALS:
        # Each known dataset has a separate command and options.
        commands['convert ' + arguments[1]] = OriginalCommand(arguments[1])
        arguments[:2] = ['convert ' + arguments[1]]
    subparsers = parser.add_subparsers(dest='command', metavar='COMMAND', required=True)
    for name, command in commands.items():
        subparser = subparsers.add_parser(
            name,
            paths=parser.paths,
            help=command.HELP,
            description=command.HELP,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        command.add_arguments(subparser)
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
