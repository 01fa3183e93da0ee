"""The state of a run, put together from the status files of its ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from headrace.errors import ConfigError
from headrace.watching.record_file import RECORD
from headrace.watching.status import STATUS_FOLDER

__all__ = ['read_live']

_STALE = 60.0  # seconds
_KEYS = {'rank', 'world_size', 'node', 'host', 'started', 'state', 'time', 'step', 'figures'}


def read_live(folder: str | Path, *, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """Read the last status of all ranks.

    Args:
        folder: the run's folder.
        clock: seconds since 1970.

    Returns:
        Plain values by these keys. Without a file there are no ranks.

        - ``run``, ``time`` and ``world_size``;
        - ``missing``: ranks without a file;
        - ``ranks``: one status each, with its ``age`` in seconds and ``is_stale``;
        - ``mix``: samples or tokens, share and promised share, by stream;
        - ``total``: figures of all ranks together.

    Raises:
        ConfigError: the folder is not that of a run with a record.
    """
    folder = Path(folder)
    if not (folder / RECORD).exists() and not (folder / STATUS_FOLDER).exists():
        raise ConfigError(
            f'A run that can be watched has a record, but there is no {RECORD} in {folder}. Name the folder that the '
            f'callback `RunRecord` writes to.'
        )
    now = clock()
    found = [status for path in sorted((folder / STATUS_FOLDER).glob('rank-*.json')) if (status := _read(path))]
    newest = max(found, key=lambda status: status['started'], default=None)
    # The files of ranks that a resume on fewer ranks left behind.
    ranks = [status for status in found if newest is not None and status['rank'] < newest['world_size']]
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
        'total': _total(ranks),
    }


def _read(path: Path) -> dict[str, Any] | None:
    """A rank's status; None if the file vanished, or is not one."""
    try:
        status: Any = json.loads(path.read_text(encoding='utf-8'))
        is_whole = isinstance(status, dict) and status.keys() >= _KEYS and 'data/wait_share' in status['figures']
        return cast('dict[str, Any]', status) if is_whole else None
    except (OSError, ValueError, TypeError):
        return None


def _mix(figures: dict[str, float]) -> list[dict[str, Any]]:
    """The streams; every rank knows those of all ranks."""
    found: list[dict[str, Any]] = []
    for key, share in figures.items():
        name, is_share = key.removeprefix('mix/').removesuffix('/share'), key.endswith('/share')
        if not key.startswith('mix/') or not is_share:
            continue
        unit = 'tokens' if f'mix/{name}/tokens' in figures else 'samples'
        count = figures.get(f'mix/{name}/{unit}', 0)
        promised = figures.get(f'mix/{name}/promised', 0.0)
        found.append({'stream': name, 'count': count, 'unit': unit, 'share': share, 'promised': promised})
    return found


def _total(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all ranks together."""
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
        'retries': sum(of('data/retries')),
        'wait_share': sum(waits) / len(waits),
        'slowest_rank': ranks[slowest]['rank'],
        'slowest_wait_share': waits[slowest],
        'batch_seconds_p50': max(of('data/batch_seconds_p50'), default=None),
        'batch_seconds_p99': max(of('data/batch_seconds_p99'), default=None),
        'packing_efficiency': min(of('data/packing_efficiency'), default=None),
        'drift': max(of('mix/drift'), default=None),
        'cache_fill': min(fills, default=None),
    }
