"""A description of a dataset: columns, sizes, and first samples with their texts and pictures."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError, FormatError, MissingDependencyError
from headrace.errors.display import count_text, html_table, human_size, printable, shorten, text_table
from headrace.errors.redaction import redact, without_credentials
from headrace.format import Schema
from headrace.format.encodings.registry import get_mds_encoding
from headrace.inspect.content import open_content
from headrace.storage import StoreOptions

LONGEST: Final = 1000  # characters of a value's text
_NUMBERS: Final = 8  # numbers of an array's text
_PICTURES: Final = ((b'\xff\xd8\xff', 'jpg'), (b'\x89PNG\r\n\x1a\n', 'png'), (b'GIF8', 'gif'))
Value = int | float | str | None


@dataclass(frozen=True)
class SampleValue:
    """One value of a sample."""

    size: int
    """Bytes as stored."""
    shape: str
    """Dtype and shape of an array, pixels of a picture, type of another object; empty for texts and numbers."""
    value: Value
    """A number, or a text of at most 1000 characters. May hold control characters."""
    pictures: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    """The ending of its file's name, and the content, of each picture."""

    def to_json(self) -> dict[str, Any]:
        """The value without pictures."""
        return {'bytes': self.size, 'shape': self.shape, 'value': self.value}


def describe_value(schema: Schema, column: str, stored: Any) -> SampleValue:
    """Describe a value of `first_samples`, damaged ones and those without their package, too; nothing runs code."""
    number = schema.names.index(column)
    if schema.format != 'mds':
        return describe_decoded(stored, len(str(stored).encode('utf-8', 'surrogatepass')))
    size = schema.sizes[number]
    if schema.arrays[number] is not None:
        return describe_decoded(stored, size or 0)
    data = stored if isinstance(stored, bytes) else cast('np.ndarray[Any, Any]', stored).tobytes()
    name = schema.encodings[number]
    encoding = get_mds_encoding(name)
    if not encoding.trusted_name:
        return SampleValue(len(data), '', f'({name}, which runs code when it is read)')
    try:
        return describe_decoded(encoding.decode(data), len(data), data)
    except MissingDependencyError as error:
        return SampleValue(len(data), '', f'({error})', _pictures_in(data))
    except (FormatError, RecursionError) as error:
        return SampleValue(len(data), '', f'(damaged: {error})'[:LONGEST])


def describe_decoded(value: Any, size: int = 0, stored: bytes = b'') -> SampleValue:
    """Describe a decoded value.

    Args:
        value: as a dataset gives it.
        size: bytes as stored.
        stored: the stored bytes, which may be a picture's file.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return SampleValue(size, '', _number(value))
    if isinstance(value, str):
        return SampleValue(size, '', _cut(value))
    if isinstance(value, bytes):
        pictures = _pictures_in(value)
        what = f'{pictures[0][0]} picture, {len(value)} bytes' if pictures else repr(value[:LONGEST])
        return SampleValue(size, f'{pictures[0][0]} picture' if pictures else '', _cut(what), pictures)
    if isinstance(value, np.ndarray):
        array = cast('np.ndarray[Any, np.dtype[Any]]', value)
        return SampleValue(size, f'{array.dtype} {array.shape}', _array_text(array))
    if _is_picture(value):
        return _picture(value, size, stored)
    if isinstance(value, list) and value and all(_is_picture(item) for item in cast('list[Any]', value)):
        return _picture_list(cast('list[Any]', value), size)
    return SampleValue(size, type(value).__name__, _cut(repr(value)))


def _number(value: float | None) -> Value:
    # JSON of other programs knows neither NaN nor infinity.
    is_plain = not isinstance(value, float) or np.isfinite(value)
    return value if is_plain else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'


def _array_text(array: np.ndarray[Any, np.dtype[Any]]) -> str:
    first = array.reshape(-1)[:_NUMBERS]
    more = ' …' if array.size > _NUMBERS else ''
    return '[' + ' '.join(f'{number:g}' for number in first.tolist()) + more + ']'


def _is_picture(value: Any) -> bool:
    return type(value).__module__.partition('.')[0] == 'PIL'


def _picture(picture: Any, size: int, stored: bytes) -> SampleValue:
    text = f'{picture.width} x {picture.height} {picture.mode}'
    return SampleValue(size, text, f'picture, {text}', _pictures_in(stored) or (_as_png(picture),))


def _picture_list(pictures: Sequence[Any], size: int) -> SampleValue:
    first = pictures[0]
    count = count_text(len(pictures), 'picture')
    text = f'{count}, the first {first.width} x {first.height} {first.mode}'
    return SampleValue(size, count, text, tuple(_as_png(picture) for picture in pictures))


def _as_png(picture: Any) -> tuple[str, bytes]:
    out = io.BytesIO()
    modes = {'1', 'L', 'LA', 'I;16', 'P', 'RGB', 'RGBA'}
    (picture if picture.mode in modes else picture.convert('RGB')).save(out, format='PNG')
    return 'png', out.getvalue()


def _pictures_in(data: bytes) -> tuple[tuple[str, bytes], ...]:
    """The picture that a value's bytes are, by their beginning."""
    return tuple((ending, data) for magic, ending in _PICTURES if data.startswith(magic))


