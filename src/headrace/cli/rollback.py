"""``headrace rollback``: the indexes that merges and appends replaced, and a way back."""

from __future__ import annotations

import argparse
import dataclasses
import json

from headrace.cli.arguments import add_store_arguments, show_examples, store_options
from headrace.display import printable
from headrace.redaction import without_credentials

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'list the indexes that a merge or an append replaced, or bring one back; moves no data'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the dataset and the index."""
    parser.add_argument('out', help='folder or URL of the dataset')
    parser.add_argument('--to', metavar='NAME', help='the index to bring back (default: list them)')
    parser.add_argument('--json', action='store_true', help='print JSON')
    add_store_arguments(parser)
    show_examples(parser, 'headrace rollback ./data', 'headrace rollback ./data --to index.00001.json')


def run(arguments: argparse.Namespace) -> int:
    """List, or replace the index and print the name of the replaced one."""
    from headrace.convert import kept_indexes, rollback

    options, out = store_options(arguments), without_credentials(arguments.out)
    if arguments.to is None:
        found = kept_indexes(arguments.out, options=options)
        lines = [f'{kept.name}: {kept.samples:,} samples in {kept.shards:,} shards' for kept in found]
        lines = lines or [f'{out} has no index that was replaced.']
    else:
        found = [rollback(arguments.out, arguments.to, options=options)]
        lines = [f'{out} has the index {arguments.to} again. The replaced one is {found[0].name}.']
    if arguments.json:
        print(json.dumps([dataclasses.asdict(kept) for kept in found]))
    else:
        print(printable('\n'.join(lines), keep='\n'))
    return 0
