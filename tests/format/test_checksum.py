"""Hashes, and the check of a file against its index."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest
import xxhash

from headrace.errors import ChecksumError, ConfigError
from headrace.format import FileInfo, get_hash, get_hashes, is_hash, verify_file

if TYPE_CHECKING:
    from pathlib import Path


def test_there_are_17_hashes_and_their_values_are_known() -> None:
    names = get_hashes()
    assert len(names) == 17
    for data in (b'', b'headrace' * 1000):
        for name in names:
            theirs = getattr(xxhash, name) if name.startswith('xxh') else getattr(hashlib, name)
            assert get_hash(name, data) == get_hash(name, memoryview(data)) == theirs(data).hexdigest()
            assert is_hash(name)
    assert get_hash('xxh128', b'x') == get_hash('xxh3_128', b'x')
    for name in ('crc32', '', 'SHA1', 'shake_128', 'sha3'):
        assert not is_hash(name)
        with pytest.raises(ConfigError, match='is not a supported hash'):
            get_hash(name, b'')


def test_a_file_is_checked(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    path = tmp_path / 'shard.mds'
    path.write_bytes(data)
    hashes = {name: get_hash(name, data) for name in get_hashes()}
    info = FileInfo('shard.mds', len(data), hashes)
    for name in (None, *hashes):
        verify_file(path, info, name)
    verify_file(path, FileInfo('shard.mds', len(data), {'sha1': hashes['sha1'].upper()}), 'sha1')
    verify_file(path, FileInfo('shard.mds', len(data), {}), None)
    with pytest.raises(ChecksumError, match='it has no sha256 of shard.mds: recorded are md5, sha1'):
        verify_file(path, FileInfo('shard.mds', len(data), {'sha1': 'x', 'md5': 'y'}), 'sha256')
    with pytest.raises(ChecksumError, match='recorded are none'):
        verify_file(path, FileInfo('shard.mds', len(data), {}), 'sha256')
    with pytest.raises(ChecksumError, match=f'has {len(data) + 1} bytes, but .* has {len(data)}'):
        verify_file(path, FileInfo('shard.mds', len(data) + 1, hashes), None)
    changed = bytearray(data)
    changed[1_500_000] ^= 1
    path.write_bytes(changed)
    verify_file(path, info, None)
    for name in hashes:
        with pytest.raises(ChecksumError, match=f'the {name} of shard.mds is'):
            verify_file(path, info, name)


def test_unknown_hashes_missing_files_and_folders(tmp_path: Path) -> None:
    info = FileInfo('x', 3, {})
    with pytest.raises(ConfigError, match="'crc32' is not a supported hash"):
        verify_file(tmp_path / 'x', info, 'crc32')
    with pytest.raises(FileNotFoundError):
        verify_file(tmp_path / 'x', info, None)
    (tmp_path / 'x').mkdir()
    with pytest.raises(ChecksumError, match='says that x is a file, but .* is not'):
        verify_file(tmp_path / 'x', info, None)
