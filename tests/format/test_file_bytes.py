"""`read_file` beside `Path.read_bytes`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headrace.format.file_bytes import read_file

BLOCK = 96 << 10


@pytest.mark.parametrize('size', [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 7])
def test_files_of_any_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / 'file'
    path.write_bytes(os.urandom(size))
    assert read_file(path) == path.read_bytes()


def test_a_file_that_gives_its_bytes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / 'pipe'
    os.mkfifo(path)

    def write() -> None:
        with open(path, 'wb', buffering=0) as file:
            for _ in range(3):
                file.write(b'x' * 1000)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_file(path) == b'x' * 3000
    writer.join()


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='none'):
        read_file(tmp_path / 'none')
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    with pytest.raises(ValueError, match='null'):
        read_file('a\0b')
