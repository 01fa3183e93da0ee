"""A page of a simulated run: figures and plots in one file, without scripts and without a network."""

from __future__ import annotations

import html
from collections.abc import Sequence

from headrace.display import html_table, size_text
from headrace.simulate.result import SimulatedRun, Step

__all__ = ['page']

_WIDTH, _HEIGHT, _POINTS = 720, 160, 360


def page(run: SimulatedRun, cost: dict[str, float], *, title: str) -> str:
    """The page as HTML.

    Args:
        run: the simulated run.
        cost: dollars of egress by provider.
        title: its heading, such as the name of the configuration.
    """
    rows = [line.strip().split('  ', 1) for line in str(run).splitlines()]
    figures = html_table([(name, text.strip()) for name, text in rows])
    conditions = html_table([(name.replace('_', ' '), str(value)) for name, value in vars(run.conditions).items()])
    dollars = html_table([(provider, f'${price:,.2f}') for provider, price in cost.items()])
    step = run.conditions.step_seconds
    plots = ''.join(
        f'<h2>{html.escape(name)}</h2>{plot}'
        for name, plot in (
            ('Seconds of each step, waiting included', _plot(run.steps, [each.wait + step for each in run.steps], 's')),
            ('Bytes that a node has fetched', _plot(run.steps, [each.fetched for each in run.steps], 'bytes')),
            ('Bytes in the cache of a node', _plot(run.steps, [float(each.cached) for each in run.steps], 'bytes')),
        )
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>{_STYLE}'
        f'<h1>Simulated run of {html.escape(title)}</h1>{figures}{plots}'
        f'<h2>Egress of an epoch, all nodes</h2>{dollars}<h2>Conditions</h2>{conditions}</html>'
    )


_STYLE = (
    '<style>body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#222}'
    'table{border-collapse:collapse}td{padding:.2em 1em .2em 0;border-bottom:1px solid #ddd;vertical-align:top}'
    'svg{width:100%;height:auto}polyline{fill:none;stroke:#2563eb;stroke-width:1.5}text{font-size:11px;fill:#555}'
    'line{stroke:#ccc}</style>'
)


def _plot(steps: Sequence[Step], values: Sequence[float], unit: str) -> str:
    """Values over the run's seconds; of many steps the largest value of each part is drawn."""
    size = max(1, -(-len(values) // _POINTS))
    parts = [range(begin, min(begin + size, len(values))) for begin in range(0, len(values), size)]
    end, top = steps[-1].end or 1.0, max(values) or 1.0
    points = ' '.join(
        f'{60 + (_WIDTH - 70) * steps[part[-1]].end / end:.1f},'
        f'{_HEIGHT - 20 - (_HEIGHT - 30) * max(values[i] for i in part) / top:.1f}'
        for part in parts
    )
    shown = size_text(top) if unit == 'bytes' else f'{top:.3g} {unit}'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><line x1="60" y1="{_HEIGHT - 20}" x2="{_WIDTH - 10}" '
        f'y2="{_HEIGHT - 20}"/><line x1="60" y1="10" x2="60" y2="{_HEIGHT - 20}"/><text x="55" y="16" '
        f'text-anchor="end">{html.escape(shown)}</text><text x="55" y="{_HEIGHT - 20}" text-anchor="end">0</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 5}" text-anchor="end">{end:,.1f} s</text>'
        f'<polyline points="{points}"/></svg>'
    )
