"""The schema of packing, and the `Packing` that it describes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from headrace.config.validate import AtLeast, Parsed
from headrace.errors import ConfigError
from headrace.errors.exclusions import BrokenRule
from headrace.format import number_abbrev_to_int
from headrace.packing.settings import (
    LEAST,
    Method,
    Packing,
    StreamPacking,
    TokenDtype,
    WeightsCount,
    packing_errors,
    stream_packing_errors,
)
from headrace.selection import Mistake


def _read_sequences(value: object, mistakes: list[Mistake]) -> int | str:
    number, least = value, LEAST['sequences_per_epoch']
    if value == 'all':
        return 'all'
    if isinstance(value, str):
        with contextlib.suppress(ConfigError):
            number = number_abbrev_to_int(value)
    # YAML reads 1e6 as a float.
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        mistakes.append(Mistake((), value, f"must be an integer of at least {least}, text like '64k', or `all`"))
        return 'all'
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer of texts."""

    library: Literal['tokenizers', 'transformers', 'tiktoken'] = 'tokenizers'
    """The tokenizer's library."""

    path: str | None = None
    """A `tokenizer.json`; a folder or name for `AutoTokenizer`; the name of an encoding of tiktoken."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The broken rule: a tokenizer needs a path."""
        if self.path is None:
            yield BrokenRule((), 'names no tokenizer; give `path`')


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """How documents are packed into sequences of tokens."""

    sequence_length: Annotated[int, AtLeast(LEAST['sequence_length'])] | None = None
    """Tokens of a sequence, padding included."""

    tokenizer: TokenizerConfig | None = None
    """The tokenizer of texts. Default: the column holds tokens."""

    column: str | None = None
    """The column of the documents. Default: `text` with a tokenizer, `tokens` without."""

    token_dtype: TokenDtype | None = None
    """Type of the tokens in a column of bytes."""

    method: Method = Packing.method
    """Keep documents whole and pad little, or lay them end to end and cut."""

    bos_token_id: Annotated[int, AtLeast(LEAST['bos_token_id'])] | None = None
    """A token to put before each document."""

    eos_token_id: Annotated[int, AtLeast(LEAST['eos_token_id'])] | None = None
    """A token to put after each document."""

    pad_token_id: Annotated[int, AtLeast(LEAST['pad_token_id'])] = Packing.pad_token_id
    """The padding token."""

    lanes: Annotated[int, AtLeast(LEAST['lanes'])] | None = None
    """Lanes that are packed side by side; ranks divide their number. Default: the first global batch size."""

    sequences_per_epoch: Annotated[int | str, Parsed(_read_sequences, "a number, text like '64k', or `all`")] | None = (
        None
    )
    """Sequences of an epoch, a multiple of the lanes, or `all` documents once. Default: no end."""

    window: Annotated[int, AtLeast(LEAST['window'])] = Packing.window
    """Sequences that `best_fit` fills at a time in a lane."""

    weights_count: WeightsCount = Packing.weights_count
    """Unit of the streams' proportions; with `tokens`, each sequence is of one stream."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The rules between these keys that do not hold."""
        if self.sequence_length is None:
            yield BrokenRule((), 'needs `sequence_length`, the tokens of a sequence')
        yield from packing_errors(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPackingConfig:
    """The documents of one stream, where they are not those that the loader's `packing` describes."""

    column: str | None = None
    """The column of its documents. A column of arrays holds tokens. Default: that of the loader's `packing`."""

    tokenizer: TokenizerConfig | None = None
    """The tokenizer of its texts. Default: that of the loader's `packing`, unless the column holds tokens."""

    token_dtype: TokenDtype | None = None
    """The column holds tokens: those in bytes have this type, and those in lists of JSON are of any."""

    bos_token_id: Annotated[int, AtLeast(LEAST['bos_token_id'])] | None = None
    """A token to put before each document. Default: that of the loader's `packing`."""

    eos_token_id: Annotated[int, AtLeast(LEAST['eos_token_id'])] | None = None
    """A token to put after each document. Default: that of the loader's `packing`."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        yield from stream_packing_errors(self)

    def document_column(self, of_loader: PackingConfig) -> str:
        """The column of its documents, as far as it is known without the data."""
        has_tokens = (self.tokenizer or of_loader.tokenizer) is None or self.token_dtype is not None
        return self.column or of_loader.column or ('tokens' if has_tokens else 'text')


def packing_of(config: PackingConfig) -> Packing:
    return Packing(**_arguments(config))


def stream_packing_of(config: StreamPackingConfig) -> StreamPacking:
    return StreamPacking(**_arguments(config))


def _arguments(config: PackingConfig | StreamPackingConfig) -> dict[str, Any]:
    from headrace.packing import load_tokenizer

    values: dict[str, Any] = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if config.tokenizer is not None:
        values['tokenizer'] = load_tokenizer(config.tokenizer.library, config.tokenizer.path or '')
    return values
