"""Data that grow under Composer: each epoch has the samples that were there when it began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.datasets.growing import growing
from tests.support.trainers.composer_legs import Leg, run
from tests.support.trainers.composer_runs import TOKENS, lines, trained

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]


def test_an_epoch_has_what_was_there_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {'id': 'int', 'x': 'float32', 'input_ids': f'ndarray:int32:{TOKENS}'}

    def sample(number: int) -> dict[str, Any]:
        return {'id': number, 'x': number / 100, 'input_ids': np.full(TOKENS, number, np.int32)}

    data = growing(tmp_path / 'data', monkeypatch, columns, sample, first=40, later=24)
    first = Leg('first', data, str(tmp_path), duration='3ep', dataset={'on_growth': 'next_pass'}, save=True)
    run(first)
    batches, lengths = list(trained(first, 1).values()), [5, 8, 11]
    ends = np.cumsum(lengths).tolist()
    for begin, end, samples in zip([0, *ends], ends, [40, 64, 88], strict=False):
        assert sorted(sum(batches[begin:end], [])) == list(range(samples))
    assert len(batches) == ends[-1]
    assert [line['len'] for line in lines(first)] == [length for length in lengths for _ in range(length)]
    before = [8 * k for length in lengths for k in range(length)]
    assert [line['sample_in_epoch'] for line in lines(first)] == before
    rest = replace(first, name='rest', save=False, load=f'{tmp_path}/first-second.pt')
    run(rest)
    assert list(trained(rest, 1).values()) == batches[17:]
