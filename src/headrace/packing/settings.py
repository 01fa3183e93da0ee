"""How documents become sequences of one length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from headrace.errors import ConfigError

__all__ = ['Method', 'Packing']

Method: TypeAlias = Literal['best_fit', 'concatenate']
TOKEN_DTYPES = ('uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64')


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How a `PackedDataset` packs documents, which are samples of its streams, into sequences.

    Raises:
        ConfigError: a value breaks its rule; all that do are named.
    """

    sequence_length: int
    """Tokens of a sequence, padding included."""
    tokenizer: Any = None
    """Turns texts into tokens: a `tokenizers.Tokenizer`, a tokenizer of `transformers`, a `tiktoken.Encoding`, or a
    function from a list of column values to a list of token arrays, int[n] each, or of dicts with `input_ids` and, of
    the same length, `labels`. None: the column holds tokens already, as an array of integers."""
    column: str | None = None
    """The column that holds the document; None: `text` with a tokenizer, `tokens` without."""
    token_dtype: str | None = None
    """What the bytes of tokens are, where the column holds bytes: `uint16`, `int32`, ..., in this machine's order."""
    method: Method = 'best_fit'
    """`best_fit`: a document stays whole where it is no longer than a sequence, and documents are combined so that
    little is left to pad. `concatenate`: documents follow one another and are cut where a sequence is full; nothing is
    padded."""
    bos_token_id: int | None = None
    """A token to put before each document."""
    eos_token_id: int | None = None
    """A token to put after each document."""
    pad_token_id: int = 0
    """What a sequence is filled up with."""
    lanes: int | None = None
    """How many sequences of documents are packed side by side: lane l takes each document whose position in the order
    is l modulo the lanes. It belongs to the order of a run, whatever its ranks, which must divide it. None: as many as
    a global batch has sequences when the run begins."""
    sequences_per_epoch: int | None = None
    """Sequences that trainers are told make an epoch, a multiple of the lanes. How many the documents make is not known
    before they are tokenised, so that an epoch here need not be a pass over the documents: lanes go on through both.
    None: the epoch does not end, and the loader has no length."""
    window: int = 32
    """Sequences that `best_fit` fills at a time, in each lane: with more of them less is padded, and more must be
    tokenised before the first batch."""

    def __post_init__(self) -> None:
        least = {'sequence_length': 2, 'lanes': 1, 'sequences_per_epoch': 1, 'window': 1, 'pad_token_id': 0}
        least |= {'bos_token_id': 0, 'eos_token_id': 0}
        broken = [
            f'`{name}` must be at least {bound}, but is {getattr(self, name)}'
            for name, bound in least.items()
            if getattr(self, name) is not None and getattr(self, name) < bound
        ]
        if self.method not in get_args(Method):
            broken.append(f'`method` must be one of {list(get_args(Method))}, but is {self.method!r}')
        if self.token_dtype is not None and self.token_dtype not in TOKEN_DTYPES:
            broken.append(f'`token_dtype` must be one of {list(TOKEN_DTYPES)}, but is {self.token_dtype!r}')
        if self.lanes and self.sequences_per_epoch and self.sequences_per_epoch % self.lanes:
            broken.append(lanes_rule(self.sequences_per_epoch, self.lanes))
        if broken:
            raise ConfigError(f'Packing breaks its rules: {"; ".join(broken)}.')

    @property
    def document_column(self) -> str:
        """The column that holds the document."""
        return self.column or ('tokens' if self.tokenizer is None else 'text')

    @property
    def rows_per_window(self) -> int:
        """Sequences that are filled at a time."""
        return self.window if self.method == 'best_fit' else 1


def lanes_rule(sequences_per_epoch: int, lanes: int) -> str:
    """What is wrong with a number of sequences that is no multiple of the lanes."""
    below = sequences_per_epoch // lanes * lanes
    near = ' or '.join(str(size) for size in (below, below + lanes) if size)
    return (
        f'`sequences_per_epoch` must be a multiple of the {lanes} lanes, but is {sequences_per_epoch}; nearest: {near}'
    )
