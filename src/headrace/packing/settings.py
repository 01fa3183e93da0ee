"""How documents become sequences of one length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from headrace.errors import ConfigError
from headrace.errors.exclusions import BrokenRule

Method: TypeAlias = Literal['best_fit', 'concatenate']
WeightsCount: TypeAlias = Literal['documents', 'tokens']
TokenDtype: TypeAlias = Literal['uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64']
LEAST: Final[Mapping[str, int]] = {
    'sequence_length': 2,
    'lanes': 1,
    'sequences_per_epoch': 1,
    'window': 1,
    'pad_token_id': 0,
    'bos_token_id': 0,
    'eos_token_id': 0,
}
"""The smallest value of each setting that is a number."""


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
    `input_ids` and `labels` of one length. None if the column already holds arrays of integers."""
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
    is fixed for a run, and its ranks must divide it. By default it is the number of sequences of a global batch when
    the run begins."""
    sequences_per_epoch: int | Literal['all'] | None = None
    """Sequences of an epoch for the trainer, a multiple of the lanes. An epoch need not be a pass over the documents,
    because their number of sequences is not known before tokenising. By default the epoch does not end, and the loader
    has no length. 'all': for evaluation, the epoch has each document of a pass once, in as many sequences as they need.
    The documents are read and tokenised once to count them, on each rank, when the dataset is made. Any number of ranks
    may share the sequences, and `lanes` must be left out."""
    window: int = 32
    """Sequences that `best_fit` fills at a time in each lane. A larger window pads less, but tokenises more before the
    first batch."""
    weights_count: WeightsCount = 'documents'
    """The unit of the streams' proportions. `tokens`: each sequence is of one stream, and the proportions are those of
    sequences, which all have the same number of tokens."""

    def __post_init__(self) -> None:
        _refuse_broken(self, 'Packing', packing_errors(self))

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


@dataclass(frozen=True, kw_only=True)
class StreamPacking:
    """The documents of one stream, as `Stream(packing=...)`, where they are not those of its dataset's `Packing`.

    None: as there. Without a tokenizer of its own, a stream has that of the dataset, unless it names `token_dtype`, or
    a `column` of arrays: then its column holds tokens.

    Raises:
        ConfigError: a value breaks its rule; all that do are named.
    """

    column: str | None = None
    """The column that holds the document."""
    tokenizer: Any = None
    """Turns texts into tokens."""
    token_dtype: str | None = None
    """Type of the tokens in a column of bytes, or of tokens that JSON lists."""
    bos_token_id: int | None = None
    """A token to put before each document."""
    eos_token_id: int | None = None
    """A token to put after each document."""

    def __post_init__(self) -> None:
        _refuse_broken(self, 'The packing of a stream', stream_packing_errors(self))

    def of(self, packing: Packing, *, is_array: bool) -> Packing:
        """The packing of the stream's documents.

        Args:
            packing: the dataset's.
            is_array: whether `column` stores arrays.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in given.items() if value is not None}
        if self.tokenizer is None and (self.token_dtype is not None or is_array):
            given['tokenizer'] = None
        return replace(packing, **given)


def packing_errors(settings: Any) -> Iterator[BrokenRule]:
    yield from _value_errors(settings)
    lanes, sequences = settings.lanes, settings.sequences_per_epoch
    if isinstance(sequences, str) and sequences != 'all':
        yield BrokenRule(('sequences_per_epoch',), '`sequences_per_epoch` must be a number or `all`')
    elif isinstance(sequences, str) and lanes:
        rule = '`lanes` must be left out if `sequences_per_epoch` is `all`'
        yield BrokenRule(('lanes', 'sequences_per_epoch'), rule)
    elif isinstance(sequences, str) and settings.weights_count == 'tokens':
        rule = "`weights_count` must be 'documents' if `sequences_per_epoch` is `all`, which has each document once"
        yield BrokenRule(('weights_count', 'sequences_per_epoch'), rule)
    elif isinstance(sequences, int) and lanes and sequences % lanes:
        yield lanes_error(sequences, lanes)


def stream_packing_errors(settings: Any) -> Iterator[BrokenRule]:
    yield from _value_errors(settings)
    if settings.tokenizer is not None and settings.token_dtype is not None:
        rule = '`token_dtype` says that the column holds tokens, and `tokenizer` that it holds texts; keep one'
        yield BrokenRule(('token_dtype', 'tokenizer'), rule)


def _value_errors(settings: Any) -> Iterator[BrokenRule]:
    for name, bound in LEAST.items():
        value = getattr(settings, name, None)
        if isinstance(value, int) and value < bound:
            yield BrokenRule((name,), f'`{name}` must be at least {bound}')
    for name, choices in (
        ('method', get_args(Method)),
        ('weights_count', get_args(WeightsCount)),
        ('token_dtype', (None, *get_args(TokenDtype))),
    ):
        if getattr(settings, name, choices[0]) not in choices:
            listed = ', '.join(choice for choice in choices if choice)
            yield BrokenRule((name,), f'`{name}` must be one of {listed}')


def _refuse_broken(settings: object, what: str, rules: Iterator[BrokenRule]) -> None:
    broken = [f'{rule.rule} (got {getattr(settings, rule.keys[0])!r})' for rule in rules]
    if broken:
        raise ConfigError(f'{what} breaks its rules: {"; ".join(broken)}.')


def lanes_error(sequences_per_epoch: int, lanes: int) -> BrokenRule:
    """The broken rule of a number of sequences that the lanes do not divide."""
    below = sequences_per_epoch // lanes * lanes
    near = ' or '.join(str(size) for size in (below, below + lanes) if size)
    rule = f'`sequences_per_epoch` must be a multiple of the {lanes} `lanes`; nearest: {near}'
    return BrokenRule(('sequences_per_epoch', 'lanes'), rule)
