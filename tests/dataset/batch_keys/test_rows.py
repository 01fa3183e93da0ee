"""Rows of batches of any structure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from headrace import PADDING, without_padding
from headrace.dataset.batch_keys.padding import marked
from headrace.errors import ConfigError


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: Any


def test_padding_is_taken_out_of_any_batch() -> None:
    batch = {'x': torch.arange(3), 'text': ['a', 'b', 'c'], 'deep': {'y': np.arange(6).reshape(3, 2)}, 'n': 5}
    cut = without_padding(marked(batch, rows=3, own_samples=2))
    assert PADDING not in batch
    assert list(cut) == ['x', 'text', 'deep', 'n']
    assert cut['x'].tolist() == [0, 1]
    assert (cut['text'], cut['deep']['y'].shape, cut['n']) == (['a', 'b'], (2, 2), 5)
    pair = without_padding(Pair(torch.arange(2), [torch.arange(2), {'z': torch.arange(2)}]), 1)
    assert type(pair) is Pair
    assert pair.inputs.tolist() == [0]
    assert pair.labels[1]['z'].tolist() == [0]
    assert without_padding(torch.arange(4), 4).tolist() == [0, 1, 2, 3]
    assert without_padding({'x': torch.arange(1), PADDING: torch.tensor([True])})['x'].tolist() == []


def test_a_batch_whose_rows_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match='holds no mark'):
        without_padding({'x': torch.arange(3)})
    with pytest.raises(ConfigError, match=r'a row for each of its samples, 2 of which count, but it is \{packed'):
        without_padding({'packed': torch.zeros(2, 9), PADDING: torch.tensor([False, False, True])})
    with pytest.raises(ConfigError, match='a row for each of its samples'):
        without_padding((torch.arange(9), torch.arange(9)), 3)
