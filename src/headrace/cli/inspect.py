"""``headrace inspect``: what a dataset is, from its index and the beginning of one shard."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import add_store_arguments, show_examples, store_options

if TYPE_CHECKING:
    from headrace.inspect import Description

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'show the columns, sizes and first samples of a dataset; reads its index, and little of one shard'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the dataset and what to show."""
    parser.add_argument('url', help='folder or URL of the dataset')
    parser.add_argument(
        '--samples', type=int, default=3, metavar='N', help='first samples to show (default: %(default)s)'
    )
    parser.add_argument('--save', type=Path, metavar='DIR', help='folder for the pictures of these samples')
    parser.add_argument('--json', action='store_true', help='print JSON')
    add_store_arguments(parser)
    show_examples(
        parser,
        'headrace inspect s3://bucket/data/train',
        'headrace inspect ./data --samples 10 --save pictures',
        "headrace inspect gs://bucket/data --json | jq '.columns[].name'",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the description."""
    from headrace.inspect import describe, save_pictures

    description = describe(arguments.url, samples=arguments.samples, options=store_options(arguments))
    saved = [] if arguments.save is None else save_pictures(description, arguments.save)
    if arguments.json:
        paths = {} if arguments.save is None else {'saved': [str(path) for path in saved]}
        print(json.dumps({**description.to_json(), **paths}))
        return 0
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 100
    print('\n'.join(description.lines(width=width if is_terminal else None)))
    for number in range(len(description.samples)):
        print('\n' + '\n'.join(description.sample_lines(number, width=width)))
        if _has_colours():
            _print_thumbnails(description, number)
    if arguments.save is not None:
        print(f'\n{len(saved)} pictures saved in {arguments.save}')
    return 0


def _has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get('NO_COLOR') and os.environ.get('TERM', 'dumb') != 'dumb'


def _print_thumbnails(description: Description, number: int) -> None:
    from headrace.errors import MissingDependencyError
    from headrace.inspect import thumbnail

    for value in description.samples[number].values():
        for _, content in value.pictures[:1]:
            try:
                lines = thumbnail(content)
            except MissingDependencyError as error:
                lines = [str(error)]
            except Exception as error:  # Pillow raises errors of many classes for damaged pictures
                lines = [f'(no thumbnail: {type(error).__name__})']
            print('\n'.join(f'    {line}' for line in lines))
