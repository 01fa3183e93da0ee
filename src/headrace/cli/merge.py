"""``headrace merge``: one index for a dataset that was written in parts."""

from __future__ import annotations

import argparse
import json

from headrace.cli.arguments import add_store_arguments, show_examples, store_options
from headrace.display import printable
from headrace.redaction import without_credentials

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'write one index for a dataset that was written in parts, each with an index of its own; moves no data'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the dataset and its parts."""
    parser.add_argument('out', help='folder or URL above the parts, which gets the merged index')
    parser.add_argument(
        'indexes',
        nargs='*',
        metavar='INDEX',
        help='index.json of each part, in this order (default: all below OUT, in the order of their paths)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON')
    add_store_arguments(parser)
    show_examples(
        parser,
        'headrace merge s3://bucket/data',
        'headrace merge ./data ./data/night/index.json ./data/day/index.json',
    )


def run(arguments: argparse.Namespace) -> int:
    """Merge, and print the size of the whole."""
    from headrace.convert import merge_index
    from headrace.convert.stored_dataset import open_stored

    options = store_options(arguments)
    if arguments.indexes:
        merge_index(arguments.indexes, arguments.out, store_options=options)
    else:
        merge_index(arguments.out, store_options=options)
    shards = open_stored(arguments.out, options).shards
    samples = int(shards.samples.sum())
    out = without_credentials(arguments.out)
    if arguments.json:
        print(json.dumps({'out': out, 'shards': len(shards), 'samples': samples}))
    else:
        print(printable(f'{out}: {len(shards):,} shards with {samples:,} samples'))
    return 0
