"""How documents become sequences of one length."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, TypeAlias, get_origin

from headrace.errors import ConfigError
from headrace.errors.exclusions import BrokenRule
from headrace.format import number_abbrev_to_int
from headrace.options.constraints import AtLeast, Parsed, choices_of, field_types, plain, unwrap
from headrace.selection import Mistake

Method: TypeAlias = Literal['best_fit', 'concatenate']
WeightsCount: TypeAlias = Literal['documents', 'tokens']
TokenDtype: TypeAlias = Literal['uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64']


def _read_sequences(value: object, mistakes: list[Mistake]) -> int | str:
    number = value
    if value == 'all':
        return 'all'
    if isinstance(value, str):
        with contextlib.suppress(ConfigError):
            number = number_abbrev_to_int(value)
    # YAML reads 1e6 as a float.
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        mistakes.append(Mistake((), value, "must be an integer of at least 1, text like '64k', or `all`"))
        return 'all'
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """The options that say how a sample is a document."""

    column: str | None = None
    """The column of the documents. Default: `text` with a tokenizer, `tokens` without; of a stream, the loader's."""

    tokenizer: Any = None
    """Turns texts into tokens: a `tokenizers.Tokenizer`, a `transformers` tokenizer, a `tiktoken.Encoding`, or a
    function. The function takes a list of column values. It returns a list of token arrays, int[n], or of dicts with
    `input_ids` and `labels` of one length. Default: the column already holds arrays of integers."""

    token_dtype: TokenDtype | None = None
    """Type of the tokens in a column of bytes, in this machine's byte order; of a stream, also of tokens that JSON
    lists."""

    bos_token_id: Annotated[int | None, AtLeast(0)] = None
    """A token to put before each document."""

    eos_token_id: Annotated[int | None, AtLeast(0)] = None
    """A token to put after each document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingOptions(DocumentOptions):
    """The options that say how documents become sequences."""

    sequence_length: Annotated[int | None, AtLeast(2)] = None
    """Tokens of a sequence, padding included."""

    method: Method = 'best_fit'
    """`best_fit` keeps a document whole that fits into a sequence, and combines documents so that little padding is
    needed. `concatenate` lays them end to end and cuts them at the end of each sequence, without padding."""

    pad_token_id: Annotated[int, AtLeast(0)] = 0
    """The padding token."""

    lanes: Annotated[int | None, AtLeast(1)] = None
    """Lanes that are packed side by side; ranks divide their number, which is fixed for a run. Lane l takes the
    documents whose position is l modulo the lanes. Default: the first global batch size."""

    sequences_per_epoch: Annotated[int | str | None, Parsed(_read_sequences, "a number, text like '64k', or `all`")] = (
        None
    )
    """Sequences of an epoch, a multiple of the lanes; or `all`, for evaluation: each document once, which each rank
    reads and tokenises beforehand to count them, without `lanes`. Default: the epoch does not end, and the loader has
    no length."""

    window: Annotated[int, AtLeast(1)] = 32
    """Sequences that `best_fit` fills at a time in a lane. A larger window pads less, but tokenises more before the
    first batch."""

    weights_count: WeightsCount = 'documents'
    """Unit of the streams' proportions. With `tokens`, each sequence is of one stream, and the proportions are those of
    sequences."""


def _state(settings: DocumentOptions) -> dict[str, Any]:
    """The state of a copy: the options, and what a subclass adds, which the state of a class with slots lacks."""
    return {**{field.name: getattr(settings, field.name) for field in fields(settings)}, **vars(settings)}


def _set_state(settings: DocumentOptions, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(settings, name, value)


@dataclass(frozen=True, kw_only=True)
class Packing(PackingOptions):
    """How a `PackedDataset` packs documents, which are samples of its streams, into sequences.

    Raises:
        ConfigError: a value breaks its rule; all that do are named.
    """

    sequence_length: Annotated[int, AtLeast(2)]  # pyright: ignore[reportGeneralTypeIssues] - all fields are given by name
    """Tokens of a sequence, padding included."""

    __getstate__ = _state
    __setstate__ = _set_state

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
class StreamPacking(DocumentOptions):
    """The documents of one stream, as `Stream(packing=...)`, where they are not those of its dataset's `Packing`.

    None: as there. Without a tokenizer of its own, a stream has that of the dataset, unless it names `token_dtype`, or
    a `column` of arrays: then its column holds tokens.

    Raises:
        ConfigError: a value breaks its rule; all that do are named.
    """

    __getstate__ = _state
    __setstate__ = _set_state

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
    elif isinstance(sequences, int) and sequences < 1:
        yield BrokenRule(('sequences_per_epoch',), '`sequences_per_epoch` must be at least 1')
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
    for name, hint in field_types(type(settings)).items():
        (kind, constraint), value = unwrap(hint), getattr(settings, name)
        if isinstance(constraint, AtLeast) and isinstance(value, int) and not constraint.holds(value):
            yield BrokenRule((name,), f'`{name}` must be at least {constraint.bound}')
        choices = choices_of(kind, constraint)
        if choices and value not in choices and (value is not None or get_origin(hint) is Literal):
            yield BrokenRule((name,), f'`{name}` must be one of {", ".join(choices)}')


def _refuse_broken(settings: DocumentOptions, what: str, rules: Iterator[BrokenRule]) -> None:
    for option in fields(settings):
        object.__setattr__(settings, option.name, plain(getattr(settings, option.name)))
    broken = [f'{rule.rule} (got {getattr(settings, rule.keys[0])!r})' for rule in rules]
    if broken:
        raise ConfigError(f'{what} breaks its rules: {"; ".join(broken)}.')


def lanes_error(sequences_per_epoch: int, lanes: int) -> BrokenRule:
    """The broken rule of a number of sequences that the lanes do not divide."""
    below = sequences_per_epoch // lanes * lanes
    near = ' or '.join(str(size) for size in (below, below + lanes) if size)
    rule = f'`sequences_per_epoch` must be a multiple of the {lanes} `lanes`; nearest: {near}'
    return BrokenRule(('sequences_per_epoch', 'lanes'), rule)
