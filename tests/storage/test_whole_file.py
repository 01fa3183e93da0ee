"""A file is written whole, or stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.storage.whole_file import whole_file


@pytest.mark.parametrize('sync', [False, True])
def test_a_file_is_replaced_at_the_end(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / 'file'
    path.write_bytes(b'old')
    with whole_file(path, tmp_path / 'other', sync=sync) as file:
        file.write(b'new')
        assert path.read_bytes() == b'old'
    assert path.read_bytes() == b'new'
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / 'file'
    path.write_bytes(b'old')
    with pytest.raises(KeyboardInterrupt), whole_file(path, tmp_path / 'other') as file:
        file.write(b'new')
        raise KeyboardInterrupt
    assert path.read_bytes() == b'old'
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / 'file'
    path.mkdir()
    with pytest.raises(IsADirectoryError), whole_file(path, tmp_path / 'other') as file:
        file.write(b'new')
    assert list(tmp_path.iterdir()) == [path]
