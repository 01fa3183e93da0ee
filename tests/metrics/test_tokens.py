"""Tokens of a batch."""

from __future__ import annotations

import pytest
import torch

from headrace import BAD_SAMPLE
from headrace.metrics import count_tokens


@pytest.mark.parametrize(
    ('batch', 'own', 'tokens'),
    [
        ({'input_ids': torch.zeros(3, 5)}, None, 15),
        ({'input_ids': torch.zeros(3, 5)}, 2, 10),
        ({'tokens': torch.zeros(2, 4, 8)}, None, 8),
        ({'tokens': [[1, 2], [3]]}, None, 3),
        ({'tokens': [[1, 2], [3]]}, 1, 2),
        ({'tokens': torch.zeros(3)}, None, None),
        ({'input_ids': torch.zeros(2, 3), 'attention_mask': torch.tensor([[1, 1, 0], [1, 0, 0]])}, None, 3),
        ({'input_ids': torch.zeros(2, 3), 'attention_mask': torch.tensor([[1, 1, 0], [1, 0, 0]])}, 1, 2),
        ({'input_ids': torch.zeros(3, 5), BAD_SAMPLE: torch.tensor([True, False, True])}, None, 5),
        ({'input_ids': torch.zeros(3, 5), BAD_SAMPLE: torch.tensor([True, False, True])}, 2, 5),
        ({'tokens': [[1, 2], [3]], BAD_SAMPLE: torch.tensor([True, False])}, None, 1),
        ({'tokens': torch.zeros(2, 3), 'attention_mask': torch.ones(2, 3), BAD_SAMPLE: torch.arange(2) > 0}, None, 3),
        ({'image': torch.zeros(3, 5)}, None, None),
        ((torch.zeros(3, 5),), None, None),
    ],
)
def test_tokens_of_a_batch(batch, own, tokens):
    assert count_tokens(batch, own) == tokens
