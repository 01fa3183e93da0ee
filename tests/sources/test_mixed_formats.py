"""Streams of all formats, read as users read them: one at a time, mixed, and resumed."""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.convert import convert
from headrace.convert.report import report_lines
from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources.formats import format_of
from headrace.sources.source_bytes import pack_source, unpack_source
from headrace.testing.oracle import World, check_resume
from tests.support.sources.source_cases import index, rows

ROWS = 60


def samples(first: int, rows: int = ROWS) -> list[dict[str, object]]:
    return [{'id': n, 'text': f'ä "{n}"'} for n in range(first, first + rows)]


def write_tar(folder: Path, first: int) -> None:
    for shard in range(2):
        with tarfile.open(folder / f'{shard}.tar', 'w') as file:
            for sample in samples(first + 30 * shard, 30):
                for name, value in sample.items():
                    data = str(value).encode()
                    info = tarfile.TarInfo(f'{sample["id"]}.{"id" if name == "id" else "text"}')
                    info.size = len(data)
                    file.addfile(info, io.BytesIO(data))


def write_litdata(folder: Path, first: int) -> None:
    pytest.importorskip('litdata')
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=25, compression='zstd')
    for number, sample in enumerate(samples(first)):
        # An array keeps litdata from storing the rows as Arrow data.
        writer.add_item(number, {**sample, 'array': np.arange(3)})
    writer.done()
    writer.merge()


def write_arrow(folder: Path, first: int) -> None:
    pa = pytest.importorskip('pyarrow')
    table = pa.Table.from_pylist(samples(first))
    with pa.OSFile(str(folder / 'a.arrow'), 'wb') as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def write_jsonl(folder: Path, first: int) -> None:
    text = ''.join(json.dumps(sample) + '\n' for sample in samples(first))
    (folder / 'a.jsonl.gz').write_bytes(gzip.compress(text.encode()))


