"""Descriptions of real folders, and how little they read."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from headrace import CSVWriter, JSONWriter, MDSWriter
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError
from headrace.inspect import describe, save_pictures, thumbnail
from headrace.storage import StoreOptions, register_store
from headrace.storage.stores.local import LocalStore
from tests.support.pages.shown import html_of

COLUMNS = {'array': 'ndarray', 'id': 'int', 'row': 'ndarray:float32:2,3', 'text': 'str', 'x': 'float64'}


def sample(i: int) -> dict[str, Any]:
    row = np.full((2, 3), i, np.float32)
    return {'array': np.ones((i % 3 + 1, 2), np.int16), 'id': i, 'row': row, 'text': 'ü' * i, 'x': i / 2}


def write(folder: Path, samples: int = 50, **options: Any) -> Path:
    with MDSWriter(out=str(folder), columns=COLUMNS, **{'size_limit': 1500, **options}) as writer:
        for i in range(samples):
            writer.write(sample(i))
    return folder


class CountedStore(LocalStore):
    """A folder that is not read in place, and counts the bytes that leave it."""

    def __init__(self, root: str, read: list[tuple[str, int]]) -> None:
        super().__init__(root)
        self._read = read

    def get(self, key: str, out: BinaryIO, **options: Any) -> str:
        class Counted:
            def write(_, data: bytes) -> int:
                self._read.append((key, len(data)))
                return out.write(data)

        return super().get(key, Counted(), **options)


@pytest.mark.parametrize('compression', [None, 'zstd:3'])
def test_the_whole(tmp_path: Path, compression: str | None) -> None:
    folder = write(tmp_path / 'data', compression=compression, hashes=['sha1'])
    entries = json.loads((folder / 'index.json').read_text())['shards']
    stored = [(entry['zip_data'] or entry['raw_data'])['bytes'] for entry in entries]

    found = describe(folder, samples=2)

    assert (found.format, found.compression, found.hashes) == ('mds', compression, ('sha1',))
    assert (found.num_samples, found.num_shards) == (50, len(entries))
    assert found.raw_bytes == sum(entry['raw_data']['bytes'] for entry in entries)
    assert found.stored_bytes == sum(path.stat().st_size for path in folder.glob('*.mds*')) == sum(stored)
    assert found.ratio == found.raw_bytes / found.stored_bytes
    assert found.shard_bytes.to_json() == {'min': min(stored), 'median': int(np.median(stored)), 'max': max(stored)}
    assert found.shard_samples.most == max(entry['samples'] for entry in entries)
    assert [column.name for column in found.columns] == list(COLUMNS)
    by_name = {column.name: column for column in found.columns}
    assert by_name['row'].kind == 'float32 array of shape (2, 3)'
    assert by_name['row'].size == 24
    assert by_name['array'].seen_shapes == ('int16 (1, 2)', 'int16 (2, 2)', 'int16 (3, 2)')
    assert by_name['text'].size is None
    assert by_name['text'].seen_sizes is not None
    assert by_name['text'].seen_sizes[0] == 0
    assert len(found.samples) == 2
    assert [each['id'].value for each in found.samples] == [0, 1]
    assert found.samples[1]['text'].value == 'ü'
    assert found.samples[1]['x'].value == 0.5
    assert json.loads(json.dumps(found.to_json()))['first_samples'][1]['text']['value'] == 'ü'
    text = str(found)
    assert 'float32 array of shape (2, 3)' in text
    assert 'int16 (1, 2) to (3, 2)' in text
    assert '<td' in html_of(found)


@pytest.mark.parametrize('writer', [JSONWriter, CSVWriter])
def test_lines(tmp_path: Path, writer: Any) -> None:
    with writer(out=str(tmp_path / 'data'), columns={'a': 'int', 'b': 'str'}, size_limit=200) as out:
        for i in range(60):
            out.write({'a': i, 'b': f'text {i}'})
    found = describe(tmp_path / 'data', samples=5)
    assert [each['a'].value for each in found.samples] == [0, 1, 2, 3, 4]
    assert found.samples[4]['b'].value == 'text 4'
    assert found.stored_bytes == sum(p.stat().st_size for p in (tmp_path / 'data').iterdir() if p.name != 'index.json')


@pytest.mark.usefixtures('own_stores')
def test_of_a_large_raw_shard_only_the_first_samples_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path / 'data', samples=3000, size_limit=None)
    read: list[tuple[str, int]] = []
    register_store('counted', lambda url, options: CountedStore(url.removeprefix('counted://'), read))
    found = describe(f'counted://{folder}', samples=3)
    assert found.samples[2]['id'].value == 2
    sizes = {key: sum(size for name, size in read if name == key) for key, _ in read}
    assert sizes['index.json'] == (folder / 'index.json').stat().st_size
    assert sizes['shard.00000.mds'] < 5000 < (folder / 'shard.00000.mds').stat().st_size


def test_only_one_shard_is_opened(tmp_path: Path) -> None:
    folder = write(tmp_path / 'data')
    for path in sorted(folder.glob('*.mds'))[1:]:
        path.unlink()
    assert describe(folder).samples[2]['id'].value == 2
    (folder / 'shard.00000.mds').unlink()
    with pytest.raises(ObjectNotFoundError):
        describe(folder)
    assert describe(folder, samples=0).num_samples == 50


@pytest.mark.parametrize('damage', ['truncated', 'offsets', 'value'])
def test_a_damaged_shard_is_said(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / 'data') / 'shard.00000.mds'
    data = bytearray(path.read_bytes())
    if damage == 'truncated':
        del data[300:]
    elif damage == 'offsets':
        struct.pack_into('<I', data, 8, 1 << 31)
    else:
        data[data.index('ü'.encode())] = 0xFF
    path.write_bytes(data)
    found = describe(tmp_path / 'data')
    if damage == 'value':
        assert 'damaged' in str(found.samples[1]['text'].value)
    else:
        assert found.damage
        assert 'cannot be read' in str(found)
    assert found.num_samples == 50


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = '\x1b]0;owned\x07\x9b31m\u202e\r\n'
    with MDSWriter(out=str(tmp_path / 'data'), columns={f'c{evil}': 'str', 'b': 'bytes', 'j': 'json'}) as writer:
        writer.write({f'c{evil}': evil * 3, 'b': evil.encode(), 'j': {evil: evil}})
    found = describe(tmp_path / 'data')
    text = str(found)
    assert all(line.isprintable() for line in text.split('\n'))
    assert '\\x1b]0;owned' in text
    assert '\x1b' not in html_of(found)
    assert found.to_json()['first_samples'][0][f'c{evil}']['value'] == evil * 3


def test_pickles_are_not_read(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'o': 'pkl'}) as writer:
        writer.write({'o': {'a': 1}})
    assert 'runs code' in str(describe(tmp_path / 'data').samples[0]['o'].value)


def test_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip('PIL.Image')
    red = image.new('RGB', (40, 20), (255, 0, 0))
    columns = {'b': 'bytes', 'j/../j': 'jpeg', 'l': 'list[png]', 'p': 'pil'}
    with MDSWriter(out=str(tmp_path / 'data'), columns=columns) as writer:
        red.save(tmp_path / 'red.png')
        png = (tmp_path / 'red.png').read_bytes()
        writer.write({'b': png, 'j/../j': red, 'l': [red, red], 'p': red})
    found = describe(tmp_path / 'data')
    assert found.samples[0]['j/../j'].shape == '40 x 20 RGB'
    saved = save_pictures(found, tmp_path / 'out')
    assert sorted(path.name for path in saved) == [
        '000-0-b.png', '000-1-j____j.jpg', '000-2-l-1.png', '000-2-l.png', '000-3-p.png'
    ]  # fmt: skip
    assert (tmp_path / 'out' / '000-0-b.png').read_bytes() == png
    assert all(image.open(path).size == (40, 20) for path in saved)
    lines = thumbnail(png, columns=8)
    assert lines == ['\x1b[38;2;255;0;0;48;2;255;0;0m▀' * 8 + '\x1b[0m'] * 2


def test_a_dataset_without_samples(tmp_path: Path) -> None:
    (tmp_path / 'index.json').write_text('{"version": 2, "shards": []}')
    found = describe(tmp_path)
    assert (found.num_samples, found.num_shards, found.columns, found.ratio) == (0, 0, (), 1.0)
    assert '0 in 0 shards' in str(found)


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='0 or more'):
        describe(tmp_path, samples=-1)
    with pytest.raises(ObjectNotFoundError, match='folder is empty'):
        describe(tmp_path, options=StoreOptions())


def test_data_of_another_format(tmp_path: Path) -> None:
    (tmp_path / 'a.jsonl').write_text(''.join(json.dumps({'a': i, 's': f'text {i}'}) + '\n' for i in range(100)))
    found = describe(tmp_path, samples=2)
    assert (found.format, found.num_samples, found.is_estimate) == ('jsonl', 100, True)
    assert found.stored_bytes == (tmp_path / 'a.jsonl').stat().st_size
    assert [each['s'].value for each in found.samples] == ['text 0', 'text 1']
    assert {column.name: column.encoding for column in found.columns} == {'a': 'int', 's': 'str'}
    assert describe(f'{tmp_path}/*.jsonl').num_samples == 100


def test_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
    table = arrow.table({'id': list(range(50)), 'v': [[float(i), 1.0] for i in range(50)]})
    parquet.write_table(table, tmp_path / 'train.parquet', row_group_size=20)
    found = describe(tmp_path)
    assert (found.format, found.num_samples, found.num_shards) == ('parquet', 50, 3)
    assert found.samples[2]['id'].value == 2
    assert 'as MDS' in str(found)


def test_shards_without_their_index_are_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / 'data')
    (folder / 'index.json').unlink()
    with pytest.raises(ObjectNotFoundError, match='shards without an index'):
        describe(folder)
    (folder / 'index.json').write_text('{"version": 3}')
    with pytest.raises(FormatError, match='version 2'):
        describe(folder)
