"""Lance datasets as a source, written by Lance itself in a process of its own."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.convert import convert
from headrace.errors import ConfigError, DiskFullError, FormatError, ShardError, StorageError, StreamError
from headrace.sources import lance_data
from headrace.storage import open_store
from headrace.testing import sources as contract
from headrace.testing.oracle import World, check_resume
from headrace.testing.sources import SourceCase, SourceContract

pytest.importorskip('pyarrow')
if importlib.util.find_spec('lance') is None:  # this process must not import it: it forks
    pytest.skip('needs pylance', allow_module_level=True)

WRITE = """
import datetime, sys
import lance, numpy as np, pyarrow as pa

def table(first, last):
    ids = range(first, last)
    tokens = np.arange(first * 8, last * 8, dtype=np.int32)
    return pa.table({
        'id': pa.array(ids, pa.int64()),
        'text': [f'ä "{n}"' for n in ids],
        'tokens': pa.FixedSizeListArray.from_arrays(pa.array(tokens), 8),
        'maybe': [None if n % 3 else n for n in ids],
        'words': [[f'w{n}'] * (n % 4) for n in ids],
        'numbers': [[(n + k) << 40 for k in range(n % 90 + 1)] for n in ids],
        'deep': [{'a': n, 'b': [str(n)]} for n in ids],
        'data': [np.random.default_rng(n).bytes(50 + n % 100 + 8000 * (n >= 100)) for n in ids],
    })

path, version, rows, of_file = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
batches = table(0, rows).to_reader(500)
dataset = lance.write_dataset(batches, path, data_storage_version=version, max_rows_per_file=of_file)
exec(sys.argv[5])
"""


def write(path: Path, rows: int, of_file: int = 1 << 20, then: str = '', version: str = '2.1') -> Path:
    """A dataset; `then` are statements about the variable `dataset`. This process must not run Lance: it forks."""
    arguments = [str(path), version, str(rows), str(of_file), then]
    subprocess.run([sys.executable, '-c', WRITE, *arguments], check=True, capture_output=True)
    return path


def expected(ids: Any) -> list[dict[str, Any]]:
    return [
        {
            'id': n,
            'text': f'ä "{n}"',
            'tokens': list(range(8 * n, 8 * n + 8)),
            'maybe': None if n % 3 else n,
            'words': [f'w{n}'] * (n % 4),
            'numbers': [(n + k) << 40 for k in range(n % 90 + 1)],
            'deep': {'a': n, 'b': [str(n)]},
            'data': np.random.default_rng(n).bytes(50 + n % 100 + 8000 * (n >= 100)),
        }
        for n in ids
    ]


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, 'tolist') else value for name, value in sample.items()}


def opened(data: Path, cache: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(remote=str(data), local=str(cache), batch_size=4, **options)


def read(*where: Any, **options: Any) -> list[dict[str, Any]]:
    return [plain(sample) for sample in opened(*where, **options)]


BLOB = """
field = pa.field('blob', pa.large_binary(), metadata={'lance-encoding:blob': 'true'})
lance.write_dataset(pa.table([[b'x']], schema=pa.schema([field])), path, mode='overwrite')
"""


@pytest.mark.slow
class TestLance(SourceContract):
    @pytest.fixture(scope='class')
    @classmethod
    def written(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return write(tmp_path_factory.mktemp('written') / 'a.lance', 12, 7, "dataset.delete('id = 5')")

    @pytest.fixture
    def case(self, written: Path) -> SourceCase:
        files = [path for path in written.rglob('*') if path.is_file() and path.parent.name in ('data', '_deletions')]
        files.append(min((written / '_versions').glob('*.manifest')))  # that of the latest version
        objects = {str(path.relative_to(written)): path.read_bytes() for path in files}
        return SourceCase('lance', objects, expected(n for n in range(12) if n != 5))

    @pytest.fixture(autouse=True)
    def few_damages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each is a process at the worst."""
        monkeypatch.setattr(contract, '_DAMAGES', 4)

    def is_same(self, value: Any, back: Any) -> bool:
        return bool(value == (back.tolist() if hasattr(back, 'tolist') else back))


