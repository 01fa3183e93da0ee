"""JSONL shards: one JSON object a line, keys sorted, and a meta file (``lines``)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from headrace.errors import ConfigError, FormatError
from headrace.format.encoder import DEFAULT_SIZE_LIMIT
from headrace.format.encodings.encoding import wrong_type
from headrace.format.encodings.registry import check_encodings
from headrace.format.encodings.texts import encode_text, parse_json
from headrace.format.lines import LineEncoder, LineReader
from headrace.format.shards import Schema


class _Checked:
    """An encoding of JSONL columns: the type of its values, which are stored as JSON."""

    name: str
    type: type

    def is_encoded(self, obj: Any) -> bool:
        """True; an AttributeError if ``obj`` is not of the type."""
        if not isinstance(obj, self.type):
            raise wrong_type(self.name, f'Python {self.type.__name__} values', obj)
        return True


class Str(_Checked):
    name, type = 'str', str

    def is_encoded(self, obj: Any) -> bool:
        """As for all columns; ValueError if the text has a lone surrogate, which JSON could write."""
        super().is_encoded(obj)
        encode_text(obj)
        return True


class Int(_Checked):
    """Python ints, and bools, which stay bools."""

    name, type = 'int', int


class Float(_Checked):
    """Python floats, nan and the infinities included."""

    name, type = 'float', float


_ENCODINGS: Final[dict[str, _Checked]] = {'str': Str(), 'int': Int(), 'float': Float()}


def get_json_encodings() -> set[str]:
    return set(_ENCODINGS)


def is_json_encoding(encoding: str) -> bool:
    return encoding in _ENCODINGS


def is_json_encoded(encoding: str, obj: Any) -> bool:
    """True; a ConfigError without such an encoding, and errors of values as those of writers."""
    return _get(encoding).is_encoded(obj)


def _get(encoding: str) -> _Checked:
    converters = _ENCODINGS.get(encoding)
    if converters is None:
        raise ConfigError(f'JSONL columns have the encodings {", ".join(_ENCODINGS)}, but got {encoding!r}.')
    return converters


class JSONReader(LineReader):
    def _parse(self, line: str, names: Collection[str]) -> dict[str, Any]:
        value = parse_json(line, 'The line')
        expected = self._schema.names
        if not isinstance(value, dict) or len(value) != len(expected) or any(name not in value for name in expected):
            received = f'the keys {sorted(value)}' if isinstance(value, dict) else f'a {type(value).__name__}'
            raise FormatError(f'A line is a JSON object with the keys {sorted(expected)}, but this is {received}.')
        return {name: value[name] for name in expected if name in names}


class JSONEncoder(LineEncoder):
    """Writes JSONL shards; see ``ShardEncoder``.

    Args:
        columns: column name to encoding (str, int, float).
        newline: the end of a line.
        compression: see ``ShardEncoder``.
        hashes: see ``ShardEncoder``.
        size_limit: counts the lines.
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        *,
        newline: str = '\n',
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
    ) -> None:
        check_encodings(columns, writer='JSONWriter', is_known=is_json_encoding, names=_ENCODINGS)
        if not newline:
            raise ConfigError("`newline` is a text of at least one character, but got ''. Use '\\n'.")
        names = tuple(sorted(columns))  # as an index lists them
        encodings = tuple(columns[name] for name in names)
        super().__init__(Schema('json', names, encodings, newline=newline), compression, hashes, size_limit)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        kept: dict[str, Any] = {}
        for name, encoding in self.schema.columns.items():
            self._column = name
            is_json_encoded(encoding, sample[name])
            kept[name] = sample[name]
        try:
            line = json.dumps(kept, sort_keys=True)
        except ValueError as error:  # an integer of thousands of digits
            self._column = next(name for name, value in kept.items() if not _is_json(value))
            raise ValueError(
                f'A value of JSONL is one that Python writes as JSON. {error}. Store it as text.'
            ) from None
        return line.encode('ascii') + self.schema.newline.encode('utf-8')


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except ValueError:
        return False
    return True
