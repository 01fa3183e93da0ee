"""Tables read by headrace, and by the libraries that write them: Delta, Lance, and Parquet for comparison.

    python -m benchmarks.tables [ROUNDS] [--json OUT]

60,000 texts of 60 words in 12 files; 1% of the rows of Delta are deleted. Batches are of 64, without workers. The
remote is in the page cache, and headrace's cache is empty at first. Each run is a process of its own, in interleaved
rounds. Figures are seconds of processor time of all threads, but those with "wall": Delta and Lance begin in other
processes.

- "file order" is the third epoch without a shuffle. The libraries read so: deltalake by `to_pyarrow_dataset`, Lance by
  `lance.torch.data.LanceDataset`, also in torch's `DataLoader`. Their batches become tensors and lists of texts, too.
- "shuffled" is the third epoch of headrace with a shuffle of all rows, whose batches take rows of all files.
- "rows" and "lists" are rows in a second of processor time at random places, one by one and in lists of 64, made into
  Python values: `dataset[i]` after these epochs, and `take` of `to_pyarrow_dataset()` and of `lance.dataset()`.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.rounds import in_rounds

ROWS, FILES, BATCH = 60_000, 12, 64
LIBRARIES = ('deltalake', 'pylance', 'pylance in a DataLoader')
READERS = ('parquet', 'delta', 'lance', *LIBRARIES)


def write(root: Path) -> None:
    import deltalake
    import lance
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = random.Random(7)
    words = ['word', 'token', 'sample', 'shard', 'epoch', 'batch', 'stream', 'cache', 'index', 'order']
    table = pa.table({'id': range(ROWS), 'text': [' '.join(rng.choices(words, k=60)) for _ in range(ROWS)]})
    (root / 'parquet').mkdir()
    each = ROWS // FILES
    for number in range(FILES):
        part = table.slice(number * each, each)
        pq.write_table(part, root / 'parquet' / f'{number:02}.parquet')
        deltalake.write_deltalake(root / 'delta', part, mode='append')
        lance.write_dataset(part, root / 'lance', mode='append' if number else 'create')
        # A deletion of all files at once would join them.
        deltalake.DeltaTable(root / 'delta').delete(f'id >= {number * each} and id % 100 = 7')


def tensors(batch: Any) -> dict[str, Any]:
    import torch

    return {'id': torch.from_numpy(batch.column('id').to_numpy().copy()), 'text': batch.column('text').to_pylist()}


def of_library(name: str, root: Path) -> Callable[[], Iterator[Any]]:
    if name == 'deltalake':
        from deltalake import DeltaTable

        data = DeltaTable(root / 'delta').to_pyarrow_dataset()
        return lambda: map(tensors, data.to_batches(batch_size=BATCH))
    from lance.torch.data import LanceDataset

    def to_tensors(batch: Any, **_: Any) -> Any:
        return tensors(batch)

    dataset = LanceDataset(root / 'lance', batch_size=BATCH, to_tensor_fn=to_tensors)
    if name == 'pylance':
        return lambda: iter(dataset)
    from torch.utils.data import DataLoader

    return lambda: iter(DataLoader(dataset, batch_size=None))


def taken_of(name: str, root: Path) -> Any:
    if name == 'deltalake':
        from deltalake import DeltaTable

        return DeltaTable(root / 'delta').to_pyarrow_dataset()
    import lance

    return lance.dataset(root / 'lance')


def cpu() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def run(name: str, root: Path) -> dict[str, float]:
    """One process: its figures."""
    import torch  # noqa: F401 - its import does not count

    from headrace import StreamingDataLoader, StreamingDataset

    found: dict[str, float] = {}

    def epochs(open_one: Callable[[], Iterable[Any]], what: str) -> None:
        for number in (1, 2, 3):
            begin, wall = cpu(), time.perf_counter()
            count = sum(len(batch['id']) for batch in open_one())
            assert count >= ROWS * 0.98, count
            found['epoch 1 wall' if number == 1 else what] = (
                time.perf_counter() - wall if number == 1 else cpu() - begin
            )

    def rows(take: Callable[[list[int]], Any], lists: int) -> None:
        rng = random.Random(5)
        for what, size, count in (('rows', 1, 8 * lists), ('lists', BATCH, lists)):
            places = [rng.sample(range(ROWS * 98 // 100), size) for _ in range(count)]
            take(places[0])
            begin = cpu()
            for some in places:
                take(some)
            found[what] = count * size / (cpu() - begin)

    if name in LIBRARIES:
        epochs(of_library(name, root), 'file order')
        data = taken_of(name, root)
        rows(lambda some: data.take(some).to_pylist(), 10)
        return found
    with tempfile.TemporaryDirectory() as cache:
        for what, shuffle in (('shuffled', True), ('file order', False)):
            wall = time.perf_counter()
            data = StreamingDataset(remote=str(root / name), local=f'{cache}/{what}', batch_size=BATCH, shuffle=shuffle)
            found['open wall'] = time.perf_counter() - wall
            epochs(lambda data=data: StreamingDataLoader(data), what)
        rows(lambda some, data=data: data[some[0]] if len(some) == 1 else data[some], 500)
    return found


if __name__ == '__main__':
    columns = dict.fromkeys(('open wall', 'epoch 1 wall', 'file order', 'shuffled'), '{:.3f} s')
    rates = dict.fromkeys(('rows', 'lists'), '{:,.0f}/s')
    in_rounds('benchmarks.tables', READERS, write, run, {**columns, **rates}, rounds=3)