def write_xsv(folder: Path, first: int, name: str, separator: str) -> None:
    with open(folder / f'a.{name}', 'w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, ['id', 'text'], delimiter=separator)
        writer.writeheader()
        writer.writerows(samples(first))


WRITERS = {
    'webdataset': write_tar,
    'litdata': write_litdata,
    'arrow': write_arrow,
    'jsonl': write_jsonl,
    'csv': lambda folder, first: write_xsv(folder, first, 'csv', ','),
    'tsv': lambda folder, first: write_xsv(folder, first, 'tsv', '\t'),
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory) -> dict[str, Path]:
    """A folder of each format. The ids of the first begin at 0, of the second at 1000, and so on."""
    found: dict[str, Path] = {}
    for number, (name, write) in enumerate(WRITERS.items()):
        found[name] = tmp_path_factory.mktemp(name)
        write(found[name], 1000 * number)
    return found


@pytest.mark.parametrize('given_format', [True, False], ids=['named', 'found'])
@pytest.mark.parametrize('name', WRITERS)
def test_a_stream_of_each_format(folders, tmp_path, name, given_format):
    first = 1000 * list(WRITERS).index(name)
    for _ in range(2):  # the second time from the cache
        dataset = StreamingDataset(
            remote=str(folders[name]),
            local=str(tmp_path / 'cache'),
            shuffle=False,
            columns=['id', 'text'],
            format=name if given_format else None,
            batch_size=1,
        )
        assert list(dataset) == samples(first)
        assert dataset[7] == samples(first)[7]


def test_a_mixture_of_all_formats_resumes_exactly(folders, tmp_path):
    def make(topology: Topology, workers: int) -> StreamingDataLoader:
        streams = [
            Stream(remote=str(folder), local=str(tmp_path / name), name=name, format=name, proportion=1)
            for name, folder in folders.items()
        ]
        dataset = StreamingDataset(
            streams=streams,
            batch_size=24 // topology.replicas,
            shuffle=True,
            num_canonical_nodes=2,
            columns=['id', 'text'],
        )
        return StreamingDataLoader(dataset, num_workers=workers, topology=topology)

    seen: set[int] = set()
    for batch in make(Topology(), 0):
        assert batch['text'] == [f'ä "{n}"' for n in batch['id'].tolist()]
        seen |= set(batch['id'].tolist())
    assert seen == {1000 * number + row for number in range(len(WRITERS)) for row in range(ROWS)}
    assert check_resume(make, [World(), World(ranks=2), World(ranks=4, nodes=2)], epochs=2, every=6) == 5


@pytest.mark.parametrize(
    ('name', 'data', 'message'),
    [
        ('one.cls', b'cat', r"'one.cls' in a.tar is an integer of 64 bits, .* holds b'cat'. Leave its column out"),
        ('one.cls', b'9' * 30, r"'one.cls' in a.tar is an integer of 64 bits, .* holds b'9{30}'. Leave its column out"),
        ('one.npy', b'x', r"'one.npy' in a.tar is not a readable .npy file: .* Write it again"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named_in_its_file(tmp_path, name, data, message):
    with tarfile.open(tmp_path / 'a.tar', 'w') as file:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        file.addfile(info, io.BytesIO(data))
    dataset = StreamingDataset(remote=str(tmp_path), local=str(tmp_path / 'cache'))
    with pytest.raises(FormatError, match=message) as raised:
        dataset[0]
    # The store is not to blame, and the dataset is not to be written again.
    assert type(raised.value) is ShardError
    assert 'index says' not in str(raised.value)
    assert 'object in the store' not in str(raised.value)
    assert f'read from {tmp_path} for {tmp_path}/cache/a.tar.0.mds.' in str(raised.value)


def write_parquet(folder: Path, first: int) -> None:
    pa, pq = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
    pq.write_table(pa.Table.from_pylist(samples(first)), folder / 'a.parquet')


WITH_PARQUET = {**WRITERS, 'parquet': write_parquet}
SINGLE_FILES = [name for name in WITH_PARQUET if name != 'litdata']


def put(data: Path, *names: str, root: Path) -> None:
    """Copy a file to a folder, under each of these names without their ending."""
    for name in names:
        path = root / f'{name}{data.name.lstrip("a0")}'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.read_bytes())


LISTINGS = {
    # Files to put, a further step, then `split` and the number of files that are read, or what the error says.
    'linked folder': (['a', '../disk/b'], lambda root: (root / 'link').symlink_to('../disk'), None, 2),
    'circle': (['a', 'x/b'], lambda root: (root / 'x/up').symlink_to('..'), None, 2),
    'dangling link': (['a'], lambda root: (root / 'x').symlink_to('/unmounted/x'), None, 'link to /unmounted/x'),
    'splits': (['train-00000-of-00001', 'test-00000-of-00001'], None, None, 'several: test, train'),
    'a split': (['train-00000-of-00001', 'train_sft-00000-of-00001'], None, 'train', 1),
    'folders of splits': (['train/a', 'validation/a'], None, None, 'several: train, validation'),
    'missing part': (['x-00000-of-00003', 'x-00002-of-00003'], None, None, 'Missing are x-00001-of-00003'),
}


@pytest.mark.parametrize('listing', LISTINGS)
@pytest.mark.parametrize('name', SINGLE_FILES)
def test_no_file_is_left_out_without_a_word(tmp_path: Path, name: str, listing: str) -> None:
    (tmp_path / 'one').mkdir()
    WITH_PARQUET[name](tmp_path / 'one', 0)
    data = min((tmp_path / 'one').iterdir())
    names, step, split, expected = LISTINGS[listing]
    root, rows = tmp_path / 'data', 30 if name == 'webdataset' else ROWS
    put(data, *names, root=root)
    if step:
        step(root)
    says = pytest.raises(HeadraceError, match=expected) if isinstance(expected, str) else contextlib.nullcontext()
    with says:
        assert len(StreamingDataset(remote=str(root), local=str(tmp_path / 'cache'), split=split)) == expected * rows
    with says:
        report = convert(str(root), tmp_path / 'out', split=split, progress_bar=False)
        assert (report.rows, report.ledger.files) == (expected * rows, expected)


@pytest.mark.parametrize('name', WITH_PARQUET)
def test_files_of_other_formats_are_refused_or_listed(tmp_path: Path, name: str, caplog) -> None:
    root = tmp_path / 'data'
    root.mkdir()
    WITH_PARQUET[name](root, 0)
    other = 'csv' if name == 'jsonl' else 'jsonl'
    (root / f'z.{other}').write_text('id\n')
    (root / 'README.md').touch()
    for read in (
        lambda **given: StreamingDataset(remote=str(root), local=str(tmp_path / 'cache'), **given),
        lambda **given: convert(str(root), tmp_path / 'out', progress_bar=False, **given),
    ):
        caplog.clear()
        with pytest.raises(StreamError, match=rf'of several formats:.*{other} \(1 file\).*`--format`'):
            read()
        found = read(format=name)
        assert f'Left out 1 file of another format, such as z.{other}.' in caplog.text
    assert [one.example for one in found.ledger.left_out] == ['README.md', f'z.{other}']
    assert 'Left out 1 file of no known format, such as README.md.' in report_lines(found)


@pytest.mark.parametrize('name', SINGLE_FILES)
def test_an_empty_file_is_named(tmp_path: Path, name: str, caplog) -> None:
    root = tmp_path / 'data'
    root.mkdir()
    WITH_PARQUET[name](root, 0)
    data = min(root.iterdir())
    empty = f'z{data.name.lstrip("a0")}'.removesuffix('.gz')
    (root / empty).touch()
    is_damaged = name in ('parquet', 'arrow', 'webdataset')
    with pytest.raises(FormatError, match=empty) if is_damaged else contextlib.nullcontext():
        assert len(StreamingDataset(remote=str(root), local=str(tmp_path / 'cache'))) == ROWS
        assert f'Left out 1 file without rows, such as {empty}.' in caplog.text


def test_formats_that_cannot_be_told_apart_are_named(folders, tmp_path):
    for name in ('webdataset', 'arrow'):
        for path in folders[name].iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(StreamError, match='several formats'):
        StreamingDataset(remote=str(tmp_path), local=str(tmp_path / 'cache'))


def test_pickles_of_litdata_need_leave(tmp_path):
    pytest.importorskip('litdata')
    from litdata.streaming.writer import BinaryWriter

    folder = tmp_path / 'data'
    folder.mkdir()
    writer = BinaryWriter(str(folder), chunk_size=5)
    for number in range(5):
        writer.add_item(number, {'set': {number}})
    writer.done()
    writer.merge()
    with pytest.raises(FormatError, match='allow_unsafe_types=True'):
        StreamingDataset(remote=str(folder), local=str(tmp_path / 'a'))
    dataset = StreamingDataset(remote=str(folder), local=str(tmp_path / 'b'), allow_unsafe_types=True, batch_size=1)
    assert [dataset[number] for number in range(5)] == [{'set': {number}} for number in range(5)]


# -- files that are not whole, or more than whole ------------------------------------------------------------------


def one_file(name: str, folder: Path, values: list[object]) -> dict[str, bytes]:
    """A dataset of one file, and of its index if it has one, whose column `id` has these values."""
    if name == 'parquet':
        pq = pytest.importorskip('pyarrow.parquet')
        pq.write_table(pytest.importorskip('pyarrow').table({'id': values}), folder / 'a.parquet')
    elif name in ('arrow', 'feather'):
        pa = pytest.importorskip('pyarrow')
        table = pa.table({'id': values})
        new = pa.ipc.new_stream if name == 'arrow' else pa.ipc.new_file
        with pa.OSFile(str(folder / f'a.{name}'), 'wb') as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    elif name == 'litdata':
        pytest.importorskip('litdata')
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(folder), chunk_size=100)
        for number, value in enumerate(values):
            writer.add_item(number, {'id': value})
        writer.done()
        writer.merge()
    elif name.startswith('tar'):
        with tarfile.open(folder / f'a.{name}', 'w:gz' if name == 'tar.gz' else 'w') as tar:
            for number, value in enumerate(values):
                if value is not None:
                    info = tarfile.TarInfo(f'{number}.id')
                    info.size = len(str(value))
                    tar.addfile(info, io.BytesIO(str(value).encode()))
                info = tarfile.TarInfo(f'{number}.more')
                tar.addfile(info)
    else:
        kind, _, packed = name.partition('.')
        lines = [json.dumps({'id': value}) for value in values]
        if kind == 'csv':
            lines = ['id,y', *(f'{"" if value is None else value},"y"' for value in values)]
        text = '\n'.join(lines).encode() + b'\n'
        (folder / f'a.{name}').write_bytes(gzip.compress(text) if packed else text)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


FORMATS = {
    'parquet': ('parquet', 8),
    'arrow': ('arrow', 8),  # and the message before it
    'feather': ('arrow', 10),
    'tar': ('webdataset', 10240 - 3 * 1536),  # the last sample and the end
    'tar.gz': ('webdataset', 8),
    'jsonl': ('jsonl', 2),
    'jsonl.gz': ('jsonl', 8),
    'csv': ('csv', 2),
    'csv.gz': ('csv', 8),
    'litdata': ('litdata', 12),
}
"""By the ending of a file: the format, and bytes at the end without which a reader knows that it is not whole."""


def read(name: str, objects: dict[str, bytes]) -> list[object] | str:
    """The values of the column, or the message of headrace's error."""
    try:
        return [row['id'] for row in rows(index(format_of(name), objects, columns=['id']), objects)]
    except HeadraceError as error:
        return str(error)


@pytest.mark.parametrize('case', ['whole', 'truncated', 'joined', 'followed by other data', 'empty beside another'])
@pytest.mark.parametrize('ending', FORMATS)
def test_a_file_is_read_whole_or_refused_by_name(tmp_path, ending, case):
    name, end = FORMATS[ending]
    objects = one_file(ending, tmp_path, [0, 1, 2, 3])
    key = next(key for key in objects if key != 'index.json')
    data = objects[key]
    if ending == 'arrow':
        end = len(data) - data.rindex(b'\xff' * 4, 0, -end)
    if case == 'empty beside another':
        objects['empty' + key] = b''
    else:
        objects[key] = {'truncated': data[:-end], 'joined': data * 2}.get(case, data)
        objects[key] += b'm' * (case == 'followed by other data')
    found = read(name, objects)
    if isinstance(found, str):
        assert case != 'whole'
        assert key in found
    else:
        assert found == [0, 1, 2, 3] * (1 + (case == 'joined'))


@pytest.mark.parametrize('ending', FORMATS)
def test_nulls_are_none_or_refused_by_name(tmp_path, ending):
    """Other than CSV, which knows no nulls: an empty field makes a column of text."""
    objects = one_file(ending, tmp_path, [0, None, 2, 3])
    expected: list[object] = ['0', '', '2', '3'] if ending.startswith('csv') else [0, None, 2, 3]
    found = read(FORMATS[ending][0], objects)
    if ending.startswith('tar'):
        assert f"sample '1' in a.{ending} has no 'id'" in found
    else:
        assert found == expected


@pytest.mark.parametrize('ending', ['parquet', 'arrow'])
def test_an_index_of_an_older_version_knows_meanings(tmp_path, ending):
    objects = one_file(ending, tmp_path, [dt.datetime(2020, 1, 1)])
    source = index(format_of(ending), objects)
    assert source.meanings == {'id': 'timestamp[us]'}
    found = unpack_source(source.to_bytes())
    older = {name: value for name, value in found.settings.items() if name != 'meanings'}
    assert format_of(ending).load(pack_source(older, found.arrays, found.pieces)).meanings == source.meanings
