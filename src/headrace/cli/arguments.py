"""Arguments that commands share: the options of a store, and the examples of ``--help``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from headrace.storage import StoreOptions

__all__ = [
    'STATUS',
    'CommandParser',
    'add_store_arguments',
    'add_two_stores',
    'count',
    'printing_to_stderr',
    'show_examples',
    'shown_progress',
    'store_options',
]

STATUS: Final = 'Exit status: 0, done; 1, an error, in one line on stderr; 2, wrong arguments.'


class CommandParser(argparse.ArgumentParser):
    """A parser that remembers its arguments that are paths, for the completion of shells.

    Args:
        paths: list to add them to, such as that of all commands.
    """

    def __init__(self, *args: Any, paths: list[argparse.Action] | None = None, **options: Any) -> None:
        self.paths = [] if paths is None else paths
        super().__init__(*args, **options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Declare an argument, as argparse does; the help names its default, if it has one."""
        text, default = options.get('help'), options.get('default')
        if text and 'default' not in text and default not in (None, False, '', argparse.SUPPRESS) and default != []:
            options['help'] = f'{text} (default: {str(default).replace("%", "%%")})'
        action = super().add_argument(*names, **options)
        if action.choices is None and action.nargs != 0 and (action.type is Path or not action.option_strings):
            self.paths.append(action)
        return action


def show_examples(parser: argparse.ArgumentParser, *examples: str, status: str = STATUS) -> None:
    """Have ``--help`` end with examples and the exit status."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # keeps the lines of the epilog
    parser.epilog = '\n'.join(['examples:', *(f'  {example}' for example in examples), '', status])


def add_store_arguments(parser: argparse.ArgumentParser, prefix: str = '', of: str = 'the store') -> None:
    """Declare how to reach a store.

    Args:
        parser: the command's.
        prefix: for the second store of a command, as in ``--to-region``.
        of: the store, for the help.
    """
    parser.add_argument(f'--{prefix}endpoint-url', metavar='URL', help=f"server of {of}, if not the vendor's own")
    parser.add_argument(f'--{prefix}region', help=f'region of {of}')
    parser.add_argument(f'--{prefix}anonymous', action='store_true', help=f'send unsigned requests to {of}')
    parser.add_argument(
        f'--{prefix}store-option',
        action='append',
        default=[],
        metavar='KEY=VALUE',
        help=f'an option of {of}, such as profile=x: docs/stores.md lists them; may be repeated',
    )


def add_two_stores(parser: argparse.ArgumentParser, *, to: str) -> None:
    """Declare how to reach the source and, with the prefix ``to-``, another store; and ``--json``."""
    parser.add_argument('--json', action='store_true', help='print JSON')
    add_store_arguments(parser, of='the source')
    add_store_arguments(parser, 'to-', of=to)


@contextlib.contextmanager
def printing_to_stderr(is_json: bool = True) -> Generator[None]:
    """Under ``--json`` send to stderr what is printed meanwhile, also by child processes: stdout is for the JSON."""
    if not is_json:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


@contextlib.contextmanager
def shown_progress(what: str, **unit: Any) -> Generator[Callable[[int, int | None], None]]:
    """A bar on stderr, if that is a terminal. Gives a function of what is done and of the whole; None: unknown."""
    from tqdm import tqdm

    with tqdm(desc=what, disable=not sys.stderr.isatty(), **unit) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def store_options(arguments: argparse.Namespace, prefix: str = '') -> StoreOptions:
    """The options that `add_store_arguments` declared.

    Raises:
        ConfigError: an option has no value.
    """
    from headrace.storage import StoreOptions

    name = prefix.replace('-', '_')
    extra: dict[str, object] = {}
    for text in getattr(arguments, f'{name}store_option'):
        key, found, value = text.partition('=')
        if not found or not key:
            raise ConfigError(f'--{prefix}store-option is KEY=VALUE, such as profile=x, got {text!r}.')
        extra[key] = int(value) if value.isdecimal() else value
    return StoreOptions(
        endpoint_url=getattr(arguments, f'{name}endpoint_url'),
        region=getattr(arguments, f'{name}region'),
        anonymous=getattr(arguments, f'{name}anonymous'),
        extra=extra,
    )


def count(text: str) -> int:
    """The type of an argument that is a number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a number from 1, got {text!r}')
    return int(text)
