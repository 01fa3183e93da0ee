"""Lance datasets as a source, written by Lance itself in a process of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.convert import convert
from headrace.errors import ConfigError, FormatError, ShardError, StreamError
from headrace.sources import lance_client, lance_data
from headrace.sources.lance_client import LanceFile
from headrace.storage import open_store
from headrace.testing import sources as contract
from headrace.testing.oracle import World, check_resume
from headrace.testing.sources import SourceCase, SourceContract
from tests.support.sources.lance_datasets import expected, opened, write_lance


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, 'tolist') else value for name, value in sample.items()}


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
        return write_lance(tmp_path_factory.mktemp('written') / 'a.lance', 12, 7, "dataset.delete('id = 5')")

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
    write_lance(tmp_path / 'a', 4000, 3000, "dataset.delete('id % 100 = 7 or (id > 500 and id < 900)')", version)
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
    write = lance_client._write

    def write_noise(folder: Path, file: LanceFile) -> None:
        noise = np.random.default_rng(file.size).bytes(file.size)
        write(folder, file._replace(pieces=[(0, noise), *file.pieces]))

    for writer in (write, write_noise):
        monkeypatch.setattr(lance_client, '_write', writer)
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
    write_lance(tmp_path / 'a', 30, 20, then)
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
        write_lance(tmp_path / name, 40, 15, version=('2.0', '2.1')[number])
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
    write_lance(
        tmp_path / 'other', 1, then=f"lance.write_dataset(table(40, 50), {str(tmp_path / 'copy')!r}, mode='append')"
    )
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
        (
            (
                'data = lance.dataset(path); old = data.schema.names; '
                "data.add_columns(pa.field('added', pa.string())); data.drop_columns(old)"
            ),
            '2.1',
            'Fragment 0 of .* has 10 rows, but no file: its columns have no values',
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, then: str, version: str, error: str) -> None:
    write_lance(tmp_path / 'a', 10, then=then, version=version)
    with pytest.raises(FormatError, match=error):
        opened(tmp_path / 'a', tmp_path / 'cache')


@pytest.mark.slow
def test_a_missing_file_a_null_that_no_page_tells_of_and_killed_processes(tmp_path: Path) -> None:
    write_lance(tmp_path / 'a', 20, 10, version='2.0')
    with pytest.raises(ShardError, match="Row 1 of column 'maybe'.* Name the column"):
        read(tmp_path / 'a', tmp_path / 'b')
    named = {'format': 'lance', 'format_options': {'nulls': ['maybe']}}
    assert read(tmp_path / 'a', tmp_path / 'e', **named) == expected(range(20))
    with pytest.raises(StreamError, match="`nulls` of .* is 'maybe'"):
        opened(tmp_path / 'a', tmp_path / 'f', format='lance', format_options={'nulls': 'maybe'})
    with pytest.raises(StreamError, match="`nulls` of .* is \\[\\['maybe'\\]\\]"):
        opened(tmp_path / 'a', tmp_path / 'g', format='lance', format_options={'nulls': [['maybe']]})
    found = opened(tmp_path / 'a', tmp_path / 'c', columns=['id'])
    for process in lance_client._idle[os.getpid()][1]:
        process.kill()
    assert [sample['id'] for sample in found] == list(range(20))
    next((tmp_path / 'a' / 'data').iterdir()).unlink()
    with pytest.raises(FormatError, match='has the file data/.*, which is missing'):
        opened(tmp_path / 'a', tmp_path / 'd')
