"""Data that grow under Lightning: each epoch has the samples that were there when it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.datasets.growing import growing
from tests.support.trainers.lightning_oracle import records
from tests.support.trainers.lightning_run import Crash, Run, train


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    columns = {'id': 'int', 'row': 'ndarray:float32:4'}

    def sample(number: int) -> dict[str, Any]:
        return {'id': number, 'row': np.full(4, number, np.float32)}

    return growing(tmp_path / 'data', monkeypatch, columns, sample, first=40, later=24)


def trained(run: Run) -> list[tuple[int, list[int]]]:
    return [(record['epoch'], sorted(record['ids'])) for record in records(run)[0]]


def epochs(batches: list[tuple[int, list[int]]]) -> list[list[int]]:
    return [sorted(i for epoch, ids in batches if epoch == e for i in ids) for e in range(batches[-1][0] + 1)]


@pytest.mark.parametrize(('mode', 'first'), [('next_pass', (0, 0, 0)), ('delta', (0, 40, 64))])
def test_an_epoch_has_what_was_there_when_it_began(
    tmp_path: Path, data: str, mode: str, first: tuple[int, ...]
) -> None:
    options: dict[str, Any] = {
        'out': str(tmp_path),
        'streams': {'a': data},
        'dataset': {'on_growth': mode},
        'trainer': {'max_epochs': 3},
    }
    run = Run(name='run', crash_at=15 if mode == 'next_pass' else 9, on_exception=True, **options)
    with pytest.raises(Crash):
        train(run)
    rest = Run(name='rest', checkpoint=str(run.checkpoints / 'exception.ckpt'), **options)
    train(rest)
    found = epochs(trained(run) + trained(rest))
    assert found == [list(range(a, b)) for a, b in zip(first, (40, 64, 88), strict=True)]
    assert len(trained(run) + trained(rest)) == sum((b - a) // 8 for a, b in zip(first, (40, 64, 88), strict=True))


@pytest.mark.parametrize('saves', ['at_end', 'every_epoch'])
def test_an_epoch_that_begins_at_a_resume_has_all_that_was_appended(tmp_path: Path, data: str, saves: str) -> None:
    def part(name: str, max_epochs: int, **more: Any) -> Run:
        return Run(
            name=name,
            out=str(tmp_path),
            streams={'a': data},
            dataset={'on_growth': 'next_pass'},
            trainer={'max_epochs': max_epochs},
            **{saves: True},
            **more,
        )

    first = part('first', 1)
    train(first)
    rest = part('rest', 2, checkpoint=str(first.checkpoints))
    train(rest)
    assert epochs(trained(first) + trained(rest)) == [list(range(40)), list(range(64))]
