"""Encodings that are registered by assignment (`_encodings['point'] = Point`), and readers of single shards."""

from __future__ import annotations

import json
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import headrace.format
from headrace.dataset.attributes import SamplesById
from headrace.errors import ConfigError
from headrace.format import FileInfo, ShardReader, open_shard, parse_index
from headrace.format.encodings.encoding import ENCODINGS
from headrace.format.encodings.registry import FunctionEncoding, is_mds_encoding_safe, replace_encoding

__all__ = ['ENCODING_CLASSES', 'Encoding', 'Reader', 'reader_from_json']


class Encoding(ABC):
    """The class that users' encodings derive from. Encodings of headrace count as its instances."""

    size: int | None = None  # Bytes of every value; None if values differ in length.

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """The bytes of a value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value of the bytes."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        if not isinstance(data, expected_type):
            raise AttributeError(f'The value must be a {expected_type}, but is a {type(data)}.')  # noqa: TRY004


Encoding.register(headrace.format.Encoding)


class _Assigned(FunctionEncoding):
    """An assigned class as an encoding of headrace's."""

    def __init__(self, name: str, assigned: type[Any], instance: Any) -> None:
        super().__init__(name, instance.encode, instance.decode, getattr(instance, 'size', None), None, False)
        self._assigned = assigned

    def with_parameters(self, text: str) -> headrace.format.Encoding | None:
        """The encoding that the class makes of a name's parameters; None if it takes none."""
        make = getattr(self._assigned, 'from_str', None)
        return None if make is None else _Assigned(f'{self.kind}:{text}', self._assigned, make(text))


class _EncodingClasses(MutableMapping[str, type[Any]]):
    """Encodings' classes by name. An assignment registers one, or replaces headrace's own."""

    def __init__(self) -> None:
        self._assigned: dict[str, type[Any]] = {}

    def __getitem__(self, name: str) -> type[Any]:
        return self._assigned[name] if name in self._assigned else type(ENCODINGS[name])

    def __setitem__(self, name: str, encoding: type[Any]) -> None:
        """Register a class with `encode` and `decode`, for columns that are named `name` or `name:PARAMETERS`.

        For names with parameters it also has the class method `from_str(parameters)`.
        """
        if not (isinstance(encoding, type) and hasattr(encoding, 'encode') and hasattr(encoding, 'decode')):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f'_encodings[{name!r}] takes a class with `encode` and `decode`, but got {encoding!r}. '
                f'Assign the class, not an instance.'
            )
        replace_encoding(name, _Assigned(name, encoding, encoding()))
        self._assigned[name] = encoding

    def __delitem__(self, name: str) -> None:
        raise ConfigError(f'Encodings stay registered, but {name!r} was deleted. Assign another class to the name.')

    def __iter__(self) -> Iterator[str]:
        return iter(ENCODINGS)

    def __len__(self) -> int:
        return len(ENCODINGS)


ENCODING_CLASSES = _EncodingClasses()  # `streaming.base.format.mds.encodings._encodings`


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
    """The reader of a shard, by its entry of `shards` in index.json; `split`: the sub-folder that holds index.json."""
    return Reader(dirname, split, obj)


class Reader(SamplesById):
    """The samples of a shard whose raw files are in a folder: `reader[i]`, `len(reader)`, `for sample in reader`.

    Arguments as `reader_from_json`.

    Attributes:
        samples: number of samples.
        file_pairs: of each file of the shard, the raw one and the compressed one or None.
        column_names, column_encodings, column_sizes: the columns; sizes are those of MDS only.
    """

    def __init__(self, dirname: str, split: str | None, obj: dict[str, Any]) -> None:
        self.dirname, self.split = dirname, split or ''
        text = json.dumps({'version': 2, 'shards': [obj]}).encode()
        (info,) = parse_index(text, source=f'an entry of {dirname}', allow_unsafe_types=True, allow_empty=True)
        self.info = info
        self.samples, self.compression, self.hashes = info.samples, info.compression, list(info.hashes)
        self.size_limit = info.size_limit
        self.column_names, self.column_encodings = list(info.schema.names), list(info.schema.encodings)
        self.column_sizes = list(info.schema.sizes)
        self.file_pairs: list[tuple[FileInfo, FileInfo | None]] = [(file.raw, file.zip) for file in info.files]
        self._opened: ShardReader | None = None

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
        return cls(dirname, split, obj)

    @property
    def size(self) -> int:
        return self.samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.get_item, range(self.samples))

    def get_item(self, sample_id: int) -> dict[str, Any]:
        """A sample; FileNotFoundError without the raw file, ValueError if that is damaged."""
        if self._opened is None:
            folder = Path(self.dirname, self.split)
            buffers = [_mapped(folder / raw.basename) for raw, _ in self.file_pairs]
            self._opened = open_shard(self.info, buffers, source=str(folder / self.file_pairs[0][0].basename))
        return self._opened.sample(sample_id)

    def validate(self, allow_unsafe_types: bool) -> None:
        """Refuse pickled columns, unless they are allowed, with a ValueError."""
        for name, encoding in zip(self.column_names, self.column_encodings, strict=True):
            if self.info.format == 'mds' and not allow_unsafe_types and not is_mds_encoding_safe(encoding):
                raise ConfigError(
                    f'Column {name} contains an unsafe type, {encoding}: reading it can run code. If you trust the '
                    f'data, pass allow_unsafe_types=True.'
                )

    def get_raw_size(self) -> int:
        return sum(raw.bytes for raw, _ in self.file_pairs)

    def get_zip_size(self) -> int | None:
        """Bytes of the compressed files; None if there are none."""
        sizes = [packed.bytes for _, packed in self.file_pairs if packed is not None]
        return sum(sizes) if sizes else None

    def get_max_size(self) -> int:
        """Bytes of raw and compressed files together."""
        return self.get_raw_size() + (self.get_zip_size() or 0)

    def get_persistent_size(self, keep_zip: bool) -> int:
        return self.get_max_size() if keep_zip else self.get_raw_size()


def _mapped(path: Path) -> memoryview:
    with path.open('rb') as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
