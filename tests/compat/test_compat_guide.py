"""Each kind of snippet in MosaicML Streaming's README and user guide, in our words; docs/mosaicml.md lists them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

PAGE = Path(__file__).parents[2] / 'docs' / 'mosaicml.md'

pytestmark = pytest.mark.usefixtures('alias')

SNIPPETS: dict[str, Callable[[Path], None]] = {}


def snippet(title: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Try a snippet under its title in the list."""

    def listed(run: Callable[[Path], None]) -> Callable[[Path], None]:
        SNIPPETS[title] = run
        return run

    return listed


def numbers(folder: Path, name: str = 'data', *, size: int = 48, first: int = 0, **options: Any) -> str:
    """A dataset whose samples hold their number."""
    from streaming import MDSWriter

    with MDSWriter(out=str(folder / name), columns={'number': 'int'}, size_limit=200, **options) as out:
        for number in range(first, first + size):
            out.write({'number': number})
    return str(folder / name)


def found(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch['number'].tolist()]


@snippet('write images and classes')
def write_images(folder: Path) -> None:
    pytest.importorskip('PIL')
    from PIL import Image
    from streaming import MDSWriter, StreamingDataset

    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    columns = {'image': 'jpeg', 'class': 'int'}
    with MDSWriter(out=str(folder / 'data'), columns=columns, compression='zstd') as out:
        for number in range(4):
            out.write({'image': Image.fromarray(pixels), 'class': number})
    assert StreamingDataset(local=str(folder / 'data'))[3]['class'] == 3


@snippet('a dataset in a `DataLoader`')
def dataset_in_a_dataloader(folder: Path) -> None:
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=str(folder / 'cache'), remote=numbers(folder), shuffle=True, batch_size=4)
    assert sorted(found(DataLoader(dataset, batch_size=4))) == list(range(48))


@snippet('streams with `proportion`, `repeat`, `choose`')
def mixing(folder: Path) -> None:
    from streaming import Stream, StreamingDataset

    one, two = numbers(folder, 'one', size=10), numbers(folder, 'two', size=20, first=100)
    for weights, size in (
        (({'proportion': 0.25}, {'proportion': 0.75}), 40),
        (({'repeat': 2}, {'repeat': 0.5}), 30),
        (({'choose': 5}, {'choose': 20}), 25),
    ):
        streams = [Stream(local=path, **weight) for path, weight in zip((one, two), weights, strict=True)]
        options = {'epoch_size': 40} if 'proportion' in weights[0] else {}
        assert len(found(DataLoader(StreamingDataset(streams=streams, batch_size=5, **options), batch_size=5))) == size


@snippet('`StreamingDataLoader`, and its state in the middle of an epoch')
def resume(folder: Path) -> None:
    from streaming import StreamingDataLoader, StreamingDataset

    path = numbers(folder)

    def make() -> Any:
        options = {'shuffle': True, 'batch_size': 4, 'num_canonical_nodes': 2, 'shuffle_algo': 'py1e'}
        return StreamingDataLoader(StreamingDataset(local=path, **options), batch_size=4)

    whole, loader, resumed = found(make()), make(), make()
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    resumed.load_state_dict(loader.state_dict())
    assert found(resumed) == whole[20:]


@snippet('shuffle arguments')
def shuffling(folder: Path) -> None:
    from streaming import StreamingDataset

    path = numbers(folder)
    for algorithm in ('naive', 'py1s', 'py2s', 'py1b', 'py1br', 'py1e'):
        options = {'shuffle_seed': 17, 'shuffle_block_size': 20, 'num_canonical_nodes': 2}
        dataset = StreamingDataset(local=path, shuffle=True, shuffle_algo=algorithm, batch_size=4, **options)
        assert sorted(found(DataLoader(dataset, batch_size=4))) == list(range(48))


@snippet('`batching_method`')
def batching(folder: Path) -> None:
    from streaming import Stream, StreamingDataset

    paths = [numbers(folder, 'one', size=24), numbers(folder, 'two', size=24, first=100)]
    for method in ('random', 'stratified', 'per_stream', 'device_per_stream'):
        dataset = StreamingDataset(
            streams=[Stream(local=path) for path in paths], batching_method=method, batch_size=4, shuffle=True
        )
        batches = [[n >= 100 for n in batch['number'].tolist()] for batch in DataLoader(dataset, batch_size=4)]
        assert sum(map(sum, batches)) == 24
        if method == 'stratified':
            assert {sum(batch) for batch in batches} == {2}
        elif method != 'random':
            assert {sum(batch) for batch in batches} == {0, 4}


@snippet('`sampling_method`')
def sampling(folder: Path) -> None:
    from streaming import Stream, StreamingDataset

    path, seen = numbers(folder), {}
    for method in ('balanced', 'fixed'):
        dataset = StreamingDataset(
            streams=[Stream(local=path, choose=12)], sampling_method=method, shuffle=True, batch_size=4
        )
        loader = DataLoader(dataset, batch_size=4)
        seen[method] = [sorted(found(loader)) for _ in range(2)]
    assert seen['fixed'][0] == seen['fixed'][1]
    assert seen['balanced'][0] != seen['balanced'][1]


@snippet('`replication`')
def replication(folder: Path) -> None:
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=numbers(folder), replication=1, batch_size=4)
    assert found(DataLoader(dataset, batch_size=4)) == list(range(48))


@snippet('arguments of downloads and of the cache')
def downloads(folder: Path) -> None:
    from streaming import StreamingDataset

    remote = numbers(folder, compression='zstd:3', hashes=['sha1'])
    dataset = StreamingDataset(
        remote=remote,
        local=str(folder / 'cache'),
        download_retry=3,
        download_timeout=60,
        validate_hash='sha1',
        keep_zip=True,
        predownload=8,
        cache_limit='1mb',
        batch_size=4,
    )
    assert found(DataLoader(dataset, batch_size=4)) == list(range(48))
    suffixes = {Path(name).suffix for name in os.listdir(folder / 'cache') if name.startswith('shard')}
    assert suffixes == {'.mds', '.zstd'}