@pytest.mark.parametrize(
    'version', [pytest.param('2.0', marks=pytest.mark.slow), '2.1', pytest.param('2.2', marks=pytest.mark.slow)]
)
def test_runs_of_rows_need_their_pages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Values are the same with any content in the holes."""
    write(tmp_path / 'a', 4000, 3000, "dataset.delete('id % 100 = 7 or (id > 500 and id < 900)')", version)
    monkeypatch.setattr(lance_data, '_PART', 4 << 20)
    monkeypatch.setattr(lance_data, '_joined', sorted)
    rows = [n for n in range(4000) if n % 100 != 7 and not 500 < n < 900]
    columns = None
    if version == '2.0':
        columns = ['id', 'text', 'tokens', 'words', 'numbers', 'deep', 'data']  # pages do not tell of nulls
    store = open_store(str(tmp_path / 'a'))
    objects = list(store.list(''))
    source = lance_data.index(store, lance_data.find(objects), columns=columns, allow_unsafe_types=False)
    assert (len(source.parts) > 4) == (version != '2.0')
    total = sum(info.size for info in objects if info.key.endswith('.lance'))
    if version != '2.0':
        assert all(sum(size for _, size in part.ranges) < 0.6 * total for part in source.parts)
    write_file = lance_data._write

    def write_noise(path: Path, pieces: Any, size: int) -> None:
        write_file(path, [(0, np.random.default_rng(size).bytes(size)), *pieces], size)

    for writer in (write_file, write_noise):
        monkeypatch.setattr(lance_data, '_write', writer)
        cache = tmp_path / writer.__name__
        found = read(tmp_path / 'a', cache, columns=columns)
        assert found == [{name: row[name] for name in found[0]} for row in expected(rows)]


def test_versions_columns_of_other_files_and_where(tmp_path: Path) -> None:
    then = """
