"""``headrace inspect``: what a dataset is, from its index and the beginning of one shard."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from headrace.cli.arguments import add_store_arguments, show_examples, store_options

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
    from headrace.cli.previews import has_colours, print_thumbnails
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
        if has_colours():
            print_thumbnails(description.samples[number].values())
    if arguments.save is not None:
        print(f'\n{len(saved)} pictures saved in {arguments.save}')
    return 0
