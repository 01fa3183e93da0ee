"""``headrace convert``: other data as a dataset of MDS shards."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from headrace.cli.arguments import show_examples
from headrace.cli.originals import ORIGINALS
from headrace.errors import ConfigError

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'convert folders of images, Parquet, WebDataset, litdata, JSONL or CSV to a dataset of MDS shards'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare source, output, and settings."""
    parser.add_argument('source', help=f'folder or URL of the data; or one of {", ".join(ORIGINALS)}, then IN and OUT')
    parser.add_argument('out', help='folder or URL of the new dataset')
    parser.add_argument(
        '-j', '--workers', type=int, default=1, help='processes; the dataset is the same for any number'
    )
    parser.add_argument('--columns', help='columns to convert: a,b; with other encodings: a=str,b=ndarray:float32')
    parser.add_argument('--format', help='format of the data; by default found by the names of the files')
    parser.add_argument('--split', help='sub-folder, or files with this name, such as train')
    parser.add_argument('--compression', help='zstd, zstd:7, br, bz2, gz or snappy')
    parser.add_argument('--hashes', help='hashes in the index, such as xxh64, or sha1,xxh64')
    parser.add_argument('--size-limit', default='64mb', help='bytes of a shard before compression')
    parser.add_argument(
        '--on-error',
        choices=['stop', 'skip', 'collect'],
        default='stop',
        help='for a bad input: stop, leave it out, or leave it out and list it in errors.jsonl',
    )
    parser.add_argument('--limit', type=int, help='number of rows to convert, from the first')
    parser.add_argument('--exist-ok', action='store_true', help='empty OUT if it holds something')
    parser.add_argument('--append', action='store_true', help='add to the finished dataset that OUT holds')
    parser.add_argument(
        '--allow-unsafe-types', action='store_true', help='read columns that run code, such as pickles of litdata'
    )
    parser.add_argument('--json', action='store_true', help='print the report as JSON')
    show_examples(
        parser,
        'headrace convert pictures s3://bucket/shards -j 16',
        'headrace convert data.parquet shards --compression zstd --columns text,label',
        'headrace convert day2.jsonl shards --append',
        'headrace convert imagenet --help      # the options of a known dataset',
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert; the bar goes to stderr, the report to stdout."""
    from headrace.convert import convert
    from headrace.convert.report import command_errors, report_lines

    columns = None if arguments.columns is None else _columns(arguments.columns)
    with command_errors():
        report = convert(
            arguments.source,
            arguments.out,
            columns=columns,
            format=arguments.format,
            split=arguments.split,
            workers=arguments.workers,
            on_error=arguments.on_error,
            compression=arguments.compression,
            hashes=None if arguments.hashes is None else sorted(arguments.hashes.split(',')),
            size_limit=arguments.size_limit,
            limit=arguments.limit,
            exist_ok=arguments.exist_ok,
            append=arguments.append,
            allow_unsafe_types=arguments.allow_unsafe_types,
            progress_bar=not arguments.json and sys.stderr.isatty(),
        )
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report)))
    else:
        print('\n'.join(report_lines(report)))
    return 0


def _columns(text: str) -> dict[str, str] | list[str]:
    """The columns of ``a,b`` or ``a=str,b=ndarray:float32:2,3``."""
    # A comma inside of an encoding is followed by a digit.
    parts: list[str] = []
    for part in text.split(','):
        if parts and '=' in parts[-1] and part.isdigit():
            parts[-1] += f',{part}'
        else:
            parts.append(part)
    with_encoding = [part for part in parts if '=' in part]
    if not with_encoding:
        return parts
    if len(with_encoding) < len(parts):
        plain = next(part for part in parts if '=' not in part)
        raise ConfigError(f'--columns gives an encoding for all columns or for none, but got {plain!r} without one.')
    return dict(part.split('=', 1) for part in parts)
