"""Bytes that 1, 2, 4 and 8 nodes download, each with an own cache folder, over the bytes of the dataset.

The nodes take turns, since none needs another one to read its part. headrace reads through a store that counts the
bytes it hands out. mosaicml-streaming has a process group whose other ranks do not exist. Its bytes are those of its
cache folders, which nothing is evicted from.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.figures.results import BLUE, GRAY, ORANGE, RED, Made, Result
from benchmarks.machine import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODES = (1, 2, 4, 8)
SAMPLES = 64
"""Of a shard."""
ROW = 256
BATCH = 64
MANY, FEW = 'headrace, 512 shards', 'headrace, 64 shards'
CASES = {MANY: (512, None), FEW: (64, None), f'{FEW}, num_canonical_nodes=8': (64, 8)}
"""Shards, and canonical nodes, where None is the default."""
PEER = 'mosaicml-streaming, 512 shards'


class CountingFile:
    """The file that a store writes an object to, with a count of the bytes."""

    def __init__(self, file: Any) -> None:
        self.file, self.bytes = file, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: Any) -> int:
        self.bytes += len(data)
        return self.file.write(data)


class CountingStore:
    """The verbs of the store below it, and the bytes that it has handed out."""

    def __init__(self, store: Any) -> None:
        self.store, self.bytes = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get(self, key: str, out: Any, **more: Any) -> str:
        counting = CountingFile(out)
        try:
            return self.store.get(key, counting, **more)
        finally:
            self.bytes += counting.bytes


def write_rows(folder: Path, shards: int) -> dict[str, int]:
    """Write random rows; returns the bytes of the dataset and of its index."""
    from headrace import MDSWriter

    rows = np.random.default_rng(0).integers(0, 256, (shards * SAMPLES, ROW), np.uint8)
    limit = 300 + SAMPLES * (ROW + 8 + 4)
    with MDSWriter(out=str(folder), columns={'id': 'int', 'row': f'ndarray:uint8:{ROW}'}, size_limit=limit) as writer:
        for number, row in enumerate(rows):
            writer.write({'id': number, 'row': row})
    return {'bytes of the dataset': bytes_of(folder), 'bytes of the index': (folder / 'index.json').stat().st_size}


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())


def downloaded(remote: Path, caches: Path, nodes: int, canonical: int | None, epochs: int) -> list[int]:
    """Bytes that all nodes together have downloaded after each epoch."""
    from headrace import StreamingDataLoader, StreamingDataset
    from headrace.order import Topology
    from headrace.storage import open_store, register_store

    totals = [0] * epochs
    for node in range(nodes):
        counting: list[CountingStore] = []

        def opened(url: str, options: Any, counting: list[CountingStore] = counting) -> Any:
            counting.append(CountingStore(open_store(url.removeprefix('counted:/'), options)))
            return counting[-1]

        register_store('counted', opened)
        dataset = StreamingDataset(
            remote=f'counted:/{remote}', local=str(caches / str(node)), batch_size=BATCH // nodes, shuffle=True,
            num_canonical_nodes=canonical, topology=Topology(rank=node, world_size=nodes, num_nodes=nodes),
        )  # fmt: skip
        loader = StreamingDataLoader(dataset, batch_size=BATCH // nodes)
        for epoch in range(epochs):
            for _ in loader:
                pass
            totals[epoch] += sum(store.bytes for store in counting)
    return totals


def read_with_mosaicml(remote: Path, local: Path, node: int, nodes: int, epochs: int) -> None:
    """Read all epochs on one of so many nodes, and write down the bytes of its cache folder after each."""
    from streaming import StreamingDataLoader, StreamingDataset

    from tests.support.trainers.fake_world import fake_world

    numbers = {'RANK': node, 'WORLD_SIZE': nodes, 'LOCAL_RANK': 0, 'LOCAL_WORLD_SIZE': 1}
    os.environ.update({name: str(value) for name, value in numbers.items()})
    with fake_world(node, nodes):
        dataset = StreamingDataset(remote=str(remote), local=str(local), batch_size=BATCH // nodes, shuffle=True)
        loader = StreamingDataLoader(dataset, batch_size=BATCH // nodes)
        for epoch in range(epochs):
            for _ in loader:
                pass
            Path(f'{local}.{epoch}').write_text(str(bytes_of(local)))


def downloaded_by_mosaicml(remote: Path, caches: Path, nodes: int, epochs: int) -> list[int]:
    import streaming  # noqa: F401  once, for all that are forked

    from tests.support.trainers.chains import fork_ranks

    caches.mkdir()
    for node in range(nodes):
        fork_ranks(
            functools.partial(read_with_mosaicml, remote, caches / str(node), node, nodes, epochs),
            ranks=1,
            nodes=1,
            log=lambda _, node=node: caches / f'{node}.log',
            launcher=None,
            seconds=300,
        )
    return [sum(int((caches / f'{node}.{epoch}').read_text()) for node in range(nodes)) for epoch in range(epochs)]


def measure(small: bool) -> Result:
    nodes, epochs = (NODES[:2], 1) if small else (NODES, 2)
    described, found = machine('torch'), {}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {shards: write_rows(Path(folder, str(shards)), shards) for shards in {of for of, _ in CASES.values()}}
        for name, (shards, canonical) in CASES.items():
            found[name] = {
                str(n): {
                    **sizes[shards],
                    'bytes downloaded, by epoch': downloaded(
                        Path(folder, str(shards)), Path(folder, f'{name}-{n}'), n, canonical, epochs
                    ),
                }
                for n in nodes
            }
        if importlib.util.find_spec('streaming') and not small:
            found[PEER] = {
                str(n): {
                    **sizes[512],
                    'bytes downloaded, by epoch': downloaded_by_mosaicml(
                        Path(folder, '512'), Path(folder, f'peer-{n}'), n, epochs
                    ),
                }
                for n in nodes
            }
    return {
        'machine': described,
        'settings': {
            'samples of a shard': SAMPLES,
            'bytes of a sample': ROW + 8,
            'global batch': BATCH,
            'epochs': epochs,
        },
        'downloads': found,
        'downloaded over dataset, first epoch and all': {
            name: {n: [round(x, 4) for x in shares(one)] for n, one in of.items()} for name, of in found.items()
        },
    }


def shares(one: Result) -> tuple[float, float]:
    """Bytes downloaded over those of the dataset, after the first epoch and after the last."""
    downloads = one['bytes downloaded, by epoch']
    return downloads[0] / one['bytes of the dataset'], downloads[-1] / one['bytes of the dataset']


def extra(nodes: str, one: Result) -> int:
    """Bytes of shards that more than one node has downloaded. Every node downloads the index."""
    index = one['bytes of the index']
    return one['bytes downloaded, by epoch'][-1] - int(nodes) * index - (one['bytes of the dataset'] - index)


def claims(result: Result) -> dict[str, bool]:
    stated, downloads = result['downloaded over dataset, first epoch and all'], result['downloads']
    return {
        'the stated ratios are those of the bytes': all(
            stated[name][n] == [round(x, 4) for x in shares(one)]
            for name, of in downloads.items()
            for n, one in of.items()
        ),
        'the epochs after the first download nothing': all(
            first == last for of in stated.values() for first, last in of.values()
        ),
        'with as many canonical nodes as nodes, no shard is downloaded twice': all(
            extra(n, one) == 0 for name in stated if name != FEW for n, one in downloads[name].items()
        ),
        'with one canonical node, each node downloads all': all(
            first == int(n) for n, (first, _) in stated[FEW].items()
        ),
    }


def draw(result: Result) -> Figure:
    from matplotlib.figure import Figure

    stated = result['downloaded over dataset, first epoch and all']
    colors = dict(zip((*CASES, PEER), (BLUE, RED, ORANGE, GRAY), strict=True))
    figure = Figure(figsize=(8.3, 3.2))
    axes = figure.subplots()
    nodes = list(stated[MANY])
    for number, (name, of) in enumerate(stated.items()):
        at = np.arange(len(nodes)) + 0.2 * (number - 1.5)
        bars = axes.bar(at, [last for _, last in of.values()], 0.18, color=colors[name], label=name)
        axes.bar_label(bars, [f'{last:.2f}' for _, last in of.values()], fontsize=7, padding=1)
    axes.set_xticks(range(len(nodes)), nodes)
    axes.grid(visible=False, axis='x')
    epochs = result['settings']['epochs']
    axes.set(
        title=f'bytes downloaded / bytes of the dataset, after {epochs} epochs as after the first',
        xlabel='nodes, each with its own cache',
    )
    most = nodes[-1]
    figure.suptitle(
        f'{most} nodes download {stated[MANY][most][1]:.2f} datasets of 512 shards, '
        f'but {stated[FEW][most][1]:.0f} of 64 shards by default'
    )
    axes.legend(loc='upper left')
    return figure


FIGURE = Made(measure, claims, draw)
