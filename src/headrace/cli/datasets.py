"""Commands that write datasets: `cp`, `erase`, `merge`, `reshard`, `rollback`, `convert` and `tokenize`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import (
    add_format_arguments,
    add_store_arguments,
    add_two_stores,
    count,
    given,
    names,
    print_answer,
    show_examples,
    shown_progress,
    store_options,
)
from headrace.cli.commands import Command, command
from headrace.errors import ConfigError
from headrace.errors.display import count_text, human_size, printable
from headrace.errors.redaction import without_credentials
from headrace.originals.original import add_arguments, run
from headrace.originals.table import ORIGINALS

if TYPE_CHECKING:
    from headrace.convert import ConversionReport


def _add_cp(parser: argparse.ArgumentParser) -> None:
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


@command('cp', _add_cp)
def _run_cp(arguments: argparse.Namespace) -> int:
    from headrace.convert import copy_dataset

    with shown_progress('copy', unit='B', unit_scale=True, unit_divisor=1024) as show:
        report = copy_dataset(**given(arguments, copy_dataset), progress=show)
    there = report.files - report.copied
    copied = f'{count_text(report.copied, "file")} ({human_size(report.bytes)})'
    text = f'{report.destination}: copied {copied}, {there:,} were there.'
    print_answer(arguments, report.to_json(), printable(text))
    return 0


def _add_erase(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('dataset', help='folder or URL of a dataset of MDS shards')
    parser.add_argument('--ids', type=Path, required=True, metavar='FILE', help='text file with one id in each line')
    parser.add_argument('--column', default='id', help='column of the ids (default: %(default)s)')
    parser.add_argument('--keep', type=names, default=[], metavar='A,B', help='columns whose values stay')
    parser.add_argument(
        '--cache',
        dest='caches',
        action='append',
        default=[],
        metavar='DIR',
        help='folder with more caches of this machine to clean',
    )
    parser.add_argument('--dry-run', action='store_true', help='write nothing; say how many samples would be erased')
    parser.add_argument('--resume', action='store_true', help='take over from a killed call on another machine')
    parser.add_argument('-j', '--jobs', type=count, default=8, metavar='N', help='concurrent shards (default: 8)')
    add_store_arguments(parser)
    show_examples(
        parser,
        'headrace erase ./data --ids ids.txt --dry-run',
        'headrace erase s3://bucket/data --ids ids.txt --column user --keep lang,tokens --cache /scratch/cache',
    )


@command('erase', _add_erase)
def _run_erase(arguments: argparse.Namespace) -> int:
    from headrace.convert import erase

    try:
        ids = arguments.ids.read_text(encoding='utf-8-sig').split('\n')
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'--ids is a UTF-8 text of one id in each line, but {arguments.ids}: {error}.') from error
    arguments.ids = [line.removesuffix('\r') for line in ids if line.strip()]
    with shown_progress('erase', unit=' shards') as show:
        report = erase(**given(arguments, erase), progress=show)
    done = 'would be erased' if arguments.dry_run else 'erased'
    samples, shards = count_text(report.samples, 'sample'), count_text(report.shards, 'shard')
    lines = [f'{report.dataset}: {samples} in {shards} {done}.']
    if report.missing:
        it, be = ('it', 'it is') if report.missing == 1 else ('them', 'they are')
        lines.append(f'{count_text(report.missing, "id")} not found: no sample has {it}, or {be} erased already.')
    lines += [f'Cleaned the cache {folder}.' for folder in report.caches]
    for folder in arguments.caches if not arguments.dry_run else ():
        if not any(Path(cache).is_relative_to(folder) for cache in report.caches):
            lines.append(f'{folder} holds no cache of it that headrace has made.')
    print_answer(arguments, dataclasses.asdict(report), printable('\n'.join(lines), keep='\n'))
    return 0


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('out', help='folder or URL above the parts, which gets the merged index')
    parser.add_argument(
        'indexes',
        nargs='*',
        metavar='INDEX',
        help='index.json of each part, in this order (default: all below OUT, in the order of their paths)',
    )
    add_store_arguments(parser)
    show_examples(
        parser, 'headrace merge s3://bucket/data', 'headrace merge ./data ./data/night/index.json ./data/day/index.json'
    )


@command('merge', _add_merge)
def _run_merge(arguments: argparse.Namespace) -> int:
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
    text = f'{out}: {count_text(len(shards), "shard")} with {count_text(samples, "sample")}'
    print_answer(arguments, {'out': out, 'shards': len(shards), 'samples': samples}, printable(text))
    return 0


def _add_reshard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('source', help='folder or URL of the dataset')
    parser.add_argument('out', help='folder or URL of the new dataset')
    parser.add_argument(
        '--size-limit', default='same', metavar='SIZE', help="bytes of a shard, such as 32mb (default: the source's)"
    )
    parser.add_argument(
        '--compression', default='same', metavar='NAME', help="such as zstd:3, or none (default: the source's)"
    )
    parser.add_argument(
        '--hashes', type=names, metavar='A,B', help="checksums, such as xxh64, or none (default: the source's)"
    )
    parser.add_argument('--columns', type=names, metavar='A,B', help='columns to keep (default: all)')
    parser.add_argument(
        '--order', choices=['stored', 'shuffled'], default='stored', help='order of the samples (default: %(default)s)'
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of the shuffle (default: %(default)s)')
    parser.add_argument('--overwrite', dest='exist_ok', action='store_true', help='empty OUT if it holds something')
    parser.add_argument('--resume', action='store_true', help='continue a killed call with the same arguments')
    add_two_stores(parser, to='the output')
    show_examples(
        parser,
        'headrace reshard s3://bucket/data ./data --size-limit 32mb --compression zstd:3',
        'headrace reshard ./data ./small --columns text,label --order shuffled --seed 1',
    )


@command('reshard', _add_reshard)
def _run_reshard(arguments: argparse.Namespace) -> int:
    from headrace.convert import reshard

    if arguments.compression == 'none':
        arguments.compression = None
    with shown_progress('reshard', unit=' samples') as show:
        report = reshard(**given(arguments, reshard), progress=show)
    erased = f'; {count_text(report.erased, "erased sample")} left out' if report.erased else ''
    text = f'{report.out}: {count_text(report.samples, "sample")} with the columns {", ".join(report.columns)}{erased}'
    print_answer(arguments, report.to_json(), printable(text))
    return 0


def _add_rollback(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('out', help='folder or URL of the dataset')
    parser.add_argument('--to', metavar='NAME', help='the index to bring back (default: list them)')
    add_store_arguments(parser)
    show_examples(parser, 'headrace rollback ./data', 'headrace rollback ./data --to index.00001.json')


@command('rollback', _add_rollback)
def _run_rollback(arguments: argparse.Namespace) -> int:
    from headrace.convert import kept_indexes, rollback

    options, out = store_options(arguments), without_credentials(arguments.out)
    if arguments.to is None:
        indexes = kept_indexes(arguments.out, options=options)
        lines = [
            f'{kept.name}: {count_text(kept.samples, "sample")} in {count_text(kept.shards, "shard")}'
            for kept in indexes
        ]
        lines = lines or [f'{out} has no index that was replaced.']
    else:
        indexes = [rollback(arguments.out, arguments.to, options=options)]
        lines = [f'{out} has the index {arguments.to} again. The replaced one is {indexes[0].name}.']
    print_answer(arguments, [dataclasses.asdict(kept) for kept in indexes], printable('\n'.join(lines), keep='\n'))
    return 0


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('source', help=f'folder or URL of the data; or one of {", ".join(ORIGINALS)}, then IN and OUT')
    parser.add_argument('--columns', help='columns to convert: a,b; with other encodings: a=str,b=ndarray:float32')
    parser.add_argument('--append', action='store_true', help='add new data to the finished dataset that OUT holds')
    parser.add_argument('--all', action='store_true', help='with --append: add all rows, even of files in OUT')
    parser.add_argument('--cost', metavar='COLUMN', help='column whose lengths or numbers streams need as their `cost`')
    _add_conversion(parser)
    show_examples(
        parser,
        'headrace convert pictures s3://bucket/shards -j 16',
        'headrace convert data.parquet shards --compression zstd --columns text,label',
        'headrace convert day2.jsonl shards --append',
        'headrace convert imagenet --help      # the options of a known dataset',
    )


def _add_conversion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('out', help='folder or URL of the new dataset')
    parser.add_argument(
        '-j', '--workers', type=int, default=1, help='processes; the dataset is the same for any number'
    )
    add_format_arguments(parser)
    parser.add_argument('--compression', help='zstd, zstd:7, br, bz2, gz or snappy')
    parser.add_argument(
        '--hashes', type=lambda text: sorted(text.split(',')), help='hashes in the index, such as xxh64, or sha1,xxh64'
    )
    parser.add_argument('--size-limit', default='64mb', help='bytes of a shard before compression')
    parser.add_argument(
        '--on-error',
        choices=['stop', 'skip', 'collect'],
        default='stop',
        help='for a bad input: stop, leave it out, or leave it out and list it in errors.jsonl',
    )
    parser.add_argument('--limit', type=int, help='number of rows to convert, from the first')
    parser.add_argument('--exist-ok', action='store_true', help='empty OUT if it holds something')
    parser.add_argument(
        '--allow-unsafe-types', action='store_true', help='read columns that run code, such as pickles of litdata'
    )


@command('convert', _add_convert, json='print the report as JSON')
def _run_convert(arguments: argparse.Namespace) -> int:
    from headrace.convert import convert

    if arguments.columns is not None:
        arguments.columns = _columns(arguments.columns)
    if arguments.all and not arguments.append:
        raise ConfigError('`--all` says what `--append` adds. Pass `--append`, too, or leave it out.')
    if arguments.all:
        arguments.append = 'all'
    return _print_report(arguments, convert)


def _print_report(arguments: argparse.Namespace, convert: Callable[..., ConversionReport]) -> int:
    from headrace.convert.report import command_errors, report_lines

    with command_errors():
        report = convert(**given(arguments, convert), progress_bar=not arguments.json and sys.stderr.isatty())
    print_answer(arguments, dataclasses.asdict(report), '\n'.join(report_lines(report)))
    return 0


def _add_tokenize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('source', help='folder or URL of the texts, in any format that streams read')
    parser.add_argument(
        '--tokenizer',
        required=True,
        metavar='FILE',
        help='tokenizer.json; or a folder or name for AutoTokenizer.from_pretrained; or, with --library, a name there',
    )
    parser.add_argument('--library', help='tokenizers, transformers or tiktoken; by default found by the tokenizer')
    parser.add_argument('--column', default='text', help='column of the texts')
    _add_conversion(parser)
    show_examples(
        parser,
        'headrace tokenize s3://bucket/web s3://bucket/web-tokens --tokenizer tokenizer.json -j 16',
        'headrace tokenize data.parquet tokens --tokenizer o200k_base --library tiktoken --column content',
    )


@command('tokenize', _add_tokenize, json='print the report as JSON')
def _run_tokenize(arguments: argparse.Namespace) -> int:
    from headrace.convert import tokenize
    from headrace.packing import load_tokenizer

    if arguments.library is not None:
        arguments.tokenizer = load_tokenizer(arguments.library, arguments.tokenizer)
    return _print_report(arguments, tokenize)


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


def original_command(name: str) -> Command:
    """The command ``headrace convert NAME IN OUT`` of a known dataset, in the layout of its owners' distribution."""
    original = ORIGINALS[name]

    def add(parser: argparse.ArgumentParser) -> None:
        add_arguments(parser, original)
        splits = ','.join(original.splits)
        command = f'headrace convert {original.name} IN'
        needs = f' {original.example}' if original.example else ''
        show_examples(
            parser,
            f'{command} {original.name}-mds -j 8{needs}' + (f' --splits {splits}' if splits else ''),
            f'{command} s3://bucket/{original.name} --compression zstd --limit 1000{needs}',
        )

    title = f'{original.title}. For a folder of yours named {name}, write ./{name}.'
    return Command(title, add, lambda arguments: run(original, arguments))
