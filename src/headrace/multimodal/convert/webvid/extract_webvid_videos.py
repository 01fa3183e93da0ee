"""WebVid with videos inside of the shards to WebVid with videos outside: ``headrace convert webvid-outside IN OUT``.

IN is a folder of MDS shards with the column ``content``. Sample 1002 becomes the file ``001/002.mp4``, and the new
shards have its path in the column ``content_path``.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.convert.inputs.records import RecordInputs
from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.multimodal.convert import WEBVID_OUTSIDE as ORIGINAL
from headrace.multimodal.convert.webvid.crawl_webvid import COLUMNS, put_video

if TYPE_CHECKING:
    from headrace.dataset import LocalDataset

main = ORIGINAL.main

_COLUMNS: Final = {**COLUMNS, 'content_path': 'str'}
_ROW_BYTES: Final = 400

_Record = tuple[int, str]  # the number of a sample, and the time at which the index was written


@lru_cache(1)
def _dataset(folder: str, version: str) -> LocalDataset:
    from headrace.dataset import LocalDataset  # with torch, which the help of the command does not need

    del version  # another one is another dataset
    return LocalDataset(folder)


def _read(folder: str, out_mp4: str, record: _Record) -> dict[str, Any]:
    number, version = record
    sample = _dataset(folder, version)[number]
    path = f'{number // 1000:03}/{number % 1000:03}.mp4'
    put_video(out_mp4, path, sample['content'])
    return {**{name: sample.get(name, '') for name in _COLUMNS}, 'content_path': path}


def records(folder: Path, split: None, *, out_mp4: str | None) -> RecordInputs[_Record]:
    del split
    if out_mp4 is None:
        raise ConfigError('The videos go to a folder or URL, but none is given. Pass `out_mp4`.')
    if not (folder / 'index.json').is_file():
        raise ObjectNotFoundError(f'{folder} holds no index.json, so no MDS shards. Check the path.')
    version = f'{(folder / "index.json").stat().st_mtime_ns:x}'
    count = len(_dataset(str(folder), version))
    return RecordInputs(
        partial(_read, str(folder), out_mp4),
        [(number, version) for number in range(count)],
        kind='webvid',
        columns=_COLUMNS,
        identity={'folder': str(folder), 'out_mp4': out_mp4},
        label=_label,
        sizes=[_ROW_BYTES] * count,
    )


def _label(record: _Record) -> str:
    return f'sample {record[0]}'


if __name__ == '__main__':
    raise SystemExit(main())
