"""A mixture of each format with two others, from a bucket: its process is killed, and other ranks read on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from tests.support.programs.together import FORK, run_together
from tests.support.servers.s3 import S3Server
from tests.support.sources import token_files
from tests.support.sources.tfrecord_files import example, tfrecord

pytestmark = pytest.mark.s3
GLOBAL_BATCH = 12
ROWS = 60
TOKENS = np.arange(ROWS, dtype=np.int32)[:, None] + np.array([0, 5, 6, 7], np.int32)
"""The first token of a document is its id."""


def write_hive(folder: Path) -> None:
    pa, pq = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
    for year in range(2):
        (folder / f'year={year}').mkdir(parents=True)
        ids = pa.table({'id': range(30 * year, 30 * year + 30)})
        pq.write_table(ids, folder / f'year={year}/a.parquet', row_group_size=10)


def write_lance(folder: Path) -> None:
    if importlib.util.find_spec('lance') is None:  # this process must not import it: it forks
        pytest.skip('needs pylance')
    code = f"""import lance, pyarrow as pa
lance.write_dataset(pa.table({{'id': range({ROWS})}}), {str(folder)!r}, max_rows_per_file=25)"""
    subprocess.run([sys.executable, '-c', code], check=True, capture_output=True)


def write_delta(folder: Path) -> None:
    pa, deltalake = pytest.importorskip('pyarrow'), pytest.importorskip('deltalake')
    for first in (0, 30):
        deltalake.write_deltalake(folder, pa.table({'id': range(first, first + 30)}), mode='append')


def write_iceberg(folder: Path) -> None:
    pa, sql = pytest.importorskip('pyarrow'), pytest.importorskip('pyiceberg.catalog.sql')
    pytest.importorskip('sqlalchemy')
    catalog = sql.SqlCatalog('c', uri='sqlite:///:memory:')
    catalog.create_namespace('ns')
    data = pa.table({'id': range(ROWS)})
    table = catalog.create_table('ns.t', schema=data.schema, location=f'file://{folder}')
    for first in (0, 30):
        table.append(data.slice(first, 30))


def write_tfrecord(folder: Path) -> None:
    folder.mkdir()
    for shard in range(2):
        records = [example({'id': n}) for n in range(30 * shard, 30 * shard + 30)]
        (folder / f'{shard}.tfrecord').write_bytes(tfrecord(records))


def write_megatron(folder: Path) -> None:
    folder.mkdir()
    data, idx = token_files.megatron([[document] for document in TOKENS.tolist()], 'int32')
    (folder / 'a_text_document.bin').write_bytes(data)
    (folder / 'a_text_document.idx').write_bytes(idx)


def write_tokens(folder: Path) -> None:
    folder.mkdir()
    np.save(folder / 'a.npy', TOKENS)


WRITERS = {
    'hive': write_hive,
    'lance': write_lance,
    'delta': write_delta,
    'iceberg': write_iceberg,
    'tfrecord': write_tfrecord,
    'megatron': write_megatron,
    'tokens': write_tokens,
}
OFTEN = ('hive', 'lance')


def write_others(root: Path, column: str) -> None:
    """Rows as MDS, and as JSONL for numbers. Arrays are Parquet, because JSONL has no dtypes."""
    with MDSWriter(out=str(root / 'mds'), columns={'id': 'int64', 'tokens': 'ndarray:int32:4'}, size_limit=600) as mds:
        for n in range(ROWS):
            mds.write({'id': 1000 + n, 'tokens': 1000 + TOKENS[n]})
    (root / 'other').mkdir()
    if column == 'id':
        (root / 'other/a.jsonl').write_text(''.join(json.dumps({'id': 2000 + n}) + '\n' for n in range(ROWS)))
        return
    pa, pq = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
    arrays = pa.FixedSizeListArray.from_arrays(pa.array((2000 + TOKENS).ravel()), 4)
    pq.write_table(pa.table({'tokens': arrays}), root / 'other/a.parquet', row_group_size=20)


class Rank(NamedTuple):
    """What a rank reads, and the file where it saves what it read."""

    remotes: dict[str, str]
    column: str
    cache: Path
    saved: Path
    rank: int = 0
    ranks: int = 1
    workers: int = 0
    state: dict[str, Any] | None = None


def read(rank: Rank, stop: int = 0, stopped: Event | None = None) -> list[list[int]]:
    """The ids of each batch. They are saved with the state after each, whole or not at all.

    After the batch `stop` the event `stopped` is set, and the process waits to be killed while its workers fetch.
    """
    streams = [
        Stream(remote=remote, local=str(rank.cache / name), name=name, columns=[rank.column], proportion=1)
        for name, remote in rank.remotes.items()
    ]
    dataset = StreamingDataset(streams=streams, batch_size=GLOBAL_BATCH // rank.ranks, shuffle=True)
    topology = Topology(rank=rank.rank, world_size=rank.ranks)
    loader = StreamingDataLoader(dataset, num_workers=rank.workers, topology=topology)
    if rank.state is not None:
        loader.load_state_dict(rank.state)
    batches: list[list[int]] = []
    for batch in loader:
        values = batch[rank.column]
        batches.append((values if values.ndim == 1 else values[:, 0]).tolist())
        temporary = rank.saved.with_suffix('.tmp')
        temporary.write_text(json.dumps([batches, loader.state_dict()]))
        temporary.replace(rank.saved)
        if stopped and len(batches) == stop:
            stopped.set()
            signal.pause()
    return batches


def read_until_killed(rank: Rank, stop: int) -> None:
    """Read in a process, killed with its workers after a batch."""
    stopped = FORK.Event()

    def lead_a_group() -> None:
        os.setpgid(0, 0)
        read(rank, stop, stopped)

    child = FORK.Process(target=lead_a_group)
    child.start()
    try:
        assert stopped.wait(100), 'the rank did not come to the batch'
        os.killpg(child.pid or 0, signal.SIGKILL)
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize(
    'kind', [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.slow) for kind in WRITERS]
)
def test_a_killed_mixture_is_read_on_by_other_ranks(tmp_path: Path, s3_server: S3Server, kind: str) -> None:
    column = 'tokens' if kind in ('megatron', 'tokens') else 'id'
    root = tmp_path / 'the data'
    root.mkdir()
    WRITERS[kind](root / kind)
    write_others(root, column)
    bucket, client = s3_server.new_bucket(), s3_server.client()
    for path in filter(Path.is_file, root.rglob('*')):
        client.put_object(Bucket=bucket, Key=str(path.relative_to(root)), Body=path.read_bytes())
    remotes = {path.name: f's3://{bucket}/{path.name}' for path in sorted(root.iterdir())}

    killed = Rank(remotes, column, tmp_path / 'cache', tmp_path / 'killed', workers=2)
    read_until_killed(killed, 5)
    before, state = json.loads(killed.saved.read_text())
    ranks = [Rank(remotes, column, killed.cache, tmp_path / f'{rank}', rank, ranks=2, state=state) for rank in range(2)]
    run_together(lambda number: read(ranks[number]), 2)
    # The ranks take turns in a global batch.
    parts = zip(*[json.loads(rank.saved.read_text())[0] for rank in ranks], strict=True)
    after = [[number for turn in zip(*batch, strict=True) for number in turn] for batch in parts]

    undisturbed = read(Rank(remotes, column, tmp_path / 'other cache', tmp_path / 'all'))
    assert sorted(sum(undisturbed, [])) == [first + n for first in (0, 1000, 2000) for n in range(ROWS)]
    assert len(before) == 5
    assert before + after == undisturbed
