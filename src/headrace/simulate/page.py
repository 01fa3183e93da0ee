"""A page of a simulated run: figures and plots in one file, without scripts and without a network."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.display import html_table, human_size
from headrace.simulate.result import SimulatedRun, SimulatedStep

__all__ = ['STYLE', 'content', 'page']

_WIDTH, _HEIGHT, _POINTS = 720, 180, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 10, 12, 22

STYLE: Final = (
    'body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#1f2937}'
    'h1{font-size:1.5em}h2{font-size:1.05em;margin:1.4em 0 .3em}'
    'table{border-collapse:collapse;width:100%}td,th{padding:.25em 1em .25em 0;border-bottom:1px solid #e5e7eb;'
    'vertical-align:top;text-align:left}svg{width:100%;height:auto}polyline{fill:none;stroke:#2563eb;stroke-width:1.8}'
    'polyline.before{stroke:#9ca3af}text{font-size:11px;fill:#6b7280}line{stroke:#e5e7eb}'
)
"""CSS of the plots and tables."""


def page(run: SimulatedRun, cost: Mapping[str, float], *, title: str) -> str:
    """The page as HTML.

    Args:
        run: the simulated run.
        cost: dollars of egress by provider.
        title: its heading, such as the name of the configuration.
    """
    conditions = html_table([(name.replace('_', ' '), str(value)) for name, value in vars(run.conditions).items()])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<style>{STYLE}</style><h1>Simulated run of {html.escape(title)}</h1>{content(run, cost)}'
        f'<h2>Conditions</h2>{conditions}</html>'
    )


def content(run: SimulatedRun, cost: Mapping[str, float], before: SimulatedRun | None = None) -> str:
    """Figures, plots and cost of a run as a part of a page.

    Args:
        run: the simulated run.
        cost: dollars of egress by provider.
        before: another run, whose figures and curves stand beside.
    """
    if before is None:
        figures = html_table(run.rows())
    else:
        both = zip(run.rows(), before.rows(), strict=True)
        figures = html_table([(*now, then) for now, (_, then) in both], header=('', 'now', 'as configured'))
    runs = [run] if before is None else [run, before]  # the later ones are drawn beneath
    dollars = html_table([(provider, f'${price:,.2f}') for provider, price in cost.items()])
    plots = (
        ('Seconds of each step, waiting included', _plot(runs, _step_seconds, lambda value: f'{value:.3g} s')),
        ('Bytes that a node has fetched', _plot(runs, lambda _, step: step.fetched, human_size)),
        ('Bytes in the cache of a node', _plot(runs, lambda _, step: step.cached, human_size)),
    )
    drawn = ''.join(f'<h2>{html.escape(name)}</h2>{plot}' for name, plot in plots)
    notes = ''.join(f'<p>Note: {html.escape(note)}</p>' for note in run.notes())
    return f'{figures}{notes}{drawn}<h2>Egress of an epoch, all nodes</h2>{dollars}'


def _step_seconds(run: SimulatedRun, step: SimulatedStep) -> float:
    return step.wait + run.conditions.step_seconds


def _plot(
    runs: Sequence[SimulatedRun], value: Callable[[SimulatedRun, SimulatedStep], float], text: Callable[[float], str]
) -> str:
    """A value over the runs' seconds; of many steps the largest value of each part is drawn."""
    end = max(run.steps[-1].end for run in runs) or 1.0
    top = max(value(run, step) for run in runs for step in run.steps) or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def line(run: SimulatedRun, kind: str) -> str:
        size = max(1, -(-len(run.steps) // _POINTS))
        parts = [run.steps[begin : begin + size] for begin in range(0, len(run.steps), size)]
        points = ' '.join(
            f'{_LEFT + width * part[-1].end / end:.1f},'
            f'{_TOP + height * (1 - max(value(run, step) for step in part) / top):.1f}'
            for part in parts
        )
        return f'<polyline class="{kind}" points="{points}"/>'

    ticks = ''.join(
        f'<line x1="{_LEFT}" y1="{y:.0f}" x2="{_WIDTH - _RIGHT}" y2="{y:.0f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{html.escape(name)}</text>'
        for y, name in ((_TOP, text(top)), (_TOP + height / 2, text(top / 2)), (_TOP + height, '0'))
    )
    times = ''.join(
        f'<text x="{_LEFT + width * part:.0f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{end * part:,.1f} s</text>'
        for part, anchor in ((0.0, 'start'), (0.5, 'middle'), (1.0, 'end'))
    )
    lines = ''.join(line(run, 'before' if number else 'now') for number, run in reversed([*enumerate(runs)]))
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{ticks}{times}{lines}</svg>'
