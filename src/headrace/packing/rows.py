"""Sequences as a batch, and the boundaries of documents in the form that attention kernels take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from headrace.packing.lane import Piece

__all__ = ['IGNORED', 'batch_of', 'flat_cu_seqlens']

IGNORED = -100
"""The label of a place that PyTorch's and Hugging Face's losses leave out."""


def batch_of(rows: Sequence[Sequence[Piece]], sequence_length: int, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Sequences of pieces as tensors, each with a row for each sequence.

    Args:
        rows: the sequences; the pieces of each fill at most `sequence_length` tokens. One without pieces is padding.
        sequence_length: tokens of a sequence, padding included; S below.
        pad_token_id: what fills the rest.

    Returns:
        - ``input_ids``, int64[rows, S].
        - ``labels``, int64[rows, S]: what the place holds, for models that shift labels themselves; -100, which losses
          leave out, for padding and for the first token of each piece, which no token before it foretells.
        - ``position_ids``, int64[rows, S]: places in the piece, from 0; so in the padding, too.
        - ``cu_seqlens``, int32[rows, n]: where pieces begin in the row, then where the last one and the padding end:
          0, ..., S. Rows with fewer pieces than others repeat S.
        - ``num_tokens``, int64[rows]: tokens that are no padding.
    """
    shape = len(rows), sequence_length
    input_ids = np.full(shape, pad_token_id, np.int64)
    labels = np.full(shape, IGNORED, np.int64)
    position_ids = np.empty(shape, np.int64)
    num_tokens = np.empty(len(rows), np.int64)
    boundaries: list[npt.NDArray[np.int64]] = []
    for row, pieces in enumerate(rows):
        lengths = [len(piece.tokens) for piece in pieces]
        used = num_tokens[row] = sum(lengths)
        if used < sequence_length:
            lengths.append(sequence_length - used)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        if pieces:
            input_ids[row, :used] = np.concatenate([piece.tokens for piece in pieces])
            labels[row, :used] = np.concatenate(
                [piece.tokens if piece.labels is None else piece.labels for piece in pieces]
            )
        labels[row, starts] = IGNORED
        position_ids[row] = np.arange(sequence_length) - np.repeat(starts, lengths)
        boundaries.append(np.concatenate([[0], ends]))
    cu_seqlens = np.full((len(rows), max(map(len, boundaries))), sequence_length, np.int32)
    for row, found in enumerate(boundaries):
        cu_seqlens[row, : len(found)] = found
    columns = {
        'input_ids': input_ids,
        'labels': labels,
        'position_ids': position_ids,
        'cu_seqlens': cu_seqlens,
        'num_tokens': num_tokens,
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def flat_cu_seqlens(cu_seqlens: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Boundaries of the pieces of a batch, or of a part of its rows, whose rows are laid end to end.

    They are what variable-length attention kernels take, FlashAttention's for one, beside ``input_ids.flatten()``.

    Args:
        cu_seqlens: int32[rows, n], as in a batch, on any device.

    Returns:
        int32[m + 1], where each of m pieces begins and the last one ends, padding being pieces too; and the length of
        the longest piece.
    """
    length = int(cu_seqlens[0, -1])
    starts = torch.arange(len(cu_seqlens), device=cu_seqlens.device, dtype=cu_seqlens.dtype)[:, None] * length
    begins = (cu_seqlens[:, :-1] + starts)[cu_seqlens[:, :-1] < length]
    flat = torch.cat([begins, begins.new_tensor([len(cu_seqlens) * length])])
    return flat, int(flat.diff().max())
