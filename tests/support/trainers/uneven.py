"""Runs of `uneven_run.py`, and the comparison of many ranks with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers.ranks import run_ranks

each_world = pytest.mark.parametrize(
    'worlds',
    [
        [(3, 'pad')],
        pytest.param([(n, how) for n in (3, 5, 6, 7) for how in ('pad', 'ragged')], marks=pytest.mark.slow, id='all'),
    ],
)


def trained(trainer: str, data: Path, folder: Path, ranks: int, uneven: str, loss_weight: str = 'samples') -> Any:
    """What the ranks saw: ids of each global batch, and what is the same on all of them."""
    out, program = folder / f'{ranks}{uneven}{loss_weight}', Path(__file__).with_name('uneven_run.py')
    run_ranks(trainer, ranks, program, trainer, data, uneven, loss_weight, out, folder=folder)
    seen = [json.loads(Path(f'{out}.{rank}.json').read_text()) for rank in range(ranks)]
    ids = [sorted(sum(batches, [])) for batches in zip(*(one.pop('ids') for one in seen), strict=True)]
    for one in seen:
        for name, value in seen[0].items():
            assert one[name] == pytest.approx(value), name
    return ids, seen[0]


def compare(trainer: str, data: Path, folder: Path, worlds: list[tuple[int, str]]) -> None:
    """Check that worlds of ranks train and evaluate as one rank does."""
    ids, one = trained(trainer, data, folder, 1, 'pad')
    assert len(ids) == 4
    for ranks, uneven in worlds:
        found, many = trained(trainer, data, folder, ranks, uneven)
        assert found == ids, (ranks, uneven)
        for name, value in one.items():
            assert many[name] == pytest.approx(value, rel=1e-6), (ranks, uneven, name)