_LOOKED_AT = 16  # samples for the shapes of columns
_WIDTH = 100


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of several numbers."""

    least: int
    median: int
    most: int

    @classmethod
    def of(cls, values: npt.NDArray[np.int64]) -> Spread:
        """The spread; zeros of no numbers."""
        if not len(values):
            return cls(0, 0, 0)
        return cls(int(values.min()), int(np.median(values)), int(values.max()))

    def to_json(self) -> dict[str, int]:
        """Plain values."""
        return {'min': self.least, 'median': self.median, 'max': self.most}


@dataclass(frozen=True)
class ColumnDescription:
    """One column."""

    name: str
    encoding: str
    """As the index has it."""
    kind: str
    """The column in a batch, such as 'int64' or 'float32 array of shape (4,)'."""
    size: int | None
    """Bytes of each value; None: values differ."""
    seen_sizes: tuple[int, int] | None
    """Least and most bytes of a value, in the first samples; None without samples."""
    seen_shapes: tuple[str, ...]
    """Different shapes in the first samples, in their order."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        seen = None if self.seen_sizes is None else {'min': self.seen_sizes[0], 'max': self.seen_sizes[1]}
        return {
            'name': self.name,
            'encoding': self.encoding,
            'batch': self.kind,
            'bytes': self.size,
            'first_samples': {'bytes': seen, 'shapes': list(self.seen_shapes)},
        }


