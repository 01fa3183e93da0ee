"""``headrace init``: a first configuration and training script, from five questions."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.cli.arguments import count, printing_to_stderr, show_examples
from headrace.cli.first_script import FRAMEWORKS, training_script
from headrace.display import printable
from headrace.errors import ConfigError, HeadraceError
from headrace.redaction import redact

if TYPE_CHECKING:
    from headrace.cli.first_data import FirstData

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'ask five questions, and write a first configuration and a training script that runs'

_FILES: Final = ('config.yaml', 'train.py')
_PACKAGES: Final = {'pytorch': 'torch', 'lightning': 'lightning', 'composer': 'composer'}
_SIZE: Final = 64
"""Pixels of a side of the first model's images."""
_T = TypeVar('_T')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the answers that may be given before."""
    parser.add_argument('--data', metavar='PLACE', help='folder or URL of the data')
    parser.add_argument('--framework', choices=FRAMEWORKS, help='what trains (default with --yes: pytorch)')
    parser.add_argument('--batch-size', type=count, metavar='N', help='global batch (default with --yes: 32)')
    parser.add_argument('--local', metavar='DIR', help='cache of remote data (default with --yes: OUT/cache)')
    parser.add_argument('--out', type=Path, metavar='DIR', help='folder for the files (default with --yes: .)')
    parser.add_argument('--json', action='store_true', help='print JSON; questions go to stderr')
    parser.add_argument('--yes', action='store_true', help='ask nothing: take the defaults of what is not given')
    show_examples(
        parser,
        'headrace init',
        'headrace init --data s3://bucket/tokens --framework lightning --batch-size 64 --out first --yes',
        'headrace init --data pictures --yes && python train.py',
    )


def run(arguments: argparse.Namespace) -> int:
    """Ask, look at the data, and write."""
    with printing_to_stderr(arguments.json):
        found = _write(arguments)
    if arguments.json:
        print(redact(json.dumps(found)))
    return 0


def _write(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the files, and say so; returns what is said, for programs."""
    from headrace.storage.output import make_folder

    ask = _Questions(is_silent=arguments.yes)
    data = ask('Where is the data: a folder, or the URL of a bucket?', arguments.data, None, _look_at)
    print(_summary(data))
    framework = ask(f'What trains: {", ".join(FRAMEWORKS)}?', arguments.framework, 'pytorch', _framework)
    batch_size = ask('How many samples has a global batch?', arguments.batch_size, '32', count)
    local: str | None = arguments.local
    if data.is_remote and not data.needs_conversion:
        local = ask('In which folder is the cache? Empty: in the folder of the files.', local, '', str)
    elif local is not None:
        raise ConfigError('--local is the cache of remote data, but these are read where they are. Leave it out.')
    out = ask('In which folder shall the files be?', arguments.out, '.', _out).resolve()
    cache = Path(local).expanduser().resolve() if local else out / 'cache'
    texts = (_configuration(data, batch_size, cache, out), training_script(data, framework))
    make_folder(out)
    for name, text in zip(_FILES, texts, strict=True):
        with open(out / name, 'x', encoding='utf-8') as file:
            file.write(text)
    print(f'Wrote {printable(str(out / _FILES[0]))} and {_FILES[1]}.')
    package = _PACKAGES[framework]
    if importlib.util.find_spec(package) is None:
        print(f"{package} is not installed: pip install 'headrace[{framework}]'")
    commands = [f'python {shlex.quote(str(out / _FILES[1]))}']
    if data.needs_conversion:
        commands.insert(0, f'headrace convert {shlex.quote(data.place)} {shlex.quote(str(out / "shards"))}')
    print('\n  '.join(['Next:', *commands]))
    files = [str(out / name) for name in _FILES]
    return {'format': data.format, 'columns': dict(data.columns), 'files': files, 'next': commands}


class _Questions:
    """Questions on the terminal, or through a pipe; a wrong answer is followed by its rule and the same question."""

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent

    def __call__(self, question: str, given: Any, default: str | None, read: Callable[[str], _T]) -> _T:
        """The answer.

        Args:
            question: what to ask.
            given: the option's value; None: ask.
            default: the answer that an empty line stands for, and that is taken if nothing is asked; None: there is
                none.
            read: from the text to the answer; raises `HeadraceError`, `OSError` or `ArgumentTypeError` for a wrong one.
        """
        if given is not None or (self._is_silent and default is not None):
            answer = default if given is None else given
            return read(str(answer))
        if self._is_silent:
            raise ConfigError('With --yes nothing is asked, but where the data is has no default. Add --data PLACE.')
        shown = f'{question} [{default}] ' if default else f'{question} '
        while True:
            print(shown, end='', flush=True)
            line = sys.stdin.readline()
            if not line:
                raise ConfigError(
                    'headrace init asks questions, but its input has ended before the answers. Give the answers as '
                    'options, with --yes.'
                )
            text = line.strip() or default
            if text is None:
                continue
            try:
                return read(text)
            except (HeadraceError, OSError, argparse.ArgumentTypeError) as error:
                print(printable(redact(str(error)), keep='\n'))


def _look_at(place: str) -> FirstData:
    from headrace.cli.first_data import look_at

    return look_at(str(Path(place).expanduser()) if place.startswith('~') else place)


def _framework(text: str) -> str:
    if text.lower() not in FRAMEWORKS:
        raise ConfigError(f'The framework is one of {", ".join(FRAMEWORKS)}, but is {text!r:.80}.')
    return text.lower()


def _out(text: str) -> Path:
    """The folder, in which neither file exists."""
    from headrace.storage.output import check_output

    folder = Path(text).expanduser()
    check_output(folder)
    for path in (folder / name for name in _FILES):
        if path.exists():
            raise ConfigError(
                f'headrace init overwrites nothing, but {path} exists. Name another folder, or move the file.'
            )
    return folder


def _summary(data: FirstData) -> str:
    columns = ', '.join(f'{name}: {kind}' for name, kind in data.columns.items())
    return printable(redact(f'Found {data.format} with the columns {columns}.'))


def _configuration(data: FirstData, batch_size: int, cache: Path, out: Path) -> str:
    """The YAML file."""
    from headrace.config.resolver import yaml_text
    from headrace.storage.resolve import local_path

    path = local_path(data.place)
    if data.needs_conversion:
        place = {'local': str(out / 'shards')}
    elif path is not None:
        place = {'local': str(Path(path).resolve())}
    else:
        place = {'remote': data.place, 'local': str(cache)}
    crops: dict[str, object] = {'crop': 'random', 'flip': 0.5} if data.image is not None else {}
    decode = {'decode': {'size': _SIZE, **crops}} if data.has_images else {}
    head = '# Written by `headrace init`. docs/configuration.md has all keys; `headrace config check` finds mistakes.\n'
    return head + yaml_text({'global_batch_size': batch_size, 'train': {**place, 'shuffle': True, **decode}})
