"""The state of a run as text, for a terminal."""

from __future__ import annotations

from typing import Any

from headrace.display import human_size, printable, text_table

__all__ = ['live_text']

_BAR = 20


def live_text(live: dict[str, Any]) -> str:
    """Lines with the totals, a table of the ranks and a table of the mix.

    Args:
        live: what `read_live` gives.
    """
    if not live['ranks']:
        return f'{live["run"]}: no rank has written its status yet.'
    total = live['total']
    downloads = f'{human_size(total["bytes_per_second"])}/s, {human_size(total["bytes_downloaded"])} in all'
    waits = f'{total["wait_share"]:.1%}, rank {total["slowest_rank"]} most with {total["slowest_wait_share"]:.1%}'
    lines = [
        printable(f'{live["run"]}: step {total["step"]:,}, {len(live["ranks"])} of {live["world_size"]} ranks'),
        f'{total["samples_per_second"]:,.1f} samples/s; {downloads}; {total["retries"]:.0f} retries; waiting {waits}',
        '',
        *text_table([_HEAD, *(_row(status) for status in live['ranks'])]),
    ]
    if live['missing']:
        lines.append(f'  without a status: ranks {", ".join(map(str, live["missing"]))}')
    if live['mix']:
        lines += ['', *text_table([('stream', 'count', 'share', 'promised', ''), *map(_stream, live['mix'])])]
    return '\n'.join(lines)


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
