"""Ray Data and MDS: sink and source in this process, and real Ray in slow tests."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace import LocalDataset, MDSWriter
from headrace.errors import ConfigError

pytest.importorskip('ray.data')

import pandas as pd
import pyarrow as pa
from ray.data.block import BlockAccessor
from ray.data.datasource import WriteResult

from headrace.convert import erase
from headrace.convert.ray import MDSDatasink, MDSDatasource, infer_dataset_schema, read_mds

COLUMNS = {'id': 'int', 'text': 'str', 'row': 'ndarray:float32:2,2', 'tokens': 'ndarray:int32', 'meta': 'json'}


def sample_of(i: int) -> dict[str, Any]:
    return {
        'id': i, 'text': f'text {i}', 'row': np.full((2, 2), i, np.float32), 'tokens': np.arange(i % 3 + 1, dtype='i4'),
        'meta': {'i': i, 'tags': ['a'] * (i % 2)},
    }  # fmt: skip


def write_mds(folder: Path, rows: int = 60, **options: Any) -> None:
    with MDSWriter(out=str(folder), columns=COLUMNS, size_limit=2000, **options) as writer:
        for i in range(rows):
            writer.write(sample_of(i))


def block_of(first: int, count: int) -> Any:
    rows = [sample_of(i) for i in range(first, first + count)]
    return BlockAccessor.batch_to_block({
        'id': np.array([row['id'] for row in rows]),
        'text': np.array([row['text'] for row in rows]),
        'row': np.stack([row['row'] for row in rows]),
        'tokens': np.array([*(row['tokens'] for row in rows), None], dtype=object)[:-1],
        'meta': np.array([row['meta'] for row in rows], dtype=object),
    })  # fmt: skip


def write_with(sink: MDSDatasink, tasks: list[list[Any]]) -> None:
    """The part of Ray: tasks get copies of the sink, and the driver gets their results."""
    import ray.cloudpickle as pickle

    sink.on_write_start()
    copy = pickle.dumps(sink)
    try:
        done = [
            pickle.loads(copy).write(iter(blocks), SimpleNamespace(task_idx=number))
            for number, blocks in enumerate(tasks)
        ]
        sink.on_write_complete(WriteResult(0, 0, done[::-1]))
    except Exception as error:
        sink.on_write_failed(error)
        raise


def check(samples: list[Any], rows: int) -> None:
    assert len(samples) == rows
    for i, sample in enumerate(samples):
        expected = sample_of(i)
        assert {name: np.asarray(sample[name]).tolist() for name in COLUMNS} == {
            name: np.asarray(expected[name]).tolist() for name in COLUMNS
        }


def test_blocks_become_a_dataset(tmp_path: Path) -> None:
    sink = MDSDatasink(str(tmp_path / 'd'), columns=COLUMNS, size_limit=2000, compression='zstd')
    empty = pa.table({})
    write_with(sink, [[block_of(0, 10), empty, block_of(10, 5)], [empty], [block_of(15, 30)]])
    assert (sink.samples, sink.skipped) == (45, 0)
    check(list(LocalDataset(str(tmp_path / 'd'))), 45)


def test_pandas_blocks(tmp_path: Path) -> None:
    sink = MDSDatasink(str(tmp_path / 'd'), columns={'id': 'int', 'text': 'str'})
    write_with(sink, [[pd.DataFrame({'id': [1, 2], 'text': ['a', 'b'], 'other': [0, 0]})]])
    assert [dict(sample) for sample in LocalDataset(str(tmp_path / 'd'))] == [
        {'id': 1, 'text': 'a'}, {'id': 2, 'text': 'b'},
    ]  # fmt: skip


def test_tensors_become_arrays_of_another_type_if_no_number_changes(tmp_path: Path) -> None:
    sink = MDSDatasink(str(tmp_path / 'd'), columns={'row': 'ndarray:uint16'})
    block = BlockAccessor.batch_to_block({'row': np.arange(6).reshape(3, 2)})
    write_with(sink, [[block]])
    assert [sample['row'].tolist() for sample in LocalDataset(str(tmp_path / 'd'))] == [[0, 1], [2, 3], [4, 5]]
    assert LocalDataset(str(tmp_path / 'd'))[0]['row'].dtype == np.uint16


@pytest.mark.parametrize(
    ('columns', 'message'),
    [({'id': 'str'}, "Mismatched types: column 'id'"), ({'key': 'int'}, "'key' is none of")],
)
def test_columns_that_do_not_fit_leave_nothing(tmp_path: Path, columns: dict[str, str], message: str) -> None:
    sink = MDSDatasink(str(tmp_path / 'd'), columns=columns)
    with pytest.raises(ConfigError, match=message):
        write_with(sink, [[block_of(0, 10)]])
    assert os.listdir(tmp_path / 'd') == []


def test_bad_samples(tmp_path: Path) -> None:
    block = pa.table({'text': ['a', None, 'c']})
    with pytest.raises(AttributeError, match="Sample 1, column 'text'"):
        write_with(MDSDatasink(str(tmp_path / 'd'), columns={'text': 'str'}), [[block]])
    sink = MDSDatasink(str(tmp_path / 'd'), columns={'text': 'str'}, on_bad_sample='skip')
    with pytest.warns(UserWarning, match="Sample 1, column 'text'"):
        write_with(sink, [[block]])
    assert (sink.samples, sink.skipped) == (2, 1)


def test_a_dataset_without_rows(tmp_path: Path) -> None:
    sink = MDSDatasink(str(tmp_path / 'd'), columns=COLUMNS)
    with pytest.raises(ConfigError, match='the input is empty'):
        sink.on_write_complete(WriteResult(0, 0, []))
    sink.on_write_failed(ValueError())
    assert os.listdir(tmp_path / 'd') == []


@pytest.mark.parametrize('arguments', [{'on_bad_sample': 'ignore'}, {'min_workers': 2}, {'columns': {'x': 'integer'}}])
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MDSDatasink(str(tmp_path / 'd'), **{'columns': COLUMNS, **arguments})


def rows_of(source: MDSDatasource, parallelism: int) -> list[Any]:
    blocks = [block for task in source.get_read_tasks(parallelism) for block in task()]
    return [row for block in blocks for row in BlockAccessor.for_block(block).iter_rows(public_row_format=True)]


@pytest.mark.parametrize('compression', [None, 'zstd'])
@pytest.mark.parametrize('parallelism', [1, 3, 1000])
def test_shards_are_read(tmp_path: Path, compression: str | None, parallelism: int) -> None:
    write_mds(tmp_path / 'd', compression=compression, hashes=['sha1'])
    source = MDSDatasource(str(tmp_path / 'd'), validate_hash='sha1')
    tasks = source.get_read_tasks(parallelism)
    assert len(tasks) == min(parallelism, len(list((tmp_path / 'd').glob('shard.*'))))
    assert sum(task.metadata.num_rows or 0 for task in tasks) == 60
    assert sum(task.metadata.size_bytes or 0 for task in tasks) == source.estimate_inmemory_data_size()
    check(rows_of(source, parallelism), 60)


def test_columns_are_selected(tmp_path: Path) -> None:
    write_mds(tmp_path / 'd')
    rows = rows_of(MDSDatasource(str(tmp_path / 'd'), columns=['text']), 2)
    assert rows == [{'text': f'text {i}'} for i in range(60)]
    with pytest.raises(ConfigError, match="'no' is none of"):
        MDSDatasource(str(tmp_path / 'd'), columns=['no'])


def test_erased_rows_are_left_out(tmp_path: Path) -> None:
    write_mds(tmp_path / 'd')
    erase(tmp_path / 'd', [*range(5), 7])
    tasks = MDSDatasource(str(tmp_path / 'd')).get_read_tasks(1000)
    rows = rows_of(MDSDatasource(str(tmp_path / 'd')), 1000)
    assert [row['id'] for row in rows] == [5, 6, *range(8, 60)]
    assert sum(task.metadata.num_rows or 0 for task in tasks) == 54


def test_damaged_shards_are_errors(tmp_path: Path) -> None:
    write_mds(tmp_path / 'd')
    (tmp_path / 'd' / 'shard.00000.mds').write_bytes(b'x')
    with pytest.raises(ValueError, match='has 1'):
        rows_of(MDSDatasource(str(tmp_path / 'd')), 1)


def test_unsafe_columns_need_permission(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / 'd'), columns={'x': 'pkl'}) as writer:
        writer.write({'x': {1, 2}})
    with pytest.raises(ValueError, match='unsafe'):
        MDSDatasource(str(tmp_path / 'd'))
    assert rows_of(MDSDatasource(str(tmp_path / 'd'), allow_unsafe_types=True), 1) == [{'x': {1, 2}}]


def test_what_is_read_can_be_written(tmp_path: Path) -> None:
    write_mds(tmp_path / 'd')
    blocks = [block for task in MDSDatasource(str(tmp_path / 'd')).get_read_tasks(2) for block in task()]
    write_with(MDSDatasink(str(tmp_path / 'e'), columns=COLUMNS), [blocks])
    check(list(LocalDataset(str(tmp_path / 'e'))), 60)


def test_inferred_encodings() -> None:
    def dataset(block: Any) -> Any:
        return SimpleNamespace(schema=lambda: SimpleNamespace(names=block.schema.names, types=block.schema.types))

    block = block_of(0, 10)
    assert infer_dataset_schema(dataset(block)) == {**COLUMNS, 'id': 'int64'}
    with pytest.raises(ConfigError, match='no Arrow type'):
        infer_dataset_schema(SimpleNamespace(schema=lambda: SimpleNamespace(names=['x'], types=[object])))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='not empty'):
        infer_dataset_schema(SimpleNamespace(schema=lambda: None))  # type: ignore[arg-type]


# Real Ray. It takes many seconds to start.


@pytest.fixture(scope='module')
def ray() -> Iterator[Any]:
    import ray

    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 << 20,
        runtime_env={'env_vars': {'PYTHONPATH': paths}},
        log_to_driver=False,
    )
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


def frame(batch: dict[str, Any]) -> dict[str, Any]:
    return {'id': batch['id'], 'text': np.array([f'text {i}' for i in batch['id']])}


def check_complete(root: Path, rows: int = 100_000) -> None:
    """Every row once, and no file of a part that does not count."""
    ids = [int(sample['id']) for sample in LocalDataset(str(root))]
    assert sorted(ids) == list(range(rows))
    listed = {path.parts[0] for path in map(Path, _basenames(root)) if len(path.parts) > 1}
    assert {path.name for path in root.iterdir()} == listed | {'index.json'}
    assert not list(root.rglob('.headrace-*'))


def _basenames(root: Path) -> list[str]:
    import json

    return [shard['raw_data']['basename'] for shard in json.loads((root / 'index.json').read_text())['shards']]


@pytest.mark.slow
def test_a_hundred_thousand_rows_there_and_back(ray: Any, tmp_path: Path) -> None:
    dataset = ray.data.range(100_000, override_num_blocks=8).map_batches(frame)
    columns = infer_dataset_schema(dataset)
    assert columns == {'id': 'int64', 'text': 'str'}
    dataset.write_datasink(MDSDatasink(str(tmp_path / 'd'), columns=columns, size_limit='256kb'))
    check_complete(tmp_path / 'd')

    back = read_mds(str(tmp_path / 'd'), override_num_blocks=4)
    assert back.count() == 100_000
    assert back.limit(3).take_all() == [{'id': i, 'text': f'text {i}'} for i in range(3)]
    assert back.sum('id') == sum(range(100_000))


@pytest.mark.slow
def test_a_killed_worker_leaves_neither_duplicates_nor_holes(ray: Any, tmp_path: Path) -> None:
    flag = str(tmp_path / 'killed')

    class Killing(MDSDatasink):
        """Kills its process once, in the middle of a part."""

        def write(self, blocks: Any, ctx: Any) -> Any:
            def some() -> Iterator[Any]:
                for block in blocks:
                    half = block.num_rows // 2
                    yield block.slice(0, half)
                    if 60_000 in block['id'].to_pylist() and not os.path.exists(flag):
                        Path(flag).touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield block.slice(half)

            return super().write(some(), ctx)

    dataset = ray.data.range(100_000, override_num_blocks=8)
    dataset.write_datasink(Killing(str(tmp_path / 'd'), columns={'id': 'int'}, size_limit='16kb'))
    assert os.path.exists(flag)
    check_complete(tmp_path / 'd')


@pytest.mark.slow
def test_a_task_that_runs_twice_counts_once(ray: Any, tmp_path: Path) -> None:
    class Twice(MDSDatasink):
        """The first attempt at each task is written to its end, and its result is lost."""

        def write(self, blocks: Any, ctx: Any) -> Any:
            blocks = list(blocks)
            super().write(iter(blocks), ctx)
            return super().write(iter(blocks), ctx)

    dataset = ray.data.range(100_000, override_num_blocks=8)
    dataset.write_datasink(Twice(str(tmp_path / 'd'), columns={'id': 'int'}, size_limit='64kb'))
    check_complete(tmp_path / 'd')


@pytest.mark.slow
def test_a_task_that_fails_leaves_nothing(ray: Any, tmp_path: Path) -> None:
    dataset = ray.data.from_items([{'id': i, 'text': None if i == 900 else 'x'} for i in range(1000)])
    with pytest.raises(Exception, match="column 'text'"):
        dataset.write_datasink(MDSDatasink(str(tmp_path / 'd'), columns={'id': 'int', 'text': 'str'}))
    with contextlib.suppress(FileNotFoundError):
        assert os.listdir(tmp_path / 'd') == []
