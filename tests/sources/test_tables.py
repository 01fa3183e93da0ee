"""What tables of Delta and Iceberg both promise, written by `deltalake` and `pyiceberg`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.convert import convert
from headrace.errors import FormatError, ResumeError, StreamError
from headrace.testing.oracle import World, check_resume
from tests.support.sources.tables import (
    DeltaTable,
    IcebergTable,
    as_parquet,
    by_id,
    dataset,
    numbers,
    read_logs_here,
    rows_of,
)

pq = pytest.importorskip('pyarrow.parquet')

Table: TypeAlias = 'DeltaTable | IcebergTable'


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    read_logs_here(monkeypatch)


@pytest.fixture(scope='module', params=[DeltaTable, IcebergTable], ids=['delta', 'iceberg'])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    return request.param.evolved(tmp_path_factory.mktemp('a lake'))


def right(table: Table, folder: Path, version: int | None = None) -> list[dict[str, Any]]:
    return as_parquet(table.arrow(table.versions[-1] if version is None else version), folder)


def pinned(table: Table, version: int) -> dict[str, Any]:
    return {'format': table.name, 'format_options': {table.option: version}}


def test_every_value_of_every_version(table: Table, tmp_path: Path) -> None:
    newest = rows_of(table.place, tmp_path / 'cache', format=table.name)
    assert newest == right(table, tmp_path / 'right')
    assert rows_of(table.place, tmp_path / 'cache') == newest
    assert len(table.versions) > 4
    for version in table.versions:
        found = rows_of(table.place, tmp_path / 'cache', **pinned(table, version))
        assert found == right(table, tmp_path / 'right', version), version
    with pytest.raises(FormatError, match=rf'has the {table.option}s \d.*, but `{table.option}` is 99'):
        rows_of(table.place, tmp_path / 'cache', **pinned(table, 99))
    with pytest.raises(FormatError, match=f"This is a table .* Read it with `format='{table.name}'`"):
        rows_of(table.place, tmp_path / 'other', format='parquet')


def test_partitions_are_chosen_and_the_table_is_converted(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO', logger='headrace')
    whole = right(table, tmp_path / 'right')
    found = rows_of(table.place, tmp_path / 'cache', columns=['id'], where={'lang': {'equals': 'en', 'not': None}})
    assert found == [{'id': row['id']} for row in whole if row['lang'] == 'en']
    assert f'as {table.name}, {table.option} {table.versions[-1]}.' in caplog.text
    assert 'of other versions of the table, such as ' in caplog.text
    convert(str(table.place), tmp_path / 'out', format=table.name, progress_bar=False)
    assert by_id([*StreamingDataset(local=str(tmp_path / 'out'), batch_size=1)]) == whole


def test_a_mixture_from_a_bucket_resumes_on_other_ranks(table: Table, tmp_path: Path, s3_server: Any) -> None:
    bucket, client = s3_server.new_bucket(), s3_server.client()
    for path in filter(Path.is_file, table.place.rglob('*')):
        client.upload_file(str(path), bucket, f'lake/{path.relative_to(table.place)}')
    (tmp_path / 'lines').mkdir()
    (tmp_path / 'lines/a.jsonl').write_text(''.join(json.dumps({'id': 1000 + n}) + '\n' for n in range(40)))
    pq.write_table(numbers(2000, 50), tmp_path / 'a.parquet')

    def make(topology: Topology, workers: int) -> StreamingDataLoader:
        remotes = {'table': f's3://{bucket}/lake', 'jsonl': tmp_path / 'lines', 'parquet': tmp_path / 'a.parquet'}
        streams = [
            Stream(remote=str(remote), local=str(tmp_path / 'caches' / name), name=name, columns=['id'], proportion=1)
            for name, remote in remotes.items()
        ]
        found = StreamingDataset(
            streams=streams, batch_size=24 // topology.replicas, shuffle=True, num_canonical_nodes=2, epoch_size=240
        )
        return StreamingDataLoader(found, num_workers=workers, topology=topology)

    ids = {number for batch in make(Topology(), 0) for number in batch['id'].tolist()}
    own = {row['id'] for row in right(table, tmp_path / 'right')}
    assert len(ids & own) == min(len(own), 80)
    assert check_resume(make, [World(), World(ranks=2), World(ranks=4, nodes=2)], every=6) > 2


@pytest.mark.parametrize('new', [DeltaTable, IcebergTable.of], ids=['delta', 'iceberg'])
def test_a_resume_names_the_version_to_choose(tmp_path: Path, new: Any) -> None:
    table: Table = new(tmp_path / 'lake', numbers(0, 40))
    (first,) = table.versions

    def loader(**options: Any) -> StreamingDataLoader:
        found = dataset(table.place, tmp_path / 'cache', **{'format': table.name, **options})
        return StreamingDataLoader(found, topology=Topology())

    dataset(table.place, tmp_path / 'cache', **pinned(table, first))
    begun = loader()
    batches = iter(begun)
    seen = [number for _ in range(3) for number in next(batches)['id'].tolist()]
    state = begun.state_dict()
    table.append(numbers(40, 10))
    with pytest.raises(ResumeError, match=rf'\({table.option} {first}\).*\({table.option} {table.versions[-1]}\)'):
        changed = loader()
        changed.load_state_dict(state)
        next(iter(changed))
    again = loader(on_changed_data='refuse', **pinned(table, first))  # the new version is none of its data
    again.load_state_dict(state)
    assert sorted(seen + [number for batch in again for number in batch['id'].tolist()]) == list(range(40))
    table.append(numbers(0, 1))
    with pytest.raises(StreamError, match='have changed'):
        loader(on_changed_data='refuse')
