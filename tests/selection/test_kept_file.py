"""A file that one process makes and others map: errors of its data, of its disk, and of those who delete it."""

from __future__ import annotations

import errno
import mmap
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import CacheError, DiskFullError, ObjectNotFoundError
from headrace.selection.kept_file import KeptFile
from headrace.storage.cache.control_folder import OpenFolder, publish


class Text(KeptFile[bytes]):
    """Holds a text that begins with its length in one byte."""

    def __init__(self, cache: Path) -> None:
        super().__init__(cache, '.kept', re.compile(r'a\.text(\.tmp)?'), 'a.text')

    def _content(self, data: mmap.mmap) -> bytes | None:
        return data[1:] if data[0] == len(data) - 1 else None

    def load(self, text: bytes) -> bytes:
        return self.made(lambda folder: publish(folder, self.name, [bytes([len(text)]), text]))


def raising(error: Exception) -> Callable[[OpenFolder], None]:
    def make(folder: OpenFolder) -> None:
        raise error

    return make


@pytest.mark.parametrize('damaged', [b'', b'\5one', b'\0two'])
def test_it_is_made_once_and_anew_where_it_is_damaged(tmp_path: Path, damaged: bytes) -> None:
    file = Text(tmp_path)
    assert file.find() is None
    assert [file.load(text) for text in (b'one', b'two')] == [b'one', b'one']
    file.path.write_bytes(damaged)
    with pytest.raises(CacheError, match='while it was in use'):
        file.find_again()
    (tmp_path / '.kept' / 'a.text.tmp').write_bytes(b'of a killed process')
    assert file.load(b'two') == b'two' == file.find_again()
    assert list((tmp_path / '.kept').iterdir()) == [file.path]


def test_an_error_of_a_store_is_not_one_of_the_cache(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match='no such shard'):
        Text(tmp_path).made(raising(ObjectNotFoundError('no such shard')))


def test_an_error_of_the_disk_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match=r'\.kept has no room'):
        Text(tmp_path).made(raising(OSError(errno.ENOSPC, 'No space left on device')))
    with pytest.raises(CacheError, match=r'\.kept is not: EROFS'):
        Text(tmp_path).made(raising(OSError(errno.EROFS, 'Read-only file system')))


def test_a_file_that_is_gone_once_it_is_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match='as soon as it was written'):
        Text(tmp_path).made(lambda folder: None)
