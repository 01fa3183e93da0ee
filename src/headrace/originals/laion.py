"""LAION-400M as MDS: ``headrace convert laion400m IN OUT --user-agent 'NAME (+https://... or a mail address)'``.

IN is a folder of Parquet files with the columns ``URL`` and ``TEXT``, as LAION distributes them, or such a file. The
images are downloaded from their hosts. Files of img2dataset that hold the images, in ``jpg``, need no download. If the
files have a column ``md5`` or ``sha256``, an image with another hash is left out.

A row without an image is left out and reported. The new dataset has the columns of MosaicML Streaming's script.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.convert.inputs.records import BadRow, RecordInputs
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError, TransferError
from headrace.format.encodings.images import open_image, reading_image
from headrace.originals.downloads import AnswerError, DownloadError, Limits, download_all, require_aiohttp
from headrace.originals.images import as_jpeg
from headrace.originals.members import files_of
from headrace.sources.arrow_types import import_pyarrow

_COLUMNS: Final = {
    'nsfw': 'str', 'similarity': 'float64', 'license': 'str', 'caption': 'str', 'url': 'str', 'key': 'str',
    'status': 'str', 'error_message': 'str', 'width': 'int32', 'height': 'int32', 'original_width': 'int32',
    'original_height': 'int32', 'exif': 'str', 'jpg': 'bytes',
}  # fmt: skip
_NAMES: Final = {
    'url': ('URL', 'url'), 'caption': ('TEXT', 'caption'), 'nsfw': ('NSFW', 'nsfw'), 'license': ('LICENSE', 'license'),
    'similarity': ('similarity',), 'md5': ('md5',), 'sha256': ('sha256',), 'jpg': ('jpg',), 'status': ('status',),
    'error_message': ('error_message',), 'key': ('key',), 'exif': ('exif',),
    'original_width': ('original_width',), 'original_height': ('original_height',),
}  # fmt: skip
"""Names in LAION's files and in those of img2dataset."""
_ROWS: Final = 512  # of a block, which one process reads at a time
_ROW_BYTES: Final = 48 << 10  # of a row with its image, about
_ENOUGH: Final = 64
"""Rows of a block that fail without one answer of a server, from which on the network counts as down."""
_QUALITY: Final = 95


class _Block(NamedTuple):
    path: str
    version: str
    number: int  # of the file, for keys
    group: int
    begin: int  # first row in the group
    rows: int
    first: int  # first row in the file


@dataclass(slots=True)
class _Read:
    root: Path
    limits: Limits
    resize: int | None
    group: tuple[str, int] | None = None
    rows: Any = None  # the table of the group: that of the last block

    def __call__(self, block: _Block) -> Iterator[dict[str, Any] | BadRow]:
        rows = self._rows_of(block)
        has_images = bool(rows) and 'jpg' in rows[0]
        images: Iterator[bytes | DownloadError]
        if has_images:
            images = (row['jpg'] or DownloadError(row.get('error_message') or 'There is no image') for row in rows)
        else:
            images = download_all([row['url'] or '' for row in rows], self.limits)
        silent = 0
        bad: list[BadRow] = []
        for number, (row, data) in enumerate(zip(rows, images, strict=True)):
            place = f'row {block.first + number} ({row["url"]})'
            try:
                if isinstance(data, DownloadError):
                    silent += not isinstance(data, AnswerError)
                    raise data
                yield self._sample(row, data, f'{block.number:05}{block.first + number:08}')
            except (DownloadError, FormatError) as error:
                bad.append(BadRow(place, error))
        if not has_images and silent == len(rows) >= _ENOUGH:
            raise TransferError(
                f'None of {len(rows)} requests in a row had an answer, so the network may be down. The first: '
                f'{bad[0].error} Run the conversion again when it works: finished tasks are kept.'
            )
        yield from bad

    def _rows_of(self, block: _Block) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        if self.group != (block.path, block.group):
            with pq.ParquetFile(self.root / block.path) as file:
                there = file.schema_arrow.names
                ours = {name: our for our, names in _NAMES.items() for name in [n for n in names if n in there][-1:]}
                table = file.read_row_group(block.group, columns=list(ours))
            self.rows = table.rename_columns([ours[name] for name in table.column_names])
            self.group = (block.path, block.group)
        return self.rows.slice(block.begin, block.rows).to_pylist()

    def _sample(self, row: Mapping[str, Any], data: bytes, key: str) -> dict[str, Any]:
        if 'jpg' not in row:  # else the hash is that of a file which img2dataset has made smaller
            _check_hashes(row, data)
        image = _open(data)
        width, height = image.size
        size, side, least = image.size, self.resize, min(image.size)
        if side is not None and least > side:
            size = max(side, round(width * side / least)), max(side, round(height * side / least))
            data = as_jpeg(image, size, _QUALITY)
        similarity = row.get('similarity')
        return {
            **{name: _text(row, name) for name in ('nsfw', 'license', 'caption', 'url')},
            'similarity': math.nan if similarity is None else float(similarity),
            'key': _text(row, 'key') or key,
            'status': 'success',
            'error_message': '',
            'width': size[0],
            'height': size[1],
            'original_width': row.get('original_width') or width,
            'original_height': row.get('original_height') or height,
            'exif': _text(row, 'exif') or _exif(image),
            'jpg': data,
        }


