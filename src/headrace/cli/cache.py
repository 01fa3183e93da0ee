"""``headrace cache``: what cache folders hold, and their safe removal."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import show_examples, shown_progress
from headrace.display import count_text, human_size, printable, text_table
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.inspect.cached import CacheContent

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'show what a cache folder holds, or remove its shards: headrace cache clear DIR'
STATUS = (
    'Exit status: 0, done, also where shards in use stay; 1, an error, in one line on stderr, or a question answered '
    'with no; 2, wrong arguments.'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the place and the answer."""
    parser.add_argument('place', metavar='DIR|CONFIG', help='cache folder, or YAML file of the loaders; or: clear')
    parser.add_argument(
        'overrides',
        nargs='*',
        default=[],
        metavar='KEY=VALUE',
        help='what goes over the file; after clear, first DIR|CONFIG',
    )
    parser.add_argument('--yes', action='store_true', help='with clear: do not ask')
    parser.add_argument('--json', action='store_true', help='print JSON')
    show_examples(
        parser,
        'headrace cache /scratch/cache',
        'headrace cache train.yaml',
        'headrace cache clear /scratch/cache',
        status=STATUS,
    )


def run(arguments: argparse.Namespace) -> int:
    """Show, or clear."""
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
    if arguments.json:
        print(json.dumps([{**each.to_json(), 'limit': limits[each.folder]} for each in contents]))
    else:
        print('\n'.join(_lines(contents, limits)))
    return 0


def _folders(place: Path, overrides: list[str]) -> Mapping[Path, int | None]:
    """The cache folders, and the limit that a configuration gives each.

    Raises:
        ConfigError: there is none; or the configuration breaks a rule.
    """
    from headrace.inspect.cached import find_caches

    if not place.is_file():
        if overrides:
            raise ConfigError(f'KEY=VALUE goes over a YAML file, but {place} is none. Leave {overrides[0]!r} out.')
        return dict.fromkeys(find_caches(place))
    from headrace.config.build import build_streams
    from headrace.mixing import load_config

    config = load_config(place, overrides=overrides)
    loaders = [*([config.train] if config.train else []), *config.eval, *config.test, *config.predict]
    found = {
        Path.cwd() / stream.folder: loader.cache_limit
        for loader in loaders
        for stream in build_streams(loader)
        if not stream.is_local
    }
    if not found:
        raise ConfigError(f'{place} has no stream with a remote, so there is no cache. Its data are read in place.')
    return found


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
