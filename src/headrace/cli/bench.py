"""``headrace bench``: how quickly a user's own data come, and what limits that."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import show_examples
from headrace.cli.loaders import add_data_arguments, train_of_dataset, train_of_file
from headrace.display import human_size, text_table
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.doctor.bench import Rate
    from headrace.mixing import LoaderConfig

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'measure samples, bytes, waits and processor time of your data on this machine, and say what limits them'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the data and the measurement."""
    add_data_arguments(parser)
    parser.add_argument('--seconds', type=float, default=5, help='for each number of workers (default: %(default)s)')
    parser.add_argument(
        '--workers', metavar='N,N', help="numbers of workers (default: 0, and the configuration's, or 2)"
    )
    parser.add_argument('--cold', action='store_true', help='begin with an empty cache, in a temporary folder')
    parser.add_argument('--json', action='store_true', help='print JSON')
    show_examples(
        parser,
        'headrace bench train.yaml                    # with the cache as it is',
        'headrace bench train.yaml --cold --workers 0,4,8',
        'headrace bench s3://bucket/data --batch-size 256 --seconds 20',
        'headrace bench s3://bucket/images train.decode.size=224',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each number of workers, and a sentence on the limit."""
    from headrace.doctor.bench import bench, limit_of

    if not 0 < arguments.seconds < math.inf:
        raise ConfigError(f'--seconds must be a number of seconds, more than 0, got {arguments.seconds}.')
    is_cold = arguments.cold or not Path(arguments.what).is_file()
    with _configured(arguments) as config:
        numbers = [0, config.loader.num_workers or 2] if arguments.workers is None else _numbers(arguments.workers)
        rates: list[Rate] = []
        for number in numbers:
            with _cache(config, is_cold=is_cold) as chosen:
                rates.append(bench(chosen, workers=number, seconds=arguments.seconds))
        with _cache(config, is_cold=is_cold) as chosen:
            limit = limit_of(chosen, rates)
    fewest = min(rates, key=lambda rate: rate.workers)
    read_seconds, batch_size = fewest.cpu_seconds_per_batch, round(fewest.samples / (fewest.batches - 1))
    if arguments.json:
        found = [rate.to_json() for rate in rates]
        print(json.dumps({'data': arguments.what, 'rates': found, 'limit': limit, 'read_seconds': read_seconds}))
        return 0
    header = ('workers', 'samples/s', 'values', 'downloaded', 'first batch', 'wait p50', 'p99', 'CPU of a batch')
    print('\n'.join(text_table([header, *map(_row, rates)], indent=0)))
    print(limit)
    of = f'if a rank has batches of {batch_size:,}'
    print(f'For headrace simulate and tune: --read-seconds {read_seconds:.2g}, {of}.')
    return 0


def _row(rate: Rate) -> tuple[str, ...]:
    return (
        str(rate.workers),
        f'{rate.samples_per_second:,.0f}',
        f'{rate.bytes_per_second / 1e6:,.1f} MB/s',
        human_size(rate.bytes_downloaded),
        f'{rate.first_batch_seconds:.2f} s',
        f'{1000 * rate.wait_p50:.2f} ms',
        f'{1000 * rate.wait_p99:.2f} ms',
        f'{1000 * rate.cpu_seconds_per_batch:.2f} ms',
    )


def _numbers(text: str) -> list[int]:
    parts = text.split(',')
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f'--workers is a list of numbers such as 0,4,8, got {text!r}.')
    return [int(part) for part in parts]


@contextlib.contextmanager
def _configured(arguments: argparse.Namespace) -> Generator[LoaderConfig]:
    """The training loader of the file, or one of the URL, whose cache is temporary."""
    from headrace.storage import local_path

    config = train_of_file(arguments, 'a measurement')
    if config is not None:
        yield config
        return
    folder = local_path(arguments.what)
    with tempfile.TemporaryDirectory(prefix='headrace-bench-') as cache:
        place = {'remote': arguments.what, 'local': cache} if folder is None else {'local': str(folder)}
        yield train_of_dataset(arguments, place)


@contextlib.contextmanager
def _cache(config: LoaderConfig, *, is_cold: bool) -> Generator[LoaderConfig]:
    """The loader with its own caches, or with empty ones."""
    if not is_cold:
        yield config
        return
    with tempfile.TemporaryDirectory(prefix='headrace-bench-') as folder:
        streams = tuple(
            stream if stream.remote is None else dataclasses.replace(stream, local=str(Path(folder, str(number))))
            for number, stream in enumerate(config.streams)
        )
        local = str(Path(folder, 'data')) if config.remote is not None else config.local
        yield dataclasses.replace(config, streams=streams, local=local)
