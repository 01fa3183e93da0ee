"""WebDataset's tars: what its own writer and Python's `tarfile` write, read value by value."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources import tar
from tests.support.sources.source_cases import MemoryStore, index, part_bytes, rows
from tests.support.sources.tars import npy, pack, pairs
from tests.support.suite.example_counts import scaled


def test_what_webdataset_writes(tmp_path):
    webdataset = pytest.importorskip('webdataset')
    from PIL import Image

    samples: list[dict[str, Any]] = []
    with webdataset.ShardWriter(str(tmp_path / 'data-%04d.tar'), maxcount=4, verbose=0) as writer:
        for n in range(10):
            sample = {
                '__key__': f'folder/{n:04}',
                'png': np.full((4, 5, 3), n, np.uint8),
                'cls': n,
                'txt': f'ä {n}',
                'json': {'n': n, 'words': ['a', None]},
                'seg.npy': np.arange(n + 1, dtype='<f4').reshape(1, -1),
                'raw.bin': bytes(range(n)),
            }
            samples.append(sample)
            writer.write(sample)
    objects = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(objects) == 3
    source = index(tar, objects)
    assert dict(source.columns) == {
        '__key__': 'str',
        'cls': 'int',
        'json': 'json',
        'png': 'png',
        'raw.bin': 'bytes',
        'seg.npy': 'ndarray',
        'txt': 'str',
    }
    found = rows(source, objects)
    assert len(found) == 10
    for row, sample in zip(found, samples, strict=True):
        assert isinstance(row['png'], Image.Image)
        np.testing.assert_array_equal(np.asarray(row.pop('png')), sample.pop('png'))
        np.testing.assert_array_equal(row.pop('seg.npy'), sample.pop('seg.npy'))
        assert row == sample


def test_grouping_is_webdatasets():
    webdataset = pytest.importorskip('webdataset')
    members = [
        ('a/x.JPG', b'1'),
        ('a/x.seg.txt', b'2'),
        ('./a/y.jpg', b'3'),
        ('./a/y.seg.txt', b'4'),
        ('a.b/c.jpg', b'5'),
        ('a.b/c.seg.txt', b'6'),
        ('without_extension', b'7'),
        ('__meta__/z.jpg', b'8'),
        ('__index__', b'9'),
        ('.hidden', b'0'),
        ('a/x.jpg', b'a'),
        ('a/x.seg.txt', b'b'),
    ]
    data = pack(members)
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    stream = ({**file, '__url__': ''} for file in tar_file_iterator(io.BytesIO(data)))
    expected = [
        {name: value for name, value in sample.items() if name != '__url__'} for sample in group_by_keys(stream)
    ]
    source = index(tar, {'t.tar': data}, columns=['__key__', 'jpg', 'seg.txt'])
    batch = next(iter(source.batches(0, part_bytes(source, 0, {'t.tar': data}))))
    found = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    assert found == [{name: sample[name] for name in ('__key__', 'jpg', 'seg.txt')} for sample in expected]
    del webdataset


def test_parts_are_runs_of_64_mib():
    data = {'t.tar': pack(pairs(4, 20 << 20))}
    store = MemoryStore(data)
    source = tar.index(store, list(store.list('')), columns=None, allow_unsafe_types=False)
    assert [part.rows for part in source.parts] == [3, 1]
    assert all(part.ranges[0][1] <= 64 << 20 for part in source.parts)
    # Members that are much larger than a request are skipped.
    assert sum(size for _, _, size in store.reads) < 4 * (2 << 20)
    keys = [
        key for n in range(2) for batch in source.batches(n, part_bytes(source, n, data)) for key in batch['__key__']
    ]
    assert keys == [f'{n:06}' for n in range(4)]


def test_small_members_are_read_in_few_requests():
    store = MemoryStore({'t.tar': pack(pairs(4000, 3000))})
    tar.index(store, list(store.list('')), columns=None, allow_unsafe_types=False)
    size = len(store.objects['t.tar'])
    assert sum(length for _, _, length in store.reads) <= size + (64 << 10)
    assert len(store.reads) < size / (4 << 20) + 10


def test_columns_are_chosen():
    data = {'t.tar': pack(pairs(3))}
    assert rows(index(tar, data, columns=['txt']), data) == [{'txt': f'text {n}'} for n in range(3)]
    with pytest.raises(StreamError, match="asks for 'jpg'"):
        index(tar, data, columns=['jpg', 'txt'])


def test_a_lacking_extension_is_named():
    data = {
        'a.tar': pack([('1.txt', b'1'), ('1.json', b'{}'), ('2.txt', b'2')]),
        'b.tar': pack([('3.txt', b'3'), ('3.json', b'{}'), ('3.cls', b'1')]),
    }
    with pytest.raises(FormatError, match=r"sample '1' in a.tar has no 'cls'.*columns=\['__key__', 'txt'\]"):
        index(tar, data)
    with pytest.raises(FormatError, match=r"sample '2' in a.tar has no 'json'"):
        index(tar, data, columns=['json'])
    assert rows(index(tar, data, columns=['txt']), data) == [{'txt': text} for text in '123']


def edit(data: bytes, at: int, new: bytes) -> bytes:
    """The tar with other bytes in its first header, and the checksum that goes with them."""
    head = bytearray(data[:512])
    head[at : at + len(new)] = new
    head[148:156] = b' ' * 8
    head[148:156] = b'%06o\0 ' % sum(head)
    return bytes(head) + data[512:]


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (b'x' * 5000, 'no number in the header|no valid tar header'),
        (pack(pairs(1))[:700], 'ends at byte 700'),
        (pack(pairs(1))[:1100], 'ends within the header'),
        (pack(pairs(1, 2000))[:900], 'ends'),
        (pack([('a.txt', b'1'), ('a.txt', b'2')]), "has 'txt' twice"),
        (edit(pack(pairs(1)), 124, b'\x80' + b'\x7f' * 11), 'ends at byte'),
        (edit(pack(pairs(1)), 124, b'77777777777\0'), 'ends at byte'),
        (edit(pack(pairs(1)), 124, b'-0000000001\0'), 'no number|has no number'),
        (edit(pack(pairs(1)), 156, b'S'), 'sparse'),
        (edit(edit(pack(pairs(1)), 156, b'x'), 124, b'00100000000\0'), 'bytes of extended header'),
        (edit(pack(pairs(1)), 0, b'\xff\xfe'), 'UTF-8'),
    ],
)
def test_damaged_tars(data, message):
    with pytest.raises(FormatError, match=message):
        index(tar, {'t.tar': data})


def test_a_part_of_other_bytes_is_an_error():
    data = {'t.tar': pack(pairs(5))}
    source = index(tar, data)
    other = memoryview(pack(pairs(4)))
    with pytest.raises(ShardError, match='has 4 samples, but the index says 5'):
        list(source.batches(0, other))
    with pytest.raises(ShardError, match='lacks'):
        list(source.batches(0, memoryview(pack([('1.txt', b'')]))))


def test_a_damaged_index_is_refused():
    data = {'t.tar': pack(pairs(5))}
    saved = index(tar, data).to_bytes()
    for damaged in (saved[:-5], saved.replace(b'__key__', b'__yek__'), b''):
        with pytest.raises(FormatError, match='Delete it'):
            tar.load(damaged)


SEEDS = [
    pack(pairs(3, 600)),
    pack([('ü' * 150 + '.txt', b'1'), ('b.txt', b'2')], tarfile.PAX_FORMAT),
    pack([('ü' * 150 + '.txt', b'1'), ('b.npy', npy(np.arange(9)))], tarfile.GNU_FORMAT),
]


changes = st.lists(st.tuples(st.integers(0, 1 << 14), st.binary(min_size=1, max_size=12)), max_size=4)


def check_damaged(seed: int, edits: list[tuple[int, bytes]], end: int, mend: bool) -> None:
    data = bytearray(SEEDS[seed])
    for at, new in edits:
        start = at % len(data)
        data[start : start + len(new)] = new
        block = start // 512 * 512
        if mend and len(data) >= block + 512:  # the parser gets beyond the checksum
            data[block + 148 : block + 156] = b' ' * 8
            data[block + 148 : block + 156] = b'%06o\0 ' % sum(data[block : block + 512])
    objects = {'t.tar': bytes(data[: len(data) - end])}
    with contextlib.suppress(HeadraceError):
        rows(index(tar, objects), objects)


@given(st.integers(0, 2), changes, st.integers(0, 3000), st.booleans())
@settings(max_examples=scaled(200), deadline=None)
def test_any_damage_is_an_error_of_ours(seed, edits, end, mend):
    check_damaged(seed, edits, end, mend)


@pytest.mark.slow
@given(st.integers(0, 2), changes, st.integers(0, 3000), st.booleans())
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_damage_is_an_error_of_ours_at_length(seed, edits, end, mend):
    check_damaged(seed, edits, end, mend)


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
