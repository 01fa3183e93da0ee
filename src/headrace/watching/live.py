"""The state of a run from the status files of its ranks: as values, as text, and as a page of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from headrace.errors import ConfigError, HeadraceError
from headrace.errors.display import count_text, human_size, printable, text_table
from headrace.errors.redaction import redact
from headrace.inspect.local_page import PageHandler, PageServer
from headrace.watching.record import RECORD
from headrace.watching.status import STATUS_FOLDER

_STALE = 60.0  # seconds
_KEYS = {'rank', 'world_size', 'node', 'host', 'started', 'state', 'time', 'step', 'figures'}


def read_live(folder: str | Path, *, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """Read the last status of all ranks.

    Returns:
        Plain values by these keys. Without a file, `ranks` is empty.

        - ``run``, ``time`` and ``world_size``;
        - ``missing``: ranks without a file;
        - ``ranks``: one status each, with its ``age`` in seconds and ``is_stale``;
        - ``mix``: samples or tokens, share and promised share, by stream;
        - ``decisions``: of each training loader whose proportions were decided, the last one, and their ``count``;
        - ``total``: figures of all ranks together.

    Raises:
        ConfigError: the folder is not that of a run with a record.
    """
    folder = Path(folder)
    if not (folder / RECORD).exists() and not (folder / STATUS_FOLDER).exists():
        raise ConfigError(
            f'A run that can be watched has a record, but there is no {RECORD} in {folder}. Name the folder that the '
            f'callback `RunRecord`, or `RunRecorder`, writes to.'
        )
    now = clock()
    statuses = [status for path in sorted((folder / STATUS_FOLDER).glob('rank-*.json')) if (status := _read(path))]
    newest = max(statuses, key=lambda status: status['started'], default=None)
    # The files of ranks that a resume on fewer ranks left behind.
    ranks = [status for status in statuses if newest is not None and status['rank'] < newest['world_size']]
    for status in ranks:
        status['age'] = max(0.0, now - status['time'])
        # An evaluation, or what comes before the first batch, may take long and writes nothing.
        status['is_stale'] = status['age'] > _STALE and status['state'] == 'training'
    size = 0 if newest is None else newest['world_size']
    there = {status['rank'] for status in ranks}
    return {
        'run': str(folder),
        'time': now,
        'world_size': size,
        'missing': [rank for rank in range(size) if rank not in there],
        'ranks': ranks,
        'mix': _mix(ranks[0]['figures']) if ranks else [],
        'decisions': ranks[0].get('decisions', []) if ranks else [],
        'total': _total(ranks),
    }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        status: Any = json.loads(path.read_text(encoding='utf-8'))
        is_whole = isinstance(status, dict) and status.keys() >= _KEYS and 'data/wait_share' in status['figures']
        return cast('dict[str, Any]', status) if is_whole else None
    except (OSError, ValueError, TypeError):
        return None


def _mix(figures: dict[str, float]) -> list[dict[str, Any]]:
    """The streams; every rank knows those of all ranks."""
    shares: list[dict[str, Any]] = []
    for key, share in figures.items():
        name, is_share = key.removeprefix('mix/').removesuffix('/share'), key.endswith('/share')
        if not key.startswith('mix/') or not is_share:
            continue
        unit = 'tokens' if f'mix/{name}/tokens' in figures else 'samples'
        count = figures.get(f'mix/{name}/{unit}', 0)
        promised = figures.get(f'mix/{name}/promised', 0.0)
        shares.append({'stream': name, 'count': count, 'unit': unit, 'share': share, 'promised': promised})
    return shares


def _total(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not ranks:
        return {}
    figures: list[dict[str, float]] = [status['figures'] for status in ranks]

    def of(name: str) -> list[float]:
        return [each[name] for each in figures if name in each]

    waits = of('data/wait_share')
    slowest = max(range(len(waits)), key=lambda i: waits[i])
    # Ranks of a node share its caches.
    caches = {status['node']: status['figures'].get('data/cache_fill') for status in ranks}
    fills = [fill for fill in caches.values() if fill is not None]
    return {
        'step': max(status['step'] for status in ranks),
        'samples_per_second': max(of('data/samples_per_second')),  # each counts those of all ranks
        'bytes_per_second': sum(of('data/bytes_per_second')),
        'bytes_downloaded': sum(of('data/bytes_downloaded')),
        'bytes_from_peers': sum(of('data/bytes_from_peers')),
        'retries': sum(of('data/retries')),
        'wait_share': sum(waits) / len(waits),
        'slowest_rank': ranks[slowest]['rank'],
        'slowest_wait_share': waits[slowest],
        'batch_seconds_p50': max(of('data/batch_seconds_p50'), default=None),
        'batch_seconds_p99': max(of('data/batch_seconds_p99'), default=None),
        'packing_efficiency': min(of('data/packing_efficiency'), default=None),
        'padding_share': max(of('data/padding_share'), default=None),
        'drift': max(of('mix/drift'), default=None),
        'cache_fill': min(fills, default=None),
    }


_BAR = 20


def live_text(live: dict[str, Any]) -> str:
    if not live['ranks']:
        return f'{live["run"]}: no rank has written its status yet.'
    total = live['total']
    downloads = f'{human_size(total["bytes_per_second"])}/s, {human_size(total["bytes_downloaded"])} in all'
    if total['bytes_from_peers']:
        downloads += f', and {human_size(total["bytes_from_peers"])} from peers'
    waits = f'{total["wait_share"]:.1%}, rank {total["slowest_rank"]} most with {total["slowest_wait_share"]:.1%}'
    if total['padding_share'] is not None:
        waits += f'; padding {total["padding_share"]:.1%}'
    lines = [
        printable(
            f'{live["run"]}: step {total["step"]:,}, {len(live["ranks"])} of {count_text(live["world_size"], "rank")}'
        ),
        f'{total["samples_per_second"]:,.1f} samples/s; {downloads}; {total["retries"]:.0f} retries; waiting {waits}',
        '',
        *text_table([_HEAD, *(_row(status) for status in live['ranks'])]),
    ]
    if live['missing']:
        ranks = 'rank' if len(live['missing']) == 1 else 'ranks'
        lines.append(f'  without a status: {ranks} {", ".join(map(str, live["missing"]))}')
    if live['mix']:
        lines += ['', *text_table([('stream', 'count', 'share', 'promised', ''), *map(_stream, live['mix'])])]
    lines += [decided_text(decision, decision['count']) for decision in live['decisions']]
    return '\n'.join(lines)


def decided_text(last: Mapping[str, Any], count: int) -> str:
    """A line about decisions of proportions, of which the last is given."""
    given: Mapping[str, float] = last['what']['proportions']
    shares = ', '.join(f'{name} {share / sum(given.values()):.3f}' for name, share in given.items())
    return printable(f'decisions: {count}, the last by {last["by"]} at sample {last["at"]} of the run: {shares}')


_HEAD = ('rank', 'host', 'state', 'step', 'waiting', 'batch p50', 'p99', 'download', 'cache')


def _row(status: dict[str, Any]) -> tuple[str, ...]:
    figures = status['figures']
    state = f'silent for {status["age"]:.0f} s' if status['is_stale'] else status['state']
    return (
        str(status['rank']),
        status['host'],
        state,
        f'{status["step"]:,}',
        f'{figures["data/wait_share"]:.1%}',
        _seconds(figures.get('data/batch_seconds_p50')),
        _seconds(figures.get('data/batch_seconds_p99')),
        f'{human_size(figures["data/bytes_per_second"])}/s',
        '' if 'data/cache_fill' not in figures else f'{figures["data/cache_fill"]:.0%}',
    )


def _stream(stream: dict[str, Any]) -> tuple[str, ...]:
    full = round(min(stream['share'], 1.0) * _BAR)
    bar = '#' * full + '.' * (_BAR - full)
    count = f'{stream["count"]:,.0f} {stream["unit"]}'
    return stream['stream'], count, f'{stream["share"]:.2%}', f'{stream["promised"]:.2%}', bar


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ''
    return f'{seconds:.2f} s' if seconds >= 1 else f'{seconds * 1000:.1f} ms'


_PAGE = Path(__file__).with_name('page.html')


class WatchServer(PageServer):
    """Serves the page of a run to this machine alone. `port`: of 127.0.0.1; 0: any free one."""

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        self.folder = Path(folder)  # the run's folder
        read_live(folder)
        super().__init__(port, _Handler)


class _Handler(PageHandler):
    server: WatchServer  # pyright: ignore[reportIncompatibleVariableOverride] - no other makes it

    @override
    def answer_path(self) -> None:
        if self.path == '/':
            self.answer(200, 'text/html', _PAGE.read_text(encoding='utf-8'))
        elif self.path == '/status.json':
            self.answer(200, 'application/json', json.dumps(self._live()))
        else:
            self.answer(404, 'text/plain', 'There are / and /status.json.')

    def _live(self) -> dict[str, Any]:
        try:
            return read_live(self.server.folder)
        except HeadraceError as error:  # the folder was removed
            return {'error': redact(str(error))}
