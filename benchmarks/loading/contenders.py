"""The contenders: the data of each, and its loader of them. All have the same samples, shuffled, in their own formats.

A contender is a writer, which makes its data once, and a reader, which returns an iterable of batches. "map" is a plain
DataLoader over a memory map or over Hugging Face datasets. "limit" is no loader: one thread copies rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

TOKENS = 2048
SAMPLES = {'tokens': 40_000, 'text': 200_000, 'images': 2_000}
BATCH = {'tokens': 16, 'text': 64, 'images': 64}
ARRAYS: dict[str, tuple[str, int, tuple[int, ...]]] = {
    'tokens': ('int32', 50_257, (TOKENS,)),
    'images': ('uint8', 256, (3, 224, 224)),
}
"""Data type, exclusive largest value, and shape of a sample."""


class Settings(NamedTuple):
    """The arguments of a reader."""

    workload: str
    folder: Path
    workers: int
    start: str | None
    """Start method of workers; None without workers."""
    pinned: bool = False
    """Whether batches are in memory that a GPU copies from while the trainer goes on."""

    @property
    def loader(self) -> dict[str, Any]:
        """Arguments of a DataLoader."""
        return {
            'batch_size': BATCH[self.workload],
            'num_workers': self.workers,
            'persistent_workers': self.workers > 0,
            'multiprocessing_context': self.start,
            'pin_memory': self.pinned,
        }


def samples(workload: str) -> Iterator[Any]:
    """Arrays, or an id and 10 to 59 words."""
    rng = np.random.default_rng(7)
    if workload in ARRAYS:
        dtype, most, shape = ARRAYS[workload]
        for _ in range(SAMPLES[workload]):
            yield rng.integers(0, most, shape, dtype=np.dtype(dtype))
        return
    words = np.array([f'word{number}' for number in range(2000)])
    for number in range(SAMPLES['text']):
        yield {'id': number, 'text': ' '.join(words[rng.integers(0, 2000, int(rng.integers(10, 60)))])}


# -- writers -----------------------------------------------------------------------------------------------------------


def write_mds(workload: str, folder: Path) -> None:
    from headrace import MDSWriter

    columns = {'id': 'int', 'text': 'str'}
    if workload in ARRAYS:
        dtype, _, shape = ARRAYS[workload]
        columns = {workload: f'ndarray:{dtype}:{",".join(map(str, shape))}'}
    with MDSWriter(out=str(folder), columns=columns, size_limit='64mb') as writer:
        for sample in samples(workload):
            writer.write({workload: sample} if workload in ARRAYS else sample)


def write_litdata(workload: str, folder: Path) -> None:
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    if workload == 'tokens':
        writer = BinaryWriter(str(folder), chunk_size=TOKENS * 8192, item_loader=TokensLoader(block_size=TOKENS))
    else:
        writer = BinaryWriter(str(folder), chunk_bytes='64MB')
    for number, sample in enumerate(samples(workload)):
        writer[number] = torch.from_numpy(sample) if workload in ARRAYS else sample
    writer.done()
    writer.merge(1)


def write_webdataset(workload: str, folder: Path) -> None:
    import webdataset

    with webdataset.ShardWriter(f'{folder}/%05d.tar', maxsize=64e6, maxcount=10**9, verbose=0) as writer:
        for number, sample in enumerate(samples(workload)):
            writer.write({'__key__': f'{number:08d}', 'npy' if workload in ARRAYS else 'json': sample})


def write_map(workload: str, folder: Path) -> None:
    if workload in ARRAYS:
        dtype, _, shape = ARRAYS[workload]
        rows = np.lib.format.open_memmap(folder / 'rows.npy', 'w+', np.dtype(dtype), (SAMPLES[workload], *shape))
        for number, sample in enumerate(samples(workload)):
            rows[number] = sample
        rows.flush()
    else:
        import datasets

        made = datasets.Dataset.from_generator(samples, gen_kwargs={'workload': 'text'}, cache_dir=str(folder / 'made'))
        made.save_to_disk(str(folder / 'text'))


# -- readers -----------------------------------------------------------------------------------------------------------


def read_headrace(settings: Settings) -> Iterable[Any]:
    from headrace import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=str(settings.folder), batch_size=BATCH[settings.workload], shuffle=True)
    return StreamingDataLoader(dataset, **settings.loader)


def read_mosaicml(settings: Settings) -> Iterable[Any]:
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=str(settings.folder), batch_size=BATCH[settings.workload], shuffle=True)
    return StreamingDataLoader(dataset, **settings.loader)


def read_litdata(settings: Settings) -> Iterable[Any]:
    import litdata
    from litdata.streaming.item_loader import TokensLoader

    items = TokensLoader(block_size=TOKENS) if settings.workload == 'tokens' else None
    dataset = litdata.StreamingDataset(str(settings.folder), item_loader=items, shuffle=True, drop_last=False)
    return litdata.StreamingDataLoader(dataset, **settings.loader)


def first_of(values: Any) -> Any:
    return values[0]


def read_webdataset(settings: Settings) -> Iterable[Any]:
    import webdataset

    urls = sorted(str(path) for path in settings.folder.glob('*.tar'))
    dataset = webdataset.WebDataset(
        urls, shardshuffle=100, nodesplitter=webdataset.split_by_node, empty_check=False
    ).shuffle(1000)
    if settings.workload in ARRAYS:
        dataset = dataset.decode().to_tuple('npy')
    else:
        dataset = dataset.decode().to_tuple('json').map(first_of)
    return DataLoader(dataset, **settings.loader)


class Rows(Dataset[torch.Tensor]):
    """A memory map of rows."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, np.load(path, mmap_mode='r')

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.path,)  # a spawned worker maps the file; numpy would send all rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[at].copy())


def read_map(settings: Settings) -> Iterable[Any]:
    if settings.workload in ARRAYS:
        dataset: Any = Rows(settings.folder / 'rows.npy')
    else:
        import datasets

        dataset = datasets.load_from_disk(str(settings.folder / 'text'))
    return DataLoader(dataset, shuffle=True, **settings.loader)


def read_limit(settings: Settings) -> Iterable[Any]:
    rows = np.load(settings.folder / 'rows.npy', mmap_mode='r')
    order, size = np.random.default_rng(0).permutation(len(rows)), BATCH['tokens']
    return (torch.from_numpy(np.take(rows, order[at : at + size], axis=0)) for at in range(0, len(order), size))


class Contender(NamedTuple):
    """A loader and the data that it reads."""

    read: Callable[[Settings], Iterable[Any]]
    data: str
    """Contenders of the same name read the same files."""
    write: Callable[[str, Path], None]
    package: str | None
    """Its distribution, whose version is printed."""


CONTENDERS = {
    'headrace': Contender(read_headrace, 'mds', write_mds, 'headrace'),
    'mosaicml-streaming': Contender(read_mosaicml, 'mds', write_mds, 'mosaicml-streaming'),
    'litdata': Contender(read_litdata, 'litdata', write_litdata, 'litdata'),
    'webdataset': Contender(read_webdataset, 'webdataset', write_webdataset, 'webdataset'),
    'map': Contender(read_map, 'map', write_map, None),
    'limit': Contender(read_limit, 'map', write_map, None),
}


def written(contender: str, workload: str, data: Path) -> Path:
    """The folder with a contender's data, which is written if it is not there."""
    made = CONTENDERS[contender]
    folder = data / f'{workload}-{made.data}'
    done = folder / '.written'
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made.write(workload, folder)
        done.touch()
    return folder
