"""Members of tars, by all kinds of headers."""

from __future__ import annotations

import io
import tarfile

import pytest
from source_cases import index, rows
from tars import pack

from headrace.sources import tar


@pytest.mark.parametrize('kind', [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_kinds_of_headers(kind):
    long = 'folder/' * (12 if kind == tarfile.USTAR_FORMAT else 60) + 'näme'
    members = [(f'{long}.txt', b'long'), ('short.txt', b'short'), ('folder/other.txt', b'')]
    data = {'t.tar': pack(members, kind)}
    assert [tuple(row.values()) for row in rows(index(tar, data), data)] == [
        (long, 'long'),
        ('short', 'short'),
        ('folder/other', ''),
    ]


def test_folders_and_links_are_left_out():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w') as file:
        for name, kind in (('folder', tarfile.DIRTYPE), ('link.txt', tarfile.SYMTYPE), ('hard.txt', tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, '/etc/passwd'
            file.addfile(info)
        info = tarfile.TarInfo('a.txt')
        info.size = 1
        file.addfile(info, io.BytesIO(b'1'))
    data = {'t.tar': out.getvalue()}
    assert rows(index(tar, data), data) == [{'__key__': 'a', 'txt': '1'}]


def test_checksums_of_signed_bytes():
    data = pack([('\u00e4.txt', b'1')], tarfile.GNU_FORMAT)
    head = data[:148] + b' ' * 8 + data[156:512]
    signed = sum(head) - 256 * sum(byte >= 128 for byte in head)
    objects = {'t.tar': data[:148] + b'%06o\0 ' % signed + data[156:]}
    assert rows(index(tar, objects), objects) == [{'__key__': '\u00e4', 'txt': '1'}]
