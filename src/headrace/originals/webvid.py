"""WebVid as MDS, with its videos in the shards or as files outside.

``headrace convert webvid IN OUT``: IN is a table of the distribution, such as ``results_2M_train.csv``, with the
columns videoid, contentUrl, duration, page_dir and name. The videos are in the folder ``videos`` beside it, as
``PAGE_DIR/VIDEOID.mp4``. The columns of the dataset are those of the table, with the duration in seconds, and
``content``: the file of the video as it is. With ``--inside 0`` there is ``content_path`` in its place: the path of the
video below the folder of videos, which `StreamingOutsideGIWebVid` reads.

``headrace convert webvid-outside IN OUT``: IN is a folder of MDS shards with the column ``content``. Sample 1002
becomes the file ``001/002.mp4``, and the new shards have its path in the column ``content_path``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.convert.inputs.records import RecordInputs
from headrace.dataset.writing.place import StorePlace
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError, StorageError
from headrace.originals.members import Member
from headrace.originals.video import check_video, require_av
from headrace.storage import Retry, open_store

if TYPE_CHECKING:
    from headrace.dataset import LocalDataset

_COLUMNS: Final = {
    'videoid': 'str',
    'name': 'str',
    'page_idx': 'str',
    'page_dir': 'str',
    'duration': 'int',
    'contentUrl': 'str',
}
"""Columns of the table, and their encodings in shards. ``content`` or ``content_path`` comes beside them."""
_NEEDED: Final = ('videoid', 'name', 'page_dir', 'duration', 'contentUrl')
"""Columns of the table. Some of its versions have ``page_idx``, too."""
_ROW_BYTES: Final = 64
_OUTSIDE_ROW_BYTES: Final = 400
_DURATION: Final = re.compile(r'PT(\d+)H(\d+)M(\d+)S')
_NAME: Final = re.compile(r'[^/\\\0]+')

_Row = tuple[int, dict[str, str], Member | None, str]
"""Line of the table, its values, the video, and what is wrong, if anything."""
_Sample = tuple[int, str]  # the number of a sample, and the time at which the index was written


def webvid_records(
    table: Path, split: None, *, videos: str | None, inside: bool, out_mp4: str | None, validate: bool
) -> RecordInputs[_Row]:
    del split
    require_av()
    folder = table.parent / 'videos' if videos is None else Path(videos)
    if not table.is_file():
        raise ObjectNotFoundError(
            f'WebVid is read from a table such as results_2M_train.csv, but {table} is no file. Give its path.'
        )
    if not folder.is_dir():
        raise ObjectNotFoundError(f'The videos of {table} are in a folder, but {folder} is none. Pass `videos`.')
    # Videos in shards need no copy outside.
    target = None if inside else out_mp4
    records = _rows(table, folder)
    texts = (_ROW_BYTES + sum(map(len, row.values())) for _, row, _, _ in records)
    contents = (member.size if inside and member is not None else 0 for _, _, member, _ in records)
    return RecordInputs(
        partial(_read, folder, inside, target, validate),
        records,
        kind='webvid',
        columns={**_COLUMNS, **({'content': 'bytes'} if inside else {'content_path': 'str'})},
        identity={
            'table': str(table),
            'videos': str(folder),
            'inside': inside,
            'out_mp4': target,
            'validate': validate,
        },
        label=_label,
        sizes=[*map(sum, zip(texts, contents, strict=True))],
    )


def _label(record: _Row) -> str:
    return f'line {record[0]}, video {record[1]["videoid"]}'


def _read(videos: Path, inside: bool, out_mp4: str | None, validate: bool, record: _Row) -> dict[str, Any]:
    _, row, member, problem = record
    if member is None or problem:
        raise FormatError(problem)
    sample: dict[str, Any] = {**row, 'duration': _seconds(row['duration'])}
    if inside or validate or out_mp4 is not None:
        video = member.read(videos)
        if validate:
            check_video(video)
        if out_mp4 is not None:
            _put_video(out_mp4, member.path, video)
        if inside:
            return {**sample, 'content': video}
    return {**sample, 'content_path': member.path}


def _rows(table: Path, folder: Path) -> list[_Row]:
    try:
        with open(table, newline='', encoding='utf-8', errors='surrogateescape') as file:
            reader = csv.DictReader(file)
            if not {*_NEEDED} <= {*(reader.fieldnames or ())}:
                raise FormatError(
                    f"WebVid's table has the columns {', '.join(_NEEDED)}, but {table} has {reader.fieldnames}. Give "
                    f'the table of the distribution.'
                )
            return [_row(reader.line_num, values, folder) for values in reader]
    except csv.Error as error:
        raise FormatError(f'The table {table} is damaged: {error}. Fetch it again.') from error


def _row(line: int, values: Mapping[str | None, Any], folder: Path) -> _Row:
    row = {name: str(values.get(name) or '') for name in _COLUMNS}
    if None in values or any(values.get(name) is None for name in _NEEDED):
        return line, row, None, 'A row has as many values as the table has columns, but this one has others.'
    try:
        ''.join(row.values()).encode()
        _seconds(row['duration'])
    except ValueError as error:
        return line, row, None, str(error)
    parts = [*row['page_dir'].split('/'), f'{row["videoid"]}.mp4']
    path = '/'.join(parts)
    if not all(_NAME.fullmatch(part) and part not in ('.', '..') for part in parts):
        return line, row, None, f'A video is below the folder of videos, but the row names {path!r:.200}.'
    try:
        return line, row, Member.of(path, (folder / path).stat()), ''
    except OSError as error:
        return line, row, None, f'The video {path} cannot be read: {error.strerror}.'


def _seconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise FormatError(f'A duration has the form PT00H00M21S, but is {text!r:.40}.')
    hours, minutes, seconds = map(int, match.groups())
    return 3600 * hours + 60 * minutes + seconds


@cache
def _place(url: str) -> StorePlace:
    return StorePlace(open_store(url), Retry())


def _put_video(url: str, path: str, video: bytes) -> None:
    """Write a video to a folder or URL, whole or not at all. If that fails, no input is to blame."""
    try:
        _place(url).write(path, video)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f'Writing {url}/{path} failed: {error}. Correct it and run the conversion again.') from error


# Videos that move out of shards


def outside_records(folder: Path, split: None, *, out_mp4: str | None) -> RecordInputs[_Sample]:
    del split
    if out_mp4 is None:
        raise ConfigError('The videos go to a folder or URL, but none is given. Pass `out_mp4`.')
    if not (folder / 'index.json').is_file():
        raise ObjectNotFoundError(f'{folder} holds no index.json, so no MDS shards. Check the path.')
    version = f'{(folder / "index.json").stat().st_mtime_ns:x}'
    count = len(_dataset(str(folder), version))
    return RecordInputs(
        partial(_moved, str(folder), out_mp4),
        [(number, version) for number in range(count)],
        kind='webvid',
        columns={**_COLUMNS, 'content_path': 'str'},
        identity={'folder': str(folder), 'out_mp4': out_mp4},
        label=_moved_label,
        sizes=[_OUTSIDE_ROW_BYTES] * count,
    )


def _moved_label(record: _Sample) -> str:
    return f'sample {record[0]}'


def _moved(folder: str, out_mp4: str, record: _Sample) -> dict[str, Any]:
    number, version = record
    sample = _dataset(folder, version)[number]
    path = f'{number // 1000:03}/{number % 1000:03}.mp4'
    _put_video(out_mp4, path, sample['content'])
    return {**{name: sample.get(name, '') for name in _COLUMNS}, 'content_path': path}


@lru_cache(1)
def _dataset(folder: str, version: str) -> LocalDataset:
    from headrace.dataset import LocalDataset  # with torch

    del version  # another one is another dataset
    return LocalDataset(folder)
