"""``headrace reshard``: the same samples in other shards."""

from __future__ import annotations

import argparse
import json

from headrace.cli.arguments import add_two_stores, show_examples, shown_progress, store_options
from headrace.display import printable

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'write a dataset again with other shard sizes, compression, columns or order; images are not encoded again'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare source, output and what changes."""
    parser.add_argument('source', help='folder or URL of the dataset')
    parser.add_argument('out', help='folder or URL of the new dataset')
    parser.add_argument(
        '--size-limit', default='same', metavar='SIZE', help="bytes of a shard, such as 32mb (default: the source's)"
    )
    parser.add_argument(
        '--compression', default='same', metavar='NAME', help="such as zstd:3, or none (default: the source's)"
    )
    parser.add_argument('--hashes', metavar='A,B', help="checksums, such as xxh64, or none (default: the source's)")
    parser.add_argument('--columns', metavar='A,B', help='columns to keep (default: all)')
    parser.add_argument(
        '--order', choices=['stored', 'shuffled'], default='stored', help='order of the samples (default: %(default)s)'
    )
    parser.add_argument('--seed', type=int, default=0, help='of the shuffle (default: %(default)s)')
    parser.add_argument('--overwrite', action='store_true', help='empty OUT if it holds something')
    parser.add_argument('--resume', action='store_true', help='continue a killed call with the same arguments')
    add_two_stores(parser, to='the output')
    show_examples(
        parser,
        'headrace reshard s3://bucket/data ./data --size-limit 32mb --compression zstd:3',
        'headrace reshard ./data ./small --columns text,label --order shuffled --seed 1',
    )


def run(arguments: argparse.Namespace) -> int:
    """Write, and print what was written."""
    from headrace.convert import reshard

    with shown_progress('reshard', unit=' samples') as show:
        report = reshard(
            arguments.source,
            arguments.out,
            size_limit=arguments.size_limit,
            compression=None if arguments.compression == 'none' else arguments.compression,
            hashes=_names(arguments.hashes),
            columns=_names(arguments.columns),
            order=arguments.order,
            seed=arguments.seed,
            exist_ok=arguments.overwrite,
            resume=arguments.resume,
            source_options=store_options(arguments),
            options=store_options(arguments, 'to-'),
            progress=show,
        )
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        print(printable(f'{report.out}: {report.samples:,} samples with the columns {", ".join(report.columns)}'))
    return 0


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [] if text == 'none' else text.split(',')
