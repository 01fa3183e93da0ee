"""The end of the demo: a table in the terminal and a picture of the loss curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.demo.proof import Proof, joined
from examples.demo.records import Run, Step
from headrace.errors import MissingDependencyError

__all__ = ['Training', 'draw_curves', 'table']


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """All results of one framework."""

    framework: str
    uninterrupted: Run
    killed: Run
    resumed: Run
    proof: Proof


_LINES: Sequence[tuple[str, Callable[[Proof], str]]] = (
    ('samples expected', lambda proof: f'{proof.expected:,}'),
    ('samples seen', lambda proof: f'{proof.seen:,}'),
    ('samples lost', lambda proof: f'{proof.lost:,}'),
    ('samples repeated', lambda proof: f'{proof.repeated:,}'),
    ('global batches with other ids', lambda proof: f'{proof.wrong_batches:,}'),
    ('killed after step', lambda proof: f'{proof.killed_at:,}'),
    ('resumed after step', lambda proof: f'{proof.checkpoint:,}'),
    ('batches replayed otherwise', lambda proof: f'{proof.wrong_replays:,}'),
    ('largest loss difference', lambda _: ''),
    ('  right after the resume', lambda proof: f'{proof.loss_difference:.1e}'),
    ('  in the whole run', lambda proof: f'{proof.whole_loss_difference:.1e}'),
    ('verdict', lambda proof: 'exact' if proof.holds else 'BROKEN'),
)


def table(trainings: Sequence[Training]) -> str:
    """One column a framework, one line a number."""
    rows = [
        ('', *(training.framework for training in trainings)),
        *((name, *(value(training.proof) for training in trainings)) for name, value in _LINES),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ['  '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    rule = '-' * max(map(len, lines))
    return '\n'.join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def draw_curves(trainings: Sequence[Training], path: Path) -> None:
    """One column a framework: its loss curves above, their distance below.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("the picture needs matplotlib: pip install 'headrace[demo]'") from error
    figure = Figure(figsize=(6.5 * len(trainings), 6.5), layout='constrained')
    axes = figure.subplots(2, len(trainings), sharex=True, sharey='row', squeeze=False, height_ratios=[3, 1])
    for column, training in enumerate(trainings):
        curves, distances = axes[0][column], axes[1][column]
        whole = training.uninterrupted.steps
        resumed_at, killed_at = training.proof.checkpoint, training.proof.killed_at
        curves.plot(*_curve(whole), color='0.75', linewidth=5, label='uninterrupted')
        curves.plot(*_curve(training.killed.steps), color='tab:red', linewidth=1.3, label='killed')
        curves.plot(*_curve(training.resumed.steps), color='tab:blue', linewidth=1.3, label='resumed')
        curves.set_title(
            f'{training.framework}: {training.proof.lost} lost, {training.proof.repeated} repeated '
            f'of {training.proof.expected:,} samples'
        )
        curves.legend(loc='upper right', frameon=False)
        trained = joined(training.killed, training.resumed)
        steps = sorted(trained.keys() & whole.keys())
        apart = [abs(trained[step].loss - whole[step].loss) for step in steps]
        distances.plot(steps, apart, '.', color='tab:blue', markersize=3)
        distances.axhline(training.proof.loss_tolerance, color='0.4', linestyle=':', label='tolerance')
        # Losses may agree to the last bit, which a purely logarithmic axis cannot show.
        distances.set_yscale('symlog', linthresh=1e-8)
        distances.set_ylim(bottom=0)
        distances.legend(loc='upper left', frameon=False)
        distances.set_xlabel('optimizer step')
        for panel in (curves, distances):
            panel.axvspan(resumed_at, killed_at, color='tab:red', alpha=0.15, linewidth=0)
            panel.spines[['top', 'right']].set_visible(False)
        curves.annotate(
            f'kill -9 after step {killed_at},\nresumed from step {resumed_at}',
            xy=(killed_at, 0.6),
            xycoords=('data', 'axes fraction'),
            xytext=(8, 0),
            textcoords='offset points',
            color='tab:red',
        )
    axes[0][0].set_ylabel('loss of the global batch')
    axes[1][0].set_ylabel('distance from the\nuninterrupted run')
    figure.savefig(path, dpi=130)


def _curve(steps: Mapping[int, Step]) -> tuple[list[int], list[float]]:
    numbers = sorted(steps)
    return numbers, [steps[number].loss for number in numbers]