def _check_hashes(row: Mapping[str, Any], data: bytes) -> None:
    for name in ('md5', 'sha256'):
        wanted = row.get(name)
        if wanted and str(wanted).lower() != (digest := hashlib.new(name, data, usedforsecurity=False).hexdigest()):
            raise FormatError(f'The {name} of the file is {wanted!s:.80}, but what came has {digest}.')


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return '' if value is None else str(value)


def _open(data: bytes) -> Any:
    try:
        image = open_image('bytes', data)
        with reading_image('bytes', data):
            image.load()
    except FormatError as error:
        # Pillow's message holds an address of memory, which differs from run to run.
        kind = type(error.__cause__).__name__
        raise FormatError(f'What came is no image: {len(data)} bytes, from {data[:16]!r} on ({kind}).') from None
    return image


def _exif(image: Any) -> str:
    from PIL.ExifTags import TAGS

    try:
        return json.dumps({TAGS.get(tag, str(tag)): str(value) for tag, value in image.getexif().items()})
    except Exception:  # damaged tags do not spoil an image
        return '{}'


def laion_records(
    source: Path, split: None, *, user_agent: str | None, resize: int | None, **limits: Any
) -> RecordInputs[_Block]:
    del split
    import_pyarrow('The files of LAION')
    import pyarrow.parquet as pq

    if resize is not None and resize < 1:
        raise ConfigError(f'`resize` is pixels of the shorter side, 1 or more, but is {resize}.')
    root = source if source.is_dir() else source.parent
    files = [member for member in files_of(root, '.') if member.path.endswith('.parquet')]
    files = [member for member in files if source.is_dir() or member.path == source.name]
    if not files:
        raise ObjectNotFoundError(f'{source} holds no Parquet file. Give the folder of the metadata of LAION-400M.')
    blocks: list[_Block] = []
    needs_download = False
    for number, member in enumerate(files):
        try:
            with pq.ParquetFile(root / member.path) as file:
                names, metadata = file.schema_arrow.names, file.metadata
                groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        except (OSError, ValueError) as error:
            raise FormatError(f'{root / member.path} is no Parquet file: {error}. Fetch it again.') from None
        if not all(set(_NAMES[ours]) & set(names) for ours in ('url', 'caption')):
            raise FormatError(
                f'A file of LAION has the columns URL and TEXT, but {root / member.path} has {", ".join(names)}.'
            )
        needs_download = needs_download or 'jpg' not in names
        version, first = f'{member.size:x}-{member.version}', 0
        for group, rows in enumerate(groups):
            blocks += [
                _Block(member.path, version, number, group, begin, min(_ROWS, rows - begin), first + begin)
                for begin in range(0, rows, _ROWS)
            ]
            first += rows
    if needs_download:
        require_aiohttp()
        if not user_agent:
            raise ConfigError(
                'Servers are told who downloads their images. Give `--user-agent` (`user_agent=` in Python), such as '
                "'mylab-dataset/1.0 (+https://mylab.example/contact)'."
            )
    return RecordInputs(
        _Read(root, Limits(user_agent=user_agent or 'unused', **limits), resize),
        blocks,
        kind='laion400m',
        columns=_COLUMNS,
        identity={'source': str(source), 'resize': resize},
        label=_label,
        sizes=[block.rows * _ROW_BYTES for block in blocks],
        one_row=False,
    )


def _label(block: _Block) -> str:
    return f'{block.path}, rows {block.first} to {block.first + block.rows - 1}'
