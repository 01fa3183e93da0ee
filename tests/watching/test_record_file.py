"""The file of a run's record, cut and changed at every byte."""

from __future__ import annotations

import resource
import warnings
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.watching.record_file import RECORD, RecordFile, read_record

ENTRIES = [{'kind': 'pass', 'step': n, 'name': 'ü\n' * (n % 3)} for n in range(6)]


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    file = RecordFile(tmp_path / 'whole')
    for entry in ENTRIES:
        file.add(entry)
    file.close()
    return (tmp_path / 'whole' / RECORD).read_bytes()


def test_a_record_gives_what_was_added(tmp_path: Path, whole: bytes) -> None:
    assert read_record(tmp_path / 'whole') == (ENTRIES, 0)


def test_a_kill_at_any_byte_loses_at_most_the_last_line_and_the_next_writer_continues(
    tmp_path: Path, whole: bytes
) -> None:
    path = tmp_path / RECORD
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        done = whole[:size].count(b'\n')
        if whole[size : size + 1] == b'\n':
            done += 1  # only the end of the line is missing
        assert read_record(tmp_path).entries == ENTRIES[:done], size
        file = RecordFile(tmp_path)
        file.add({'kind': 'segment', 'step': 7})
        file.close()
        assert read_record(tmp_path).entries == [*ENTRIES[:done], {'kind': 'segment', 'step': 7}], size


def test_a_changed_byte_costs_one_line(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / RECORD
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found, damaged = read_record(tmp_path)
        lost = 2 if whole[at : at + 1] == b'\n' and at + 1 < len(whole) else 1  # two lines became one
        assert [entry for entry in found if entry in ENTRIES] == found
        assert len(found) == len(ENTRIES) - lost or at + 1 == len(whole)
        assert damaged == 1


def test_a_full_disk_is_one_warning_and_its_lines_follow(tmp_path: Path) -> None:
    file = RecordFile(tmp_path)
    file.add(ENTRIES[0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + 10, before[1]))  # in the middle of a line
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            file.add(ENTRIES[1])
            file.add(ENTRIES[2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_record(tmp_path) == (ENTRIES[:1], 1)
    assert ['The training continues' in str(one.message) for one in caught] == [True]
    file.add(ENTRIES[3])
    file.close()
    assert read_record(tmp_path) == (ENTRIES[:4], 1)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='headrace.record'):
        read_record(tmp_path)
    (tmp_path / 'file').write_text('')
    with pytest.raises(ConfigError, match='Give another `folder`'):
        RecordFile(tmp_path / 'file')
