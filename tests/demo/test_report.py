from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo.proof import prove
from examples.demo.records import Run, Step
from examples.demo.report import Training, draw_curves, table


def training(framework: str, *, lose: int | None = None) -> Training:
    promise = [[[10 * n, 10 * n + 1] for n in range(1, 31)]]
    steps = {n: Step(0, tuple(batch), 6 - n / 10) for n, batch in enumerate(promise[0], start=1)}
    uninterrupted = Run(0, steps)
    killed = Run(0, {n: step for n, step in steps.items() if n <= 13})
    resumed = Run(10, {n: step for n, step in steps.items() if n > 10 and n != lose})
    proof = prove(
        promise, uninterrupted=uninterrupted, killed=killed, resumed=resumed, compared_steps=20, loss_tolerance=1e-4
    )
    return Training(framework=framework, uninterrupted=uninterrupted, killed=killed, resumed=resumed, proof=proof)


def test_the_table_has_a_column_for_each_framework() -> None:
    lines = [line.split() for line in table([training('lightning'), training('composer', lose=20)]).splitlines()]

    assert ['lightning', 'composer'] in lines
    assert ['samples', 'expected', '60', '60'] in lines
    assert ['samples', 'seen', '60', '58'] in lines
    assert ['samples', 'lost', '0', '2'] in lines
    assert ['samples', 'repeated', '0', '0'] in lines
    assert ['killed', 'after', 'step', '13', '13'] in lines
    assert lines[-1] == ['verdict', 'exact', 'BROKEN']


@pytest.mark.parametrize('trainings', [[training('lightning')], [training('lightning'), training('composer', lose=20)]])
def test_the_curves_are_drawn(trainings: list[Training], tmp_path: Path) -> None:
    pytest.importorskip('matplotlib')

    draw_curves(trainings, tmp_path / 'loss.png')

    assert (tmp_path / 'loss.png').read_bytes().startswith(b'\x89PNG')