@snippet('`split`')
def splits(folder: Path) -> None:
    from streaming import StreamingDataset

    numbers(folder, 'data/train')
    numbers(folder, 'data/val', size=8)
    sizes = {split: len(StreamingDataset(local=str(folder / 'data'), split=split)) for split in ('train', 'val')}
    assert sizes == {'train': 48, 'val': 8}


@snippet('random access and `Array` indexes')
def indexes(folder: Path) -> None:
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=numbers(folder))
    assert dataset[-1]['number'] == 47
    assert [sample['number'] for sample in dataset[4:10:2]] == [4, 6, 8]
    assert [sample['number'] for sample in dataset[[0, 3]]] == [0, 3]
    assert [sample['number'] for sample in dataset[np.array([5, 1])]] == [5, 1]
    assert len(dataset) == dataset.size == 48


@snippet('a dataset with its own `__getitem__`')
def own_samples(folder: Path) -> None:
    from streaming import StreamingDataset

    class Squares(StreamingDataset):
        def __getitem__(self, at: int) -> Any:
            return torch.tensor(super().__getitem__(at)['number'] ** 2)

    loader = DataLoader(Squares(local=numbers(folder, size=4), batch_size=2), batch_size=2)
    assert torch.cat(list(loader)).tolist() == [0, 1, 4, 9]


@snippet('a dataset with its own `get_item`')
def own_items(folder: Path) -> None:
    from streaming import StreamingDataset

    class Negative(StreamingDataset):
        def get_item(self, sample_id: int, retry: int = 7) -> Any:
            return -super().get_item(sample_id, retry)['number']

    dataset = Negative(local=numbers(folder, size=4), batch_size=2)
    assert [dataset[i] for i in range(4)] == [0, -1, -2, -3]


@snippet('conversion by several processes, and `merge_index`')
def parallel(folder: Path) -> None:
    from streaming import StreamingDataset
    from streaming.base.util import merge_index

    for part in range(3):  # one process each
        numbers(folder, f'data/{part}', size=5, first=5 * part)
    merge_index(str(folder / 'data'), keep_local=True)
    dataset = StreamingDataset(local=str(folder / 'data'))
    assert [sample['number'] for sample in dataset[:]] == list(range(15))
    shards = json.loads((folder / 'data' / 'index.json').read_text())['shards']
    assert {Path(shard['raw_data']['basename']).parts[0] for shard in shards} == {'0', '1', '2'}


@snippet('JSON, CSV, TSV and XSV')
def other_writers(folder: Path) -> None:
    from streaming import CSVWriter, JSONWriter, StreamingDataset, TSVWriter, XSVWriter

    for writer, options in ((JSONWriter, {}), (CSVWriter, {}), (TSVWriter, {}), (XSVWriter, {'separator': '|'})):
        out = str(folder / writer.__name__)
        with writer(out=out, columns={'number': 'int', 'word': 'str'}, **options) as written:
            written.write({'number': 3, 'word': 'three'})
        assert StreamingDataset(local=out)[0] == {'number': 3, 'word': 'three'}


@snippet('`LocalDataset`')
def local_dataset(folder: Path) -> None:
    from streaming import LocalDataset

    assert found(DataLoader(LocalDataset(numbers(folder)), batch_size=4)) == list(range(48))


@snippet('`clean_stale_shared_memory`')
def cleaning(folder: Path) -> None:
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    numbers(folder)


@snippet('values that are refused')
def refused(folder: Path) -> None:
    from streaming import Stream, StreamingDataset

    path = numbers(folder)
    for wrong in (
        {'predownload': -1},
        {'download_retry': -1},
        {'download_timeout': -1},
        {'batching_method': 'mixed'},
        {'sampling_method': 'random'},
        {'sampling_granularity': 0},
        {'shuffle_algo': 'py9'},
        {'partition_algo': 'none', 'shuffle_algo': 'py1e'},
        {'num_canonical_nodes': -2},
        {'shuffle_seed': -1},
        {'shuffle_block_size': 0},
        {'batch_size': 0},
        {'epoch_size': -5},
        {'cache_limit': '5 parsecs'},
        {'replication': -1},
        {'validate_hash': 'none'},
    ):
        with pytest.raises((ValueError, TypeError)):
            list(DataLoader(StreamingDataset(local=path, **{'batch_size': 4, 'shuffle': True, **wrong})))
    for wrong in (
        {'proportion': -1},
        {'repeat': -0.5},
        {'choose': -3},
        {'proportion': 1, 'repeat': 2},
        {'repeat': 1, 'choose': 5},
        {'download_retry': -1},
        {'download_timeout': -1},
    ):
        with pytest.raises(ValueError, match=r'.'):
            StreamingDataset(streams=[Stream(local=path, **wrong)], batch_size=4)
    shutil.rmtree(path)
    with pytest.raises((FileNotFoundError, RuntimeError)):
        StreamingDataset(local=path)


@pytest.mark.parametrize('title', SNIPPETS)
def test_a_snippet_runs(title: str, tmp_path: Path) -> None:
    SNIPPETS[title](tmp_path)


def test_the_page_lists_each_snippet_that_is_tried() -> None:
    _, _, rest = PAGE.read_text().partition('## Snippets\n')
    listed = re.findall(r'^- (.+)$', rest.partition('\n## ')[0], flags=re.MULTILINE)
    assert set(listed) == set(SNIPPETS)
