"""Members of tars, by all kinds of headers."""

from __future__ import annotations

import gzip
import tarfile

import pytest
from source_cases import index, rows
from tars import pack

from headrace.errors import FormatError
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


def special(name: str, kind: bytes, form: int = tarfile.USTAR_FORMAT) -> bytes:
    """A member without content, as it stands in a tar."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, 'a.txt' if form == tarfile.USTAR_FORMAT else 'folder/' * 30 + 'a.txt'
    return info.tobuf(form)


A, B = pack([('a.txt', b'1')]), pack([('b.txt', b'2')])


def test_folders_are_left_out():
    data = {'t.tar': special('folder', tarfile.DIRTYPE) + A}
    assert rows(index(tar, data), data) == [{'__key__': 'a', 'txt': '1'}]


@pytest.mark.parametrize('form', [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(
    ('kind', 'message'),
    [
        (tarfile.LNKTYPE, r'a hard link. Write the tar again with `tar --hard-dereference`'),
        (tarfile.SYMTYPE, r'a symbolic link. Write the tar again with `tar --dereference`'),
        (tarfile.FIFOTYPE, r"of kind b'6'. Write the tar again without it"),
    ],
    ids=['hard link', 'symbolic link', 'pipe'],
)
def test_a_member_without_content_is_named(kind, message, form):
    with pytest.raises(FormatError, match=rf"'b.txt' at byte 1024 of t.tar is {message}"):
        index(tar, {'t.tar': A[:1024] + special('b.txt', kind, form) + B})


@pytest.mark.parametrize('pack_whole', [bytes, gzip.compress])
@pytest.mark.parametrize(
    'data',
    [A + B, A[:1024] + bytes(512) + B, [A, B]],
    ids=['joined', 'a lone block of zeros', 'each compressed'],
)
def test_members_after_an_end_mark_are_read(data, pack_whole):
    whole = b''.join(map(pack_whole, data)) if isinstance(data, list) else pack_whole(data)
    objects = {'t.tar' if pack_whole is bytes else 't.tar.gz': whole}
    assert [row['__key__'] for row in rows(index(tar, objects), objects)] == ['a', 'b']


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (A + b'more', f'ends within the header at byte {len(A)}'),
        (A + b'more' * 128, f'no number in the header at byte {len(A)}'),
        (A[:1024], 'ends without one at byte 1024'),
        (b'', 'ends without one at byte 0'),
    ],
    ids=['few bytes', 'other data', 'no end', 'empty'],
)
def test_a_tar_that_ends_elsewhere_is_refused(data, message):
    with pytest.raises(FormatError, match=message):
        index(tar, {'t.tar': data})


def test_checksums_of_signed_bytes():
    data = pack([('\u00e4.txt', b'1')], tarfile.GNU_FORMAT)
    head = data[:148] + b' ' * 8 + data[156:512]
    signed = sum(head) - 256 * sum(byte >= 128 for byte in head)
    objects = {'t.tar': data[:148] + b'%06o\0 ' % signed + data[156:]}
    assert rows(index(tar, objects), objects) == [{'__key__': '\u00e4', 'txt': '1'}]
