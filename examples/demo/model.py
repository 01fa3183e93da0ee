"""A small GPT over bytes: fp32 and no dropout, so that two runs over the same batches have the same losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ['TinyGPT', 'make_model', 'make_optimizer', 'next_byte_loss']

_VOCABULARY = 256
_WIDTH = 64
_HEADS = 4
_BLOCKS = 2
_MAX_LENGTH = 256


class _Block(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(_WIDTH)
        self.query_key_value = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.norm_mlp = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = self.query_key_value(self.norm_attention(x)).view(rows, length, 3, _HEADS, width // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm_mlp(x))


class TinyGPT(nn.Module):
    """A decoder that predicts the next byte at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(_VOCABULARY, _WIDTH)
        self.positions = nn.Embedding(_MAX_LENGTH, _WIDTH)
        self.blocks = nn.Sequential(*(_Block() for _ in range(_BLOCKS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the byte after each of ``tokens`` (rows x length, any integer dtype)."""
        x = self.bytes(tokens.long()) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def next_byte_loss(model: nn.Module, rows: Tensor) -> Tensor:
    """The mean cross entropy over all positions of all rows.

    Rows are equally long, so the mean over ranks of equal size is the loss of the global batch, however it was split.
    """
    logits = model(rows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].long().flatten())


def make_model() -> TinyGPT:
    """The same initial weights on every rank and in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return TinyGPT()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW at a constant rate: a schedule would hide a step that is lost or done twice."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
