"""The schema of packing, and the `Packing` that it describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from headrace.errors.exclusions import BrokenRule
from headrace.options.constraints import AtLeast
from headrace.packing.settings import (
    DocumentOptions,
    Packing,
    PackingOptions,
    StreamPacking,
    packing_errors,
    stream_packing_errors,
)


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
class PackingConfig(PackingOptions):
    """How documents are packed into sequences of tokens."""

    sequence_length: Annotated[int | None, AtLeast(2)] = None
    """Tokens of a sequence, padding included."""

    tokenizer: TokenizerConfig | None = None
    """The tokenizer of texts. Default: the column holds tokens."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The rules between these keys that do not hold."""
        if self.sequence_length is None:
            yield BrokenRule((), 'needs `sequence_length`, the tokens of a sequence')
        yield from packing_errors(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPackingConfig(DocumentOptions):
    """The documents of one stream, where they are not those that the loader's `packing` describes."""

    tokenizer: TokenizerConfig | None = None
    """The tokenizer of its texts. Default: that of the loader's `packing`, unless the column holds tokens."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        yield from stream_packing_errors(self)

    def document_column(self, of_loader: PackingConfig) -> str:
        """The column of its documents, if it can be told without the data."""
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
