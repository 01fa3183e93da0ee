"""Commands that look at data: `inspect` and `verify` for datasets, and `cache` for cache folders."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import (
    add_format_arguments,
    add_store_arguments,
    count,
    given,
    print_answer,
    show_examples,
    shown_progress,
)
from headrace.cli.commands import command
from headrace.errors import ConfigError, HeadraceError
from headrace.errors.display import count_text, human_size, printable, shorten, text_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.dataset import StreamingDataset
    from headrace.inspect import SampleValue
    from headrace.inspect.cached import CacheContent

_WIDTH = 100


def has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get('NO_COLOR') and os.environ.get('TERM', 'dumb') != 'dumb'


def print_thumbnails(values: Iterable[SampleValue]) -> None:
    from headrace.errors import MissingDependencyError
    from headrace.inspect import thumbnail

    for value in values:
        for _, content in value.pictures[:1]:
            try:
                lines = thumbnail(content)
            except MissingDependencyError as error:
                lines = [str(error)]
            except Exception as error:  # Pillow raises errors of many classes for damaged pictures
                lines = [f'(no thumbnail: {type(error).__name__})']
            print('\n'.join(f'    {line}' for line in lines))


def preview(dataset: StreamingDataset, sample_id: int) -> dict[str, SampleValue]:
    from headrace.inspect import describe_decoded

    sample = dataset[sample_id]
    values = sample if isinstance(sample, dict) else {'sample': sample}
    return {str(name): describe_decoded(value) for name, value in values.items()}


def print_preview(heading: str, values: dict[str, SampleValue]) -> None:
    print(heading)
    for name, value in values.items():
        # The text of a picture begins with what its shape says.
        shape = '' if value.pictures else value.shape
        text = ' '.join(part for part in (shape, str(value.value)) if part)
        print(f'  {printable(name)}: {shorten(text, _WIDTH)}')
    if has_colours():
        print_thumbnails(values.values())


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('url', help='folder or URL of the dataset')
    parser.add_argument(
        '--samples', type=int, default=3, metavar='N', help='first samples to show (default: %(default)s)'
    )
    parser.add_argument('--save', type=Path, metavar='DIR', help='folder for the pictures of these samples')
    parser.add_argument('--cost', metavar='COLUMN', help='measure the lengths or numbers of this column, and show them')
    add_format_arguments(parser)
    add_store_arguments(parser)
    show_examples(
        parser,
        'headrace inspect s3://bucket/data/train',
        'headrace inspect ./data --samples 10 --save pictures',
        "headrace inspect gs://bucket/data --json | jq '.columns[].name'",
    )


@command('inspect', _add_inspect)
def _run_inspect(arguments: argparse.Namespace) -> int:
    from headrace.inspect import describe, save_pictures
    from headrace.inspect.costs import measure, stream_at

    description = describe(**given(arguments, describe))
    saved = [] if arguments.save is None else save_pictures(description, arguments.save)
    costs = None
    if arguments.cost is not None:
        stream = stream_at(**given(arguments, stream_at))
        with shown_progress('measure', unit=' shards') as show:
            (costs,) = measure([stream], arguments.cost, progress=show)
    if arguments.json:
        answer = description.to_json() if costs is None else {**description.to_json(), 'costs': costs.to_json()}
        paths = {} if arguments.save is None else {'saved': [str(path) for path in saved]}
        print(json.dumps({**answer, **paths}))
        return 0
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 100
    print('\n'.join(description.lines(width=width if is_terminal else None)))
    if costs is not None:
        print('\n' + '\n'.join(costs.lines()))
    for number in range(len(description.samples)):
        print('\n' + '\n'.join(description.sample_lines(number, width=width)))
        if has_colours():
            print_thumbnails(description.samples[number].values())
    if arguments.save is not None:
        print(f'\n{count_text(len(saved), "picture")} saved in {arguments.save}')
    return 0


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('url', help='folder or URL of the dataset')
    parser.add_argument('--fast', action='store_true', help='check only that the files exist and have the right sizes')
    parser.add_argument('-j', '--jobs', type=count, metavar='N', help='processes (default: one per CPU, at most 8)')
    parser.add_argument(
        '--state', type=Path, metavar='FILE', help='file of the shards that passed, which later calls skip'
    )
    add_store_arguments(parser)
    show_examples(
        parser,
        'headrace verify s3://bucket/data/train --state verified.txt',
        'headrace verify ./data -j 16 --json',
        'headrace verify s3://bucket/data/train --fast',
        status='Exit status: 0, everything is right; 1, a shard is bad; 2, not all shards could be read, or wrong '
        'arguments.',
    )


@command('verify', _add_verify)
def _run_verify(arguments: argparse.Namespace) -> int:
    from headrace.inspect import verify

    try:
        with shown_progress('verify', unit=' shards') as show:
            report = verify(**given(arguments, verify), progress=show)
    except HeadraceError as error:
        print(printable(f'headrace: {error}'), file=sys.stderr)
        return 2
    print_answer(arguments, report.to_json(), report)
    return 1 if report.damaged else 0 if report.is_good else 2


_CACHE_STATUS = (
    'Exit status: 0, done, also where shards in use stay; 1, an error, in one line on stderr, or a question answered '
    'with no; 2, wrong arguments.'
)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('place', metavar='DIR|CONFIG', help='cache folder, or YAML file of the loaders; or: clear')
    parser.add_argument(
        'overrides',
        nargs='*',
        default=[],
        metavar='KEY=VALUE',
        help='overrides of the file; after clear, first DIR|CONFIG',
    )
    parser.add_argument('--yes', action='store_true', help='with clear: do not ask')
    show_examples(
        parser,
        'headrace cache /scratch/cache',
        'headrace cache train.yaml',
        'headrace cache clear /scratch/cache',
        status=_CACHE_STATUS,
    )


@command('cache', _add_cache)
def _run_cache(arguments: argparse.Namespace) -> int:
    from headrace.inspect.cached import look_into

    is_clear, place, overrides = False, arguments.place, list(arguments.overrides)
    if place == 'clear' and overrides:
        is_clear, place = True, overrides.pop(0)
    if arguments.yes and not is_clear:
        raise ConfigError('--yes answers the question of `headrace cache clear`. Leave it out, or add clear.')
    limits = _folders(Path(place).expanduser(), overrides)
    contents = [look_into(folder) for folder in limits]
    if is_clear:
        return _clear(contents, is_agreed=arguments.yes, as_json=arguments.json)
    answer = [{**each.to_json(), 'limit': limits[each.folder]} for each in contents]
    print_answer(arguments, answer, '\n'.join(_lines(contents, limits)))
    return 0


def _folders(place: Path, overrides: list[str]) -> Mapping[Path, int | None]:
    """The cache folders, and the limit that a configuration gives each."""
    from headrace.inspect.cached import find_caches

    if not place.is_file():
        if overrides:
            raise ConfigError(f'KEY=VALUE overrides a YAML file, but {place} is not one. Leave {overrides[0]!r} out.')
        return dict.fromkeys(find_caches(place))
    from headrace.config.build import build_streams
    from headrace.config.schema import named_loaders
    from headrace.mixing import load_config

    config = load_config(place, overrides=overrides)
    folders = {
        Path.cwd() / stream.folder: loader.cache_bytes
        for loader in named_loaders(config).values()
        for stream in build_streams(loader)
        if not stream.is_local
    }
    if not folders:
        raise ConfigError(f'{place} has no stream with a remote, so there is no cache. Its data are read in place.')
    return folders


def _lines(contents: list[CacheContent], limits: Mapping[Path, int | None]) -> list[str]:
    rows = [('folder', 'remote', 'shards', 'bytes', 'limit', 'in use', 'fetches')]
    for each in contents:
        limit = limits[each.folder]
        fetches = f'{each.num_fetches}, {human_size(each.fetch_bytes)}' if each.fetch_bytes else str(each.num_fetches)
        rows.append(
            (
                str(each.folder),
                each.remote or ('unknown' if each.num_present else 'not filled yet'),
                f'{each.num_present:,} of {each.num_shards:,}',
                human_size(each.bytes),
                'not given' if limit is None else human_size(limit),
                str(each.num_in_use),
                fetches,
            )
        )
    return text_table(rows, indent=0)


def _clear(contents: list[CacheContent], *, is_agreed: bool, as_json: bool) -> int:
    from headrace.inspect.cached import clear_cache

    contents = [each for each in contents if each.remote]
    shards = sum(each.num_present for each in contents)
    if not is_agreed and shards:
        # On stderr: --json may fill a file.
        print(*(printable(f'{each.folder} of {each.remote}') for each in contents), sep='\n', file=sys.stderr)
        size = human_size(sum(each.bytes for each in contents))
        print(f'Remove {count_text(shards, "shard")} ({size})? [y/N] ', end='', file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ('y', 'yes'):
            print('headrace: Nothing was removed. Answer with y, or pass --yes.', file=sys.stderr)
            return 1
    removals = list[dict[str, object]]()
    for each in contents:
        with shown_progress('clear', unit=' shards') as show:
            removal = clear_cache(each.folder, progress=show)
        removals.append(removal.to_json())
        if as_json:
            continue
        text = f'{each.folder}: removed {count_text(removal.num_removed, "shard")} ({human_size(removal.bytes)})'
        text += f', {removal.num_in_use:,} in use stay' if removal.num_in_use else ''
        text += f', {count_text(removal.num_links, "link")} left alone' if removal.num_links else ''
        print(printable(text))
    if as_json:
        print(json.dumps(removals))
    return 0