@dataclass(frozen=True)
class Description:
    """A dataset; `str` and notebooks show it."""

    url: str
    format: str
    """'mds', 'json', 'csv', 'tsv', 'xsv', or a name of `docs/formats.md`; several with commas."""
    columns: tuple[ColumnDescription, ...]
    """Of the first shard."""
    other_columns: int
    """Number of further sets of columns in other shards."""
    num_samples: int
    """Erased ones among them."""
    num_erased: int
    num_shards: int
    raw_bytes: int
    """Bytes of all shards without compression."""
    stored_bytes: int
    """Bytes of all shards in the store."""
    is_estimate: bool
    """Whether `raw_bytes` is an estimate: of data of another format, as MDS shards."""
    compression: str | None
    """As the index has it; several with commas."""
    hashes: tuple[str, ...]
    """Algorithms of the checksums in the index."""
    shard_samples: Spread
    """Samples of a shard."""
    shard_bytes: Spread
    """Stored bytes of a shard."""
    samples: tuple[dict[str, SampleValue], ...]
    """The first samples: value by column."""
    damage: str
    """The error of the first shard; empty if it could be read."""

    @property
    def ratio(self) -> float:
        """Raw bytes for each stored byte."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            'url': self.url,
            'format': self.format,
            'samples': self.num_samples,
            'erased': self.num_erased,
            'shards': self.num_shards,
            'raw_bytes': self.raw_bytes,
            'stored_bytes': self.stored_bytes,
            'raw_bytes_are_estimated': self.is_estimate,
            'ratio': round(self.ratio, 3),
            'compression': self.compression,
            'hashes': list(self.hashes),
            'shard_samples': self.shard_samples.to_json(),
            'shard_bytes': self.shard_bytes.to_json(),
            'columns': [column.to_json() for column in self.columns],
            'other_columns': self.other_columns,
            'first_samples': [{name: value.to_json() for name, value in each.items()} for each in self.samples],
            'damage': self.damage,
        }

    def summary(self) -> list[tuple[str, str]]:
        """Names and values of the facts about the whole dataset."""
        samples, sizes = self.shard_samples, self.shard_bytes
        spread = ' / '.join(map(human_size, (sizes.least, sizes.median, sizes.most)))
        raw, compression = f'{human_size(self.raw_bytes)} raw', self.compression or 'none'
        if self.is_estimate:
            raw, compression = f'about {human_size(self.raw_bytes)} as MDS', f'that of {self.format}'
        rows = [
            ('format', self.format),
            ('samples', f'{self.num_samples:,} in {count_text(self.num_shards, "shard")}'),
            ('per shard', f'{samples.least:,} / {samples.median:,} / {samples.most:,} samples (min / median / max)'),
            ('', f'{spread} stored'),
            ('bytes', f'{human_size(self.stored_bytes)} stored, {raw}'),
            ('compression', f'{compression}, ratio {self.ratio:.2f}'),
            ('checksums', ', '.join(self.hashes) or 'none'),
        ]
        if self.num_erased:
            rows.append(('erased', f'{count_text(self.num_erased, "sample")}, which the shards hold as empty rows'))
        if self.other_columns:
            rows.append(('columns', f'{self.other_columns} other sets of columns in later shards'))
        if self.damage:
            rows.append(('first shard', f'cannot be read: {self.damage}'))
        return rows

    def column_rows(self) -> list[tuple[str, ...]]:
        """The table of the columns, its header first."""
        rows: list[tuple[str, ...]] = [('column', 'encoding', 'in a batch', 'bytes', 'first samples')]
        for column in self.columns:
            sizes = '' if column.size is None else f'{column.size:,}'
            if not sizes and column.seen_sizes is not None:
                least, most = column.seen_sizes
                sizes = f'{least:,}' if least == most else f'{least:,} to {most:,}'
            rows.append((column.name, column.encoding, column.kind, sizes, _range(column.seen_shapes)))
        return rows

    def lines(self, *, width: int | None = None) -> list[str]:
        """The description without samples as lines, cut to a width; data are without control characters."""
        lines = [redact(line) for line in [*text_table(self.summary()), '', *text_table(self.column_rows())]]
        return [printable(redact(self.url)), *(line if width is None else shorten(line, width) for line in lines)]

    def sample_lines(self, number: int, *, width: int = _WIDTH) -> list[str]:
        """One sample as lines."""
        values = self.samples[number]
        names = max((len(printable(name)) for name in values), default=0)
        lines = [f'sample {number}']
        for name, value in values.items():
            text = shorten(redact(str(value.value)), max(20, width - names - 4))
            lines.append(f'  {printable(name):{names}}  {text}'.rstrip())
        return lines

    def __str__(self) -> str:
        samples = [line for number in range(len(self.samples)) for line in ['', *self.sample_lines(number)]]
        return '\n'.join([*self.lines(), *samples])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header, *columns = self.column_rows()
        samples = [
            [str(number), *(shorten(redact(str(value.value)), _WIDTH) for value in sample.values())]
            for number, sample in enumerate(self.samples)
        ]
        names = ['sample', *(self.samples[0] if self.samples else ())]
        facts = [(name, redact(value)) for name, value in [('url', self.url), *self.summary()]]
        return '\n'.join([html_table(facts), html_table(columns, header=header), html_table(samples, header=names)])


def _range(shapes: Sequence[str]) -> str:
    """The first and the last shape; a type that they share is said once."""
    if len(shapes) < 2:
        return ''.join(shapes)
    first, last = shapes[0].partition(' '), shapes[-1].partition(' ')
    return f'{shapes[0]} to {last[2] if first[0] == last[0] and last[2] else shapes[-1]}'


def describe(
    url: str | os.PathLike[str],
    *,
    samples: int = 3,
    options: StoreOptions | None = None,
    split: str | None = None,
    format: str | None = None,  # noqa: A002 - as in a stream
    format_options: Mapping[str, Any] | None = None,
) -> Description:
    """Describe a dataset. Reads the index, and the first samples of one shard: ranges of an uncompressed one.

    Args:
        url: a folder, a URL of a store, or a glob of files of another format, such as Parquet.
        samples: how many samples to show; fewer if they are large.
        options: how to reach the store.
        split: as in a stream.
        format: as in a stream.
        format_options: as in a stream.

    Raises:
        ConfigError: `samples` is negative, or the URL breaks a rule.
        FileNotFoundError: the index does not exist.
        FormatError: the index breaks a rule.
        OSError: the store cannot be reached, or refuses.
    """
    if samples < 0:
        raise ConfigError(f'`samples` must be 0 or more, but is {samples}.')
    content = open_content(url, options, split=split, format=format, format_options=format_options)
    shards = content.shards
    filled = np.flatnonzero(shards.samples)
    values: list[dict[str, SampleValue]] = []
    schema, damage = shards.schemas[0] if shards.schemas else None, ''
    if len(filled):
        schema = shards[int(filled[0])].schema
        if samples:
            try:
                rows = content.read(int(filled[0]), max(samples, _LOOKED_AT))
                values = [{name: describe_value(schema, name, each[name]) for name in schema.names} for each in rows]
            except FormatError as error:
                damage = str(error)
    stored = shards.stored_bytes()
    return Description(
        url=without_credentials(os.fspath(url)),
        format=content.format,
        columns=() if schema is None else _columns(schema, values),
        other_columns=max(0, len(shards.schemas) - 1),
        num_samples=int(shards.samples.sum()),
        num_erased=shards.num_erased,
        num_shards=len(shards),
        raw_bytes=int(shards.raw_bytes().sum()),
        stored_bytes=int(stored.sum()),
        is_estimate=content.is_estimate,
        compression=', '.join(dict.fromkeys(kind.compression for kind in shards.kinds if kind.compression)) or None,
        hashes=tuple(dict.fromkeys(name for kind in shards.kinds for names in kind.algorithms for name in names)),
        shard_samples=Spread.of(shards.samples),
        shard_bytes=Spread.of(stored),
        samples=tuple(values[:samples]),
        damage=damage,
    )


def _columns(schema: Schema, samples: Sequence[dict[str, SampleValue]]) -> tuple[ColumnDescription, ...]:
    kinds, columns = schema.kinds(), list[ColumnDescription]()
    for number, (name, encoding) in enumerate(schema.columns.items()):
        values = [sample[name] for sample in samples]
        sizes = [value.size for value in values]
        shapes = dict.fromkeys(value.shape for value in sorted(values, key=lambda value: value.size) if value.shape)
        is_array = schema.arrays[number] is not None
        columns.append(
            ColumnDescription(
                name=name,
                encoding=encoding,
                kind=kinds[name],
                size=get_mds_encoding(encoding).size if schema.format == 'mds' else None,
                seen_sizes=(min(sizes), max(sizes)) if sizes else None,
                seen_shapes=() if is_array else tuple(shapes),
            )
        )
    return tuple(columns)


COLUMNS: Final = 32  # columns of the terminal that a thumbnail takes at most, and twice its lines


def thumbnail(content: bytes, *, columns: int = COLUMNS) -> list[str]:
    """Lines of a terminal with 24-bit colours: each character is two pixels, one above the other.

    Args:
        content: a picture file.
        columns: width at most; the height is at most half as many lines.

    Raises:
        MissingDependencyError: Pillow is not installed.
        OSError, ValueError: the picture is damaged.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError(
            "Thumbnails need Pillow, which is not installed: pip install 'headrace[vision]', or use --save."
        ) from None
    picture = Image.open(io.BytesIO(content), formats=('JPEG', 'PNG', 'GIF')).convert('RGB')
    scale = min(1.0, columns / picture.width, columns / picture.height)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    small = picture.resize((width, height + height % 2))
    pixels = small.tobytes()

    def pixel(x: int, y: int) -> str:
        at = 3 * (y * width + x)
        return '{};{};{}'.format(*pixels[at : at + 3])

    return [
        ''.join(f'\x1b[38;2;{pixel(x, y)};48;2;{pixel(x, y + 1)}m▀' for x in range(width)) + '\x1b[0m'
        for y in range(0, small.height, 2)
    ]


def save_pictures(description: Description, folder: Path) -> list[Path]:
    """Write the pictures of a description's samples as files of a folder, and return their paths.

    JPEG, PNG and GIF files are written as they are stored.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _files(description):
            (folder / name).write_bytes(content)
            written.append(folder / name)
    except OSError as error:
        raise ConfigError(f'Pictures cannot be saved in {folder}: {error.strerror}. Name another folder.') from error
    return written


def _files(description: Description) -> Iterator[tuple[str, bytes]]:
    for number, sample in enumerate(description.samples):
        for column, (name, value) in enumerate(sample.items()):
            # The name of a column comes from a file: it must lead nowhere.
            plain = re.sub(r'[^A-Za-z0-9_-]', '_', name)[:60]
            for picture, (ending, content) in enumerate(value.pictures):
                yield f'{number:03}-{column}-{plain}{f"-{picture}" if picture else ""}.{ending}', content
