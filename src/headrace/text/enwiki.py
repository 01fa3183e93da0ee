"""English Wikipedia: articles, or samples for BERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from headrace.dataset import StreamingDataset
from headrace.errors import ConfigError, FormatError
from headrace.text.text_dataset import StreamingText

__all__ = ['StreamingEnWiki']

_NO_LABEL: Final = -100
"""A token that the loss leaves out."""


class StreamingEnWiki(StreamingText):
    """English Wikipedia: the articles that `headrace.text.convert.enwiki` writes, or MosaicML's samples for BERT.

    With `tokenizer_name` and `max_seq_len` articles become tokens, as `StreamingText` describes. Without them, a sample
    of an article has the columns of the shards. A sample for BERT has ``input_ids``, ``token_type_ids`` and
    ``attention_mask``, int32 [S], and ``labels``, int64 [S]: the masked tokens, with -100 elsewhere.

    Args:
        tokenizer_name: see `StreamingText`; None: no tokens are made.
        max_seq_len: see `StreamingText`.
        group_method: see `StreamingText`.
        arguments: those of `headrace.StreamingDataset`, by name.

    Raises:
        ConfigError: an argument breaks a rule.
    """

    def __init__(
        self,
        *,
        tokenizer_name: str | None = None,
        max_seq_len: int | None = None,
        group_method: str = 'truncate',
        **arguments: Any,
    ) -> None:
        if (tokenizer_name is None) != (max_seq_len is None):
            raise ConfigError(
                f'`tokenizer_name` and `max_seq_len` go together, but got {tokenizer_name!r} and {max_seq_len}.'
            )
        if tokenizer_name is not None and max_seq_len is not None:
            super().__init__(
                tokenizer_name=tokenizer_name, max_seq_len=max_seq_len, group_method=group_method, **arguments
            )
        else:
            StreamingDataset.__init__(self, **arguments)
            self.tokenizer = None

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """An article, its tokens, or a sample for BERT."""
        if self.tokenizer is not None:
            return super().get_item(sample_id, retry)
        sample = StreamingDataset.get_item(self, sample_id, retry)
        return _bert(sample) if 'masked_lm_positions' in sample else sample


def _bert(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of the bytes that MosaicML's scripts write: little-endian int32, and float32 for the weights."""
    values = {
        name: np.frombuffer(value, '<f4' if name == 'masked_lm_weights' else '<i4').copy()
        for name, value in sample.items()
    }
    size, places = len(values['input_ids']), values['masked_lm_positions']
    # Unused places are filled up with 0, and have no weight.
    used = values['masked_lm_weights'] > 0 if 'masked_lm_weights' in values else np.ones(len(places), bool)
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < size:
        raise FormatError(
            f'A masked token of a sample with {size} tokens has a place below that, but places go from {places.min()} '
            f'to {places.max()}.'
        )
    labels = np.full(size, _NO_LABEL, np.int64)
    labels[places[used]] = values['masked_lm_ids'][used]
    return {
        'input_ids': values['input_ids'],
        'token_type_ids': values['segment_ids'],
        'attention_mask': values['input_mask'],
        'labels': labels,
    }
