"""Evaluation under Composer counts each sample once, also where a rank has none of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import MDSWriter
from tests.support import support_file
from tests.support.trainers.ranks import run_ranks

pytestmark = [pytest.mark.composer, pytest.mark.timeout(400)]

SIZES = (1, 9, 101)


@pytest.mark.parametrize(
    ('ranks', 'replication'), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)], ids=['2', '4-in-pairs']
)
def test_metrics_of_several_ranks_are_those_of_the_data(tmp_path: Path, ranks: int, replication: int) -> None:
    for size in SIZES:
        with MDSWriter(out=str(tmp_path / str(size)), columns={'id': 'int'}, size_limit=300) as writer:
            for number in range(size):
                writer.write({'id': number * number})
    program = support_file('trainers/composer_evaluation.py')
    run_ranks('composer', ranks, program, tmp_path, replication, *SIZES, folder=tmp_path)
    for rank in range(ranks):
        found = json.loads((tmp_path / f'rank{rank}.json').read_text())
        for size in SIZES:
            mean = pytest.approx(sum(number * number for number in range(size)) / size, rel=1e-6)
            assert found[str(size)]['means'] == {'plain': mean, 'marked': mean, 'own count': mean}
            assert found[str(size)]['samples'] == [size] * 6
    # Every rank ran the model equally often: other ranks may wait for it.
    assert len({(tmp_path / f'rank{rank}.json').read_text() for rank in range(ranks)}) == 1
