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
    """Turns texts into tokens: a `tokenizers.Tokenizer`, a `transformers` tokenizer, a `tiktoken.Encoding`, or a
    function. The function takes a list of column values. It returns a list of token arrays, int[n], or of dicts with
    `input_ids` and `labels` of one length. None: the column already holds arrays of integers."""
    column: str | None = None
    """The column that holds the document; None: `text` with a tokenizer, `tokens` without."""
    token_dtype: str | None = None
    """Type of the tokens in a column of bytes: `uint16`, `int32`, ..., in this machine's byte order."""
    method: Method = 'best_fit'
    """`best_fit`: a document that fits into a sequence stays whole, and documents are combined to need little padding.
    `concatenate`: documents follow one another and are cut at the end of each sequence, without padding."""
    bos_token_id: int | None = None
    """A token to put before each document."""
    eos_token_id: int | None = None
    """A token to put after each document."""
    pad_token_id: int = 0
    """The padding token."""
    lanes: int | None = None
    """Number of lanes packed side by side. Lane l takes the documents whose position is l modulo the lanes. The number
    is fixed for a run, and its ranks must divide it. None: the sequences of a global batch when the run begins."""
    sequences_per_epoch: int | Literal['all'] | None = None
    """Sequences of an epoch for the trainer, a multiple of the lanes. An epoch need not be a pass over the documents,
    because their number of sequences is not known before tokenising. None: the epoch does not end, and the loader has
    no length. 'all': for evaluation, the epoch has each document of a pass once, in as many sequences as they need. The
    documents are read and tokenised once to count them, on each rank, when the dataset is made. Any number of ranks may
    share the sequences, and `lanes` must be left out."""
    window: int = 32
    """Sequences that `best_fit` fills at a time in each lane. A larger window pads less, but tokenises more before the
    first batch."""

    def __post_init__(self) -> None:
        least = {'sequence_length': 2, 'lanes': 1, 'sequences_per_epoch': 1, 'window': 1, 'pad_token_id': 0}
        least |= {'bos_token_id': 0, 'eos_token_id': 0}
        broken = [
            f'`{name}` must be at least {bound}, but is {getattr(self, name)}'
            for name, bound in least.items()
            if isinstance(getattr(self, name), int) and getattr(self, name) < bound
        ]
        if isinstance(self.sequences_per_epoch, str) and self.sequences_per_epoch != 'all':
            broken.append(f"`sequences_per_epoch` must be a number or 'all', but is {self.sequences_per_epoch!r}")
        if self.lanes and self.sequences_per_epoch == 'all':
            broken.append(f"`lanes` must be left out with sequences_per_epoch 'all', but is {self.lanes}")
        if self.method not in get_args(Method):
            broken.append(f'`method` must be one of {list(get_args(Method))}, but is {self.method!r}')
        if self.token_dtype is not None and self.token_dtype not in TOKEN_DTYPES:
            broken.append(f'`token_dtype` must be one of {list(TOKEN_DTYPES)}, but is {self.token_dtype!r}')
        if self.lanes and self.sequence_count and self.sequence_count % self.lanes:
            broken.append(lanes_rule(self.sequence_count, self.lanes))
        if broken:
            raise ConfigError(f'Packing breaks its rules: {"; ".join(broken)}.')

    @property
    def sequence_count(self) -> int | None:
        """Sequences of an epoch, where they are given as a number."""
        return self.sequences_per_epoch if isinstance(self.sequences_per_epoch, int) else None

    @property
    def document_column(self) -> str:
        """The column that holds the document."""
        return self.column or ('tokens' if self.tokenizer is None else 'text')

    @property
    def rows_per_window(self) -> int:
        """Sequences filled at a time."""
        return self.window if self.method == 'best_fit' else 1


def lanes_rule(sequences_per_epoch: int, lanes: int) -> str:
    """Message for a number of sequences that is not a multiple of the lanes."""
    below = sequences_per_epoch // lanes * lanes
    near = ' or '.join(str(size) for size in (below, below + lanes) if size)
    return (
        f'`sequences_per_epoch` must be a multiple of the {lanes} lanes, but is {sequences_per_epoch}; nearest: {near}'
    )