dataset = lance.write_dataset(table(30, 50), path, mode='append', max_rows_per_file=8)
dataset.add_columns({'twice': 'id * 2'})
dataset.drop_columns(['deep'])
dataset.delete('id = 49')
"""
    write(tmp_path / 'a', 30, 20, then)
    rows = [{**row, 'twice': 2 * row['id']} for row in expected(range(49))]
    for row in rows:
        del row['deep']
    assert read(tmp_path / 'a', tmp_path / 'b') == rows
    assert read(tmp_path / 'a', tmp_path / 'c', format='lance', format_options={'version': 1}) == expected(range(30))
    some = opened(tmp_path / 'a', tmp_path / 'd', columns=['id', 'twice'], where={'twice': {'at_least': 90}})
    assert [plain(sample) for sample in some] == [{'id': n, 'twice': 2 * n} for n in range(45, 49)]
    report = convert(str(tmp_path / 'a'), tmp_path / 'out', progress_bar=False)
    assert report.rows == 49
    assert [plain(sample) for sample in StreamingDataset(local=str(tmp_path / 'out'), batch_size=4)] == rows
    assert [one.reason for one in report.ledger.left_out] == ["whose name begins with '.' or '_'"]
    with pytest.raises(FormatError, match='has no version 9, but 1 to 5'):
        opened(tmp_path / 'a', tmp_path / 'e', format='lance', format_options={'version': 9})
    with pytest.raises(ConfigError, match="`version` of a Lance dataset is a number from 1 on, but is '2'"):
        opened(tmp_path / 'a', tmp_path / 'e', format='lance', format_options={'version': '2'})
    with pytest.raises(StreamError, match="asks for 'idd'.*Did you mean 'id'"):
        opened(tmp_path / 'a', tmp_path / 'e', columns=['idd'])


@pytest.mark.slow
def test_a_mixture_resumes_on_other_ranks_and_an_appended_version_is_another(tmp_path: Path) -> None:
    for number, name in enumerate('ab'):
        write(tmp_path / name, 40, 15, version=('2.0', '2.1')[number])
    rows = tmp_path / 'c' / 'c.jsonl'
    rows.parent.mkdir()
    rows.write_text(''.join(f'{{"id": {n}, "text": "x"}}\n' for n in range(40)))

    def make(topology: Topology, workers: int) -> StreamingDataLoader:
        streams = [Stream(remote=str(tmp_path / name), local=str(tmp_path / f'of-{name}'), name=name) for name in 'abc']
        dataset = StreamingDataset(
            streams=streams,
            batch_size=8 // topology.replicas,
            shuffle=True,
            columns=['id', 'text'],
            num_canonical_nodes=2,
        )
        return StreamingDataLoader(dataset, num_workers=workers, topology=topology)

    assert check_resume(make, [World(), World(ranks=2), World(ranks=4, nodes=2)], epochs=1, every=5) == 3
    before = opened(tmp_path / 'b', tmp_path / 'of-b').streams[0].fingerprint
    shutil.copytree(tmp_path / 'b', tmp_path / 'copy')
    assert opened(tmp_path / 'copy', tmp_path / 'cache').streams[0].fingerprint == before
    write(tmp_path / 'other', 1, then=f"lance.write_dataset(table(40, 50), {str(tmp_path / 'copy')!r}, mode='append')")
    grown = opened(tmp_path / 'copy', tmp_path / 'cache')
    assert len(grown) == 50
    assert grown.streams[0].fingerprint != before


@pytest.mark.slow
@pytest.mark.parametrize(
    ('then', 'version', 'error'),
    [
        ("lance.write_dataset(table(0, 9), path + '/b.lance')", '2.1', 'the folder has 2: , b.lance/'),
        ('', 'legacy', 'files of version 0.*data_storage_version'),
        (
            BLOB,
            '2.1',
            "Column 'blob' of .* is a blob",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, then: str, version: str, error: str) -> None:
    write(tmp_path / 'a', 10, then=then, version=version)
    with pytest.raises(FormatError, match=error):
        opened(tmp_path / 'a', tmp_path / 'cache')


@pytest.mark.slow
def test_a_missing_file_a_null_that_no_page_tells_of_and_killed_processes(tmp_path: Path) -> None:
    write(tmp_path / 'a', 20, 10, version='2.0')
    with pytest.raises(ShardError, match="Row 1 of column 'maybe'.* Name the column"):
        read(tmp_path / 'a', tmp_path / 'b')
    named = {'format': 'lance', 'format_options': {'nulls': ['maybe']}}
    assert read(tmp_path / 'a', tmp_path / 'e', **named) == expected(range(20))
    with pytest.raises(StreamError, match="`nulls` of .* is 'maybe'"):
        opened(tmp_path / 'a', tmp_path / 'f', format='lance', format_options={'nulls': 'maybe'})
    with pytest.raises(StreamError, match="`nulls` of .* is \\[\\['maybe'\\]\\]"):
        opened(tmp_path / 'a', tmp_path / 'g', format='lance', format_options={'nulls': [['maybe']]})
    found = opened(tmp_path / 'a', tmp_path / 'c', columns=['id'])
    for process in lance_data._idle[os.getpid()][1]:
        process.kill()
    assert [sample['id'] for sample in found] == list(range(20))
    next((tmp_path / 'a' / 'data').iterdir()).unlink()
    with pytest.raises(FormatError, match='has the file data/.*, which is missing'):
        opened(tmp_path / 'a', tmp_path / 'd')


def test_threads_take_turns_at_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / 'a', 60, 5)
    started: list[int] = []
    start = lance_data._start
    monkeypatch.setattr(lance_data, '_start', lambda: started.append(1) or start())
    monkeypatch.setattr(lance_data, '_idle', {})
    dataset = opened(tmp_path / 'a', tmp_path / 'b', shuffle=True, columns=['id'])  # a batch needs several parts
    assert sorted(int(n) for batch in StreamingDataLoader(dataset) for n in batch['id']) == [*range(60)]
    assert len(started) == 1


@pytest.mark.parametrize('call', ['mkdtemp', 'write'])
def test_a_full_temporary_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    write(tmp_path / 'a', 12)
    dataset = opened(tmp_path / 'a', tmp_path / 'b')

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(*((tempfile, 'mkdtemp') if call == 'mkdtemp' else (lance_data, '_write')), full)
    with pytest.raises(DiskFullError, match=f'{tempfile.gettempdir()} has no room for pages of Lance.* set TMPDIR'):
        dataset[0]


def test_a_process_that_is_killed_or_cannot_start_is_no_bad_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / 'a', 12)
    monkeypatch.setattr(lance_data, '_idle', {})
    dataset = opened(tmp_path / 'a', tmp_path / 'b', columns=['id'], on_bad_sample='skip')
    ask = lance_data._ask

    def kill_and_ask(process: subprocess.Popen[bytes], line: bytes) -> Any:
        process.kill()
        return ask(process, line)

    def no_process(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, 'Resource temporarily unavailable')

    with monkeypatch.context() as patch:
        patch.setattr(lance_data, '_ask', kill_and_ask)
        with pytest.raises(StorageError, match='was killed'):
            next(iter(StreamingDataLoader(dataset)))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, 'Popen', no_process)
        with pytest.raises(StorageError, match='cannot start'):
            next(iter(StreamingDataLoader(dataset)))
    turn, _ = lance_data._idle[os.getpid()]
    assert not turn.locked()  # or each later read would wait for a minute
    assert [int(sample['id']) for sample in dataset[:]] == [*range(12)]
