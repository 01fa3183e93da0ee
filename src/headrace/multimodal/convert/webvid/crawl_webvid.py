"""WebVid as MDS: ``headrace convert webvid IN OUT``.

IN is a table of the distribution, such as ``results_2M_train.csv``, with the columns videoid, contentUrl, duration,
page_dir and name. The videos are in the folder ``videos`` beside it, as ``PAGE_DIR/VIDEOID.mp4``.

The columns of the dataset are those of the table, with the duration in seconds, and ``content``: the file of the video
as it is. With ``--inside 0`` there is ``content_path`` in its place: the path of the video below the folder of videos,
which `StreamingOutsideGIWebVid` reads.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from headrace.convert.inputs.records import RecordInputs
from headrace.dataset.writing.place import StorePlace
from headrace.errors import FormatError, ObjectNotFoundError, StorageError
from headrace.multimodal.convert import WEBVID as ORIGINAL
from headrace.multimodal.video import check_video, require_av
from headrace.originals.members import Member
from headrace.storage import Retry, open_store

main = ORIGINAL.main

COLUMNS: Final = {
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
_DURATION: Final = re.compile(r'PT(\d+)H(\d+)M(\d+)S')
_NAME: Final = re.compile(r'[^/\\\0]+')

_Record = tuple[int, dict[str, str], Member | None, str]
"""Line of the table, its values, the video, and what is wrong, if anything."""


def _read(videos: Path, inside: bool, out_mp4: str | None, validate: bool, record: _Record) -> dict[str, Any]:
    _, row, member, problem = record
    if member is None or problem:
        raise FormatError(problem)
    sample: dict[str, Any] = {**row, 'duration': _seconds(row['duration'])}
    if inside or validate or out_mp4 is not None:
        video = member.read(videos)
        if validate:
            check_video(video)
        if out_mp4 is not None:
            put_video(out_mp4, member.path, video)
        if inside:
            return {**sample, 'content': video}
    return {**sample, 'content_path': member.path}


def records(
    table: Path, split: None, *, videos: str | None, inside: bool, out_mp4: str | None, validate: bool
) -> RecordInputs[_Record]:
    del split
    require_av()
    folder = table.parent / 'videos' if videos is None else Path(videos)
    if not table.is_file():
        raise ObjectNotFoundError(
            f'WebVid is read from a table such as results_2M_train.csv, but {table} is no file. Give its path.'
        )
    if not folder.is_dir():
        raise ObjectNotFoundError(f'The videos of {table} are in a folder, but {folder} is none. Pass `videos`.')
    # It needs no copy: where they lie is where they stay, unless they go into shards.
    target = None if inside else out_mp4
    records = _rows(table, folder)
    return RecordInputs(
        partial(_read, folder, inside, target, validate),
        records,
        kind='webvid',
        columns={**COLUMNS, **({'content': 'bytes'} if inside else {'content_path': 'str'})},
        identity={
            'table': str(table),
            'videos': str(folder),
            'inside': inside,
            'out_mp4': target,
            'validate': validate,
        },
        label=_label,
        sizes=[
            _ROW_BYTES
            + sum(len(value) for value in row.values())
            + (member.size if inside and member is not None else 0)
            for _, row, member, _ in records
        ],
    )


def _rows(table: Path, folder: Path) -> list[_Record]:
    try:
        with open(table, newline='', encoding='utf-8', errors='surrogateescape') as file:
            reader = csv.DictReader(file)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise FormatError(
                    f"WebVid's table has the columns {', '.join(_NEEDED)}, but {table} has {reader.fieldnames}. Give "
                    f'the table of the distribution.'
                )
            return [_record(reader.line_num, row, folder) for row in reader]
    except csv.Error as error:
        raise FormatError(f'The table {table} is damaged: {error}. Fetch it again.') from error


def _record(line: int, found: Mapping[str | None, Any], folder: Path) -> _Record:
    row = {name: str(found.get(name) or '') for name in COLUMNS}
    if None in found or any(found.get(name) is None for name in _NEEDED):
        return line, row, None, 'A row has as many values as the table has columns, but this one has others.'
    try:
        ''.join(row.values()).encode()
        _seconds(row['duration'])
    except ValueError as error:
        return line, row, None, str(error)
    parts = [*row['page_dir'].split('/'), f'{row["videoid"]}.mp4']
    if not all(_NAME.fullmatch(part) and part not in ('.', '..') for part in parts):
        return line, row, None, f'A video is below the folder of videos, but the row names {"/".join(parts)!r:.200}.'
    path = '/'.join(parts)
    try:
        return line, row, Member.of(path, (folder / path).stat()), ''
    except OSError as error:
        return line, row, None, f'The video {path} cannot be read: {error.strerror}.'


def _seconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise FormatError(f'A duration has the form PT00H00M21S, but is {text!r:.40}.')
    hours, minutes, seconds = map(int, found.groups())
    return 3600 * hours + 60 * minutes + seconds


def _label(record: _Record) -> str:
    return f'line {record[0]}, video {record[1]["videoid"]}'


@cache
def _place(url: str) -> StorePlace:
    return StorePlace(open_store(url), Retry())


def put_video(url: str, path: str, video: bytes) -> None:
    """Write a video to a folder or URL, whole or not at all. If that fails, no input is to blame."""
    try:
        _place(url).write(path, video)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f'Writing {url}/{path} failed: {error}. Correct it and run the conversion again.') from error


if __name__ == '__main__':
    raise SystemExit(main())
