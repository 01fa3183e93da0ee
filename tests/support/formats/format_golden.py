"""The golden fixtures, and the smallest possible dataset over them: index, files, readers."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.format import open_shard, parse_index, unpack_file, verify_file
from tests.support.golden.values import NoValueError, covers, neutral, value

__all__ = [
    'NoValueError',
    'buffer_of',
    'covers',
    'format_cases',
    'formats',
    'index_of',
    'load',
    'neutral',
    'reader_of',
    'value',
]

if TYPE_CHECKING:
    from headrace.format.shards import ShardInfo

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get('HEADRACE_GOLDEN', ROOT.parent / 'shared' / 'golden')) / 'open'
VENDORED = ROOT / 'tests' / 'data' / 'formats'


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def formats() -> Path:
    """All fixtures where they are at hand, else the ones that travel with the repository."""
    return SHARED / 'formats' if (SHARED / 'formats').is_dir() else VENDORED


def format_cases() -> list[dict[str, Any]]:
    return load(formats() / 'manifest.json')['cases']


def buffer_of(path: Path) -> memoryview:
    data = path.read_bytes()
    if not data:
        return memoryview(data)
    with path.open('rb') as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def reader_of(info: ShardInfo, folder: Path, scratch: Path, hash_name: str | None = None) -> Any:
    """A reader of a shard of a local folder, unpacked into scratch where only the compressed file is there."""
    buffers = []
    for file in info.files:
        path = folder / file.raw.basename
        if not path.exists() and file.zip is not None:
            packed = folder / file.zip.basename
            verify_file(packed, file.zip, hash_name)
            path = scratch / file.raw.basename
            path.parent.mkdir(parents=True, exist_ok=True)
            unpack_file(info.compression or '', packed, path, file.raw.bytes)
        verify_file(path, file.raw, hash_name)
        buffers.append(buffer_of(path))
    return open_shard(info, buffers, source=str(folder / info.files[0].raw.basename))


def index_of(folder: Path, **options: Any) -> list[ShardInfo]:
    return parse_index((folder / 'index.json').read_bytes(), source=str(folder / 'index.json'), **options)
