"""``headrace verify``: whether every shard of a dataset is what the index says, and every sample can be read."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from headrace.cli.arguments import add_store_arguments, count, show_examples, store_options
from headrace.display import printable
from headrace.errors import HeadraceError

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'check sizes, checksums, offsets and every sample of a dataset'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the dataset and how to check it."""
    parser.add_argument('url', help='folder or URL of the dataset')
    parser.add_argument('--fast', action='store_true', help='check only that the files are there, in the right sizes')
    parser.add_argument('-j', '--jobs', type=count, metavar='N', help='processes (default: one a CPU, 8 at most)')
    parser.add_argument('--state', type=Path, metavar='FILE', help='note passed shards here, and pass over noted ones')
    parser.add_argument('--json', action='store_true', help='print JSON')
    add_store_arguments(parser)
    show_examples(
        parser,
        'headrace verify s3://bucket/data/train --state verified.txt',
        'headrace verify ./data -j 16 --json',
        'headrace verify s3://bucket/data/train --fast',
        status='Exit status: 0, everything is right; 1, a shard is bad; 2, not all shards could be read, or wrong '
        'arguments.',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    from tqdm import tqdm

    from headrace.inspect import verify

    with tqdm(desc='verify', unit=' shards', disable=not sys.stderr.isatty()) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        try:
            report = verify(
                arguments.url,
                fast=arguments.fast,
                jobs=arguments.jobs,
                state=arguments.state,
                options=store_options(arguments),
                progress=show,
            )
        except HeadraceError as error:
            bar.close()
            print(printable(f'headrace: {error}'), file=sys.stderr)
            return 2
    print(json.dumps(report.to_json()) if arguments.json else report)
    return 1 if report.damaged else 0 if report.is_good else 2
