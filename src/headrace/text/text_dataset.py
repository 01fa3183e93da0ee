"""Datasets of texts that become tokens: one sequence for each text, or sequences packed from all."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.dataset import StreamingDataset
from headrace.errors import ConfigError
from headrace.packing import PackedDataset, Packing, load_tokenizer

__all__ = ['StreamingText']

_PACKED: Final = ('best_fit', 'concatenate')


class StreamingText(StreamingDataset):
    """Texts of the column ``text`` as tokens, in sequences of one length.

    Args:
        tokenizer_name: a folder that `save_pretrained` of transformers has written, or a name for its
            `AutoTokenizer.from_pretrained`. A tokenizer without a padding token pads with its end of text.
        max_seq_len: tokens of a sequence.
        group_method: 'truncate': a sequence for each text, which is cut or padded. A sample has ``input_ids`` and
            ``attention_mask``, int64 [max_seq_len], and what else the tokenizer makes. 'best_fit' or 'concatenate':
            sequences packed from all texts, without loss. The result is then a `headrace.packing.PackedDataset`, whose
            documents end with the tokenizer's end of text.
        arguments: those of `headrace.StreamingDataset`, by name.

    Raises:
        ConfigError: an argument breaks a rule, or the tokenizer cannot be loaded, or has no end of text and no padding.
        MissingDependencyError: transformers is not installed.
    """

    def __new__(cls, *, group_method: str = 'truncate', **arguments: Any) -> Any:
        """The dataset; with a packing `group_method` a `PackedDataset`."""
        if group_method not in _PACKED:
            return super().__new__(cls)
        return _packed(group_method, **arguments)

    def __init__(
        self, *, tokenizer_name: str, max_seq_len: int, group_method: str = 'truncate', **arguments: Any
    ) -> None:
        if group_method != 'truncate':
            names = ', '.join(('truncate', *_PACKED))
            raise ConfigError(f'`group_method` is one of {names}, but is {group_method!r:.80}.')
        _check_length(max_seq_len)
        self.tokenizer_name, self.max_seq_len, self.group_method = tokenizer_name, max_seq_len, group_method
        self.tokenizer: Any = _tokenizer(tokenizer_name)
        super().__init__(**arguments)

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, npt.NDArray[np.int64]]:
        """The tokens of a text, int64 [max_seq_len] each."""
        text = super().get_item(sample_id, retry)['text']
        found = self.tokenizer(text, truncation=True, padding='max_length', max_length=self.max_seq_len)
        return {name: np.asarray(values, np.int64) for name, values in found.items()}


def _packed(method: Any, *, tokenizer_name: str | None = None, max_seq_len: int = 0, **arguments: Any) -> PackedDataset:
    _check_length(max_seq_len)
    if tokenizer_name is None:
        raise ConfigError(f'The `group_method` {method!r} packs tokens, but there is no `tokenizer_name`. Give one.')
    tokenizer = _tokenizer(tokenizer_name)
    packing = Packing(
        sequence_length=max_seq_len,
        tokenizer=tokenizer,
        method=method,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return PackedDataset(packing=packing, **arguments)


def _check_length(max_seq_len: int) -> None:
    if max_seq_len < 2:
        raise ConfigError(f'`max_seq_len` is the tokens of a sequence, 2 or more, but is {max_seq_len!r:.80}.')


def _tokenizer(name: str) -> Any:
    tokenizer = load_tokenizer('transformers', name)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ConfigError(
                f'The tokenizer {name!r} has neither a padding token nor an end of text, so sequences cannot be '
                f'padded. Set `pad_token` and save it again.'
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
