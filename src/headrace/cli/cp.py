"""``headrace cp``: a whole dataset from one store to another."""

from __future__ import annotations

import argparse
import json

from headrace.cli.arguments import add_two_stores, count, show_examples, shown_progress, store_options
from headrace.display import human_size, printable

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'copy a dataset to another folder or store, verified; again after a kill, it copies what is missing'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare source and destination."""
    parser.add_argument('source', help='folder or URL of the dataset')
    parser.add_argument('destination', help='folder or URL of the copy')
    parser.add_argument('--overwrite', action='store_true', help='replace another dataset at the destination')
    parser.add_argument(
        '-j', '--jobs', type=count, default=8, metavar='N', help='concurrent files (default: %(default)s)'
    )
    add_two_stores(parser, to='the destination')
    show_examples(
        parser,
        'headrace cp ./data s3://bucket/data',
        'headrace cp s3://bucket/data gs://other/data -j 32',
        'headrace cp s3://old/data s3://new/data --to-endpoint-url http://minio:9000',
    )


def run(arguments: argparse.Namespace) -> int:
    """Copy, and print what was done."""
    from headrace.convert import copy_dataset

    with shown_progress('copy', unit='B', unit_scale=True, unit_divisor=1024) as show:
        report = copy_dataset(
            arguments.source,
            arguments.destination,
            overwrite=arguments.overwrite,
            jobs=arguments.jobs,
            source_options=store_options(arguments),
            options=store_options(arguments, 'to-'),
            progress=show,
        )
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        there = report.files - report.copied
        print(
            printable(
                f'{report.destination}: copied {report.copied:,} files ({human_size(report.bytes)}), '
                f'{there:,} were there.'
            )
        )
    return 0
