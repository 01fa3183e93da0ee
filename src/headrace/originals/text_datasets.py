"""Datasets of texts that become tokens: one sequence for each text, or sequences packed from all.

Those of English Wikipedia may also be articles, or samples for BERT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.dataset import StreamingDataset
from headrace.errors import ConfigError, FormatError
from headrace.packing import PackedDataset, Packing, load_tokenizer

_PACKED: Final = ('best_fit', 'concatenate')
_NO_LABEL: Final = -100  # A token that the loss leaves out


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
        tokens = self.tokenizer(text, truncation=True, padding='max_length', max_length=self.max_seq_len)
        return {name: np.asarray(values, np.int64) for name, values in tokens.items()}


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


class StreamingC4(StreamingText):
    """C4, the Colossal Clean Crawled Corpus, as tokens.

    The arguments are those of `StreamingText`. `headrace.text.convert.c4` writes the dataset.
    """


class StreamingPile(StreamingText):
    """The Pile as tokens; the column ``pile_set_name`` of the shards names the collection of each text.

    The arguments are those of `StreamingText`. `headrace.text.convert.pile` writes the dataset. Give
    ``where={'pile_set_name': ['Pile-CC']}`` to read some collections only.
    """


class StreamingEnWiki(StreamingText):
    """English Wikipedia: the articles that `headrace.text.convert.enwiki` writes, or MosaicML's samples for BERT.

    With `tokenizer_name` and `max_seq_len` articles become tokens, as `StreamingText` describes. Without them, a sample
    of an article has the columns of the shards. A sample for BERT has ``input_ids``, ``token_type_ids`` and
    ``attention_mask``, int32 [S], and ``labels``, int64 [S]: the masked tokens, with -100 elsewhere.

    Args:
        tokenizer_name: see `StreamingText`; without it, no tokens are made.
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
