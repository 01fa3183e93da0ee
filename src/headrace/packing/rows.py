"""Sequences as a batch, and the boundaries of documents in the form that attention kernels take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from headrace.packing.lane import Piece

IGNORED = -100  # the label that PyTorch's and Hugging Face's losses ignore


def batch_of(rows: Sequence[Sequence[Piece]], sequence_length: int, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Sequences of pieces as tensors, each with a row for each sequence.

    Args:
        rows: the sequences; the pieces of each fill at most `sequence_length` tokens. One without pieces is padding.
        sequence_length: tokens of a sequence, padding included; S below.
        pad_token_id: the padding token.

    Returns:
        - ``input_ids``, int64[rows, S].
        - ``labels``, int64[rows, S]: the tokens themselves, for models that shift labels. Padding and the first token
          of each piece have -100, which losses ignore.
        - ``position_ids``, int64[rows, S]: places in the piece, from 0; the padding counts as a piece.
        - ``cu_seqlens``, int32[rows, n]: bounds of the pieces and of the padding, 0, ..., S. Rows with fewer pieces
          than others repeat S.
        - ``num_tokens``, int64[rows]: tokens without padding.
    """
    count, length = len(rows), sequence_length
    pieces = [piece for row in rows for piece in row]
    lengths = np.array([len(piece.tokens) for piece in pieces], np.int64)
    num_tokens = np.bincount(np.repeat(np.arange(count), [len(row) for row in rows]), lengths, count).astype(np.int64)
    # Places in the batch, row after row.
    row_begins = np.arange(count) * length
    paddings = (row_begins + num_tokens)[num_tokens < length]
    before = np.cumsum(num_tokens) - num_tokens
    row_of = before.searchsorted(np.cumsum(lengths) - lengths, 'right') - 1
    begins = np.cumsum(lengths) - lengths + (row_begins - before)[row_of]
    bounds = np.sort(np.concatenate([begins, paddings]))
    is_token = None if not len(paddings) else np.arange(length) < num_tokens[:, None]

    def filled(values: list[npt.NDArray[np.int32]], padding: int) -> npt.NDArray[np.int64]:
        out = np.empty((count, length), np.int64)
        if is_token is None:
            np.concatenate(values, out=out.reshape(-1))
        else:
            out.fill(padding)
            out[is_token] = np.concatenate([np.empty(0, np.int32), *values])
        return out

    input_ids = filled([piece.tokens for piece in pieces], pad_token_id)
    labels = filled([piece.tokens if piece.labels is None else piece.labels for piece in pieces], IGNORED)
    labels.reshape(-1)[begins] = IGNORED
    position_ids = np.arange(count * length)
    position_ids -= np.repeat(bounds, np.diff(bounds, append=count * length))
    rows_of_bounds = bounds // length
    numbers = np.arange(len(bounds)) - rows_of_bounds.searchsorted(rows_of_bounds)
    cu_seqlens = np.full((count, int(numbers.max()) + 2), length, np.int32)
    cu_seqlens[rows_of_bounds, numbers] = bounds - rows_of_bounds * length
    columns = {
        'input_ids': input_ids,
        'labels': labels,
        'position_ids': position_ids.reshape(count, length),
        'cu_seqlens': cu_seqlens,
        'num_tokens': num_tokens,
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def flat_cu_seqlens(cu_seqlens: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Bounds of the pieces of a batch, or of some of its rows, for rows laid end to end.

    Variable-length attention kernels such as FlashAttention's take them beside ``input_ids.flatten()``.

    Args:
        cu_seqlens: int32[rows, n], as in a batch, on any device.

    Returns:
        The bounds of m pieces, int32[m + 1], padding included; and the length of the longest piece.
    """
    length = int(cu_seqlens[0, -1])
    starts = torch.arange(len(cu_seqlens), device=cu_seqlens.device, dtype=cu_seqlens.dtype)[:, None] * length
    begins = (cu_seqlens[:, :-1] + starts)[cu_seqlens[:, :-1] < length]
    flat = torch.cat([begins, begins.new_tensor([len(cu_seqlens) * length])])
    return flat, int(flat.diff().max())


def segment_ids(cu_seqlens: torch.Tensor, sequence_length: int) -> torch.Tensor:
    """The number of the piece that each token belongs to, for masks of attention such as FlexAttention's.

    Args:
        cu_seqlens: int32[rows, n], as in a batch, on any device.
        sequence_length: tokens of a sequence; S below.

    Returns:
        int64[rows, S], from 0 in each row. The padding of a row is its last piece.
    """
    places = torch.arange(sequence_length, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens.long(), places.expand(len(cu_seqlens), -1).contiguous(), right=True) - 1


def attention_mask(cu_seqlens: torch.Tensor, sequence_length: int) -> torch.Tensor:
    """Where tokens may attend: to earlier tokens of their own piece, and to themselves.

    It is the `attn_mask` of ``torch.nn.functional.scaled_dot_product_attention``. Its memory grows with the square of
    the sequence length; for long sequences, prefer FlexAttention with `segment_ids`, or `flat_cu_seqlens`.

    Args:
        cu_seqlens: int32[rows, n], as in a batch, on any device.
        sequence_length: tokens of a sequence; S below.

    Returns:
        bool[rows, 1, S, S], True where the token of the third dimension may attend to that of the fourth.
    """
    segments = segment_ids(cu_seqlens, sequence_length)
    return ((segments[:, :, None] == segments[:, None, :]).tril())[:, None]
