"""Training crops of JPEGs: headrace beside MosaicML Streaming, litdata, WebDataset, FFCV and an ImageFolder.

    python benchmarks/images.py PHOTOGRAPHS [--rounds 5] [--workers 0 2] [--sizes 500x400 1600x1200]
        [--only litdata ...] [--share 0.5] [--json OUT]

PHOTOGRAPHS is a folder of JPEGs, such as `sklearn/datasets/images` of scikit-learn. The pictures are crops of them
with a little noise, at quality 90. All contenders read the same files from the page cache, in their own format, and
give batches of 32 crops of 224 x 224 (area 0.08 to 1, flipped by half) as uint8.

- pil: Pillow and torchvision's transforms of Pillow's images, the same objects for all.
- fast: `ImageTensor` of headrace; FFCV's own decoder; for the others `torchvision.io.decode_jpeg` and torchvision's
  transforms of tensors.

FFCV takes part where it is installed. Its workers are threads, of which it has at least one. It encodes the pictures
again, at the same quality.

One process has all loaders of a size and a number of workers, with persistent workers. After a first pass, timed passes
are interleaved. CPU is that of the process and its workers: on a busy machine it is more certain than the rate.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
COUNTS = {'500x400': 512, '1600x1200': 96}
SHARD = 1 << 24


# -- data ----------------------------------------------------------------------------------------------------------


def make_pictures(photographs: Path, folder: Path, size: str, count: int) -> None:
    """JPEG files in two classes."""
    from PIL import Image

    width, height = map(int, size.split('x'))
    sources = [Image.open(path).convert('RGB') for path in sorted(photographs.glob('*.jpg'))]
    rng = np.random.default_rng(0)
    for number in range(count):
        source = sources[number % len(sources)]
        share = rng.uniform(0.75, 1)
        ratio = min(source.width / width, source.height / height)
        box_width, box_height = width * ratio * share, height * ratio * share
        left, top = rng.uniform(0, source.width - box_width), rng.uniform(0, source.height - box_height)
        box = (left, top, left + box_width, top + box_height)
        pixels = np.asarray(source.resize((width, height), Image.Resampling.BICUBIC, box=box)).astype(np.float32)
        pixels += rng.normal(0, 4, pixels.shape)
        path = folder / str(number % 2) / f'{number:05}.jpg'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def samples(folder: Path) -> Iterable[tuple[bytes, int]]:
    for path in sorted(folder.glob('*/*.jpg'), key=lambda path: path.name):
        yield path.read_bytes(), int(path.parent.name)


def write_mds(folder: Path, out: Path) -> None:
    from headrace import MDSWriter

    with MDSWriter(out=str(out), columns={'image': 'jpeg', 'label': 'int'}, size_limit=SHARD) as writer:
        for image, label in samples(folder):
            writer.write({'image': image, 'label': label})


def write_mds_bytes(folder: Path, out: Path) -> None:
    from headrace import MDSWriter

    with MDSWriter(out=str(out), columns={'image': 'bytes', 'label': 'int'}, size_limit=SHARD) as writer:
        for image, label in samples(folder):
            writer.write({'image': image, 'label': label})


def write_webdataset(folder: Path, out: Path) -> None:
    out.mkdir()
    with tarfile.open(out / '0.tar', 'w') as tar:
        for number, (image, label) in enumerate(samples(folder)):
            for name, data in ((f'{number:05}.jpg', image), (f'{number:05}.cls', str(label).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def write_litdata(folder: Path, out: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    out.mkdir()
    writer = BinaryWriter(str(out), chunk_bytes=SHARD)
    for number, (image, label) in enumerate(samples(folder)):
        writer.add_item(number, {'image': image, 'label': label})
    writer.done()
    writer.merge()


class Pictures:
    """The pictures as FFCV's writer wants them."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob('*/*.jpg'), key=lambda path: path.name)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        from PIL import Image

        path = self._files[at]
        return Image.open(path).convert('RGB'), int(path.parent.name)


def write_ffcv(folder: Path, out: Path) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {'image': RGBImageField(write_mode='jpg', jpeg_quality=90), 'label': IntField()}
    DatasetWriter(str(out), fields, num_workers=1).from_indexed_dataset(Pictures(folder))


# -- transforms ----------------------------------------------------------------------------------------------------


@functools.cache
def of_pil() -> Callable[[Any], Any]:
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(224, antialias=True),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )


@functools.cache
def of_tensors() -> Callable[[Any], Any]:
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])


def pil_of_bytes(data: bytes) -> Any:
    from PIL import Image

    return of_pil()(Image.open(io.BytesIO(data)).convert('RGB'))


def tensor_of_bytes(data: bytes) -> Any:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return of_tensors()(decode_jpeg(encoded, mode=ImageReadMode.RGB))


def of_bytes(kind: str) -> Callable[[bytes], Any]:
    return pil_of_bytes if kind == 'pil' else tensor_of_bytes


# -- loaders -------------------------------------------------------------------------------------------------------


def options(workers: int) -> dict[str, Any]:
    return {'num_workers': workers, 'persistent_workers': True} if workers else {'num_workers': 0}


def headrace_loader(data: Path, kind: str, workers: int) -> Any:
    from headrace import ImageTensor, StreamingDataLoader, StreamingDataset

    class Transformed(StreamingDataset):
        def get_item(self, sample_id: int) -> Any:  # type: ignore[override]
            sample = super().get_item(sample_id)
            return of_pil()(sample['image']), sample['label']

    common: dict[str, Any] = {'local': str(data / 'mds'), 'batch_size': BATCH, 'shuffle': True}
    if kind == 'pil':
        return StreamingDataLoader(Transformed(**common), **options(workers))
    decode = ImageTensor(size=224, crop='random', flip=0.5, scaled=kind == 'scaled')
    return StreamingDataLoader(StreamingDataset(**common, decode=decode), **options(workers))


def mosaicml_loader(data: Path, kind: str, workers: int) -> Any:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()

    class Transformed(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return (of_pil() if kind == 'pil' else tensor_of_bytes)(sample['image']), sample['label']

    folder = data / ('mds' if kind == 'pil' else 'mds-bytes')
    dataset = Transformed(local=str(folder), batch_size=BATCH, shuffle=True)
    return StreamingDataLoader(dataset, batch_size=BATCH, **options(workers))


def litdata_loader(data: Path, kind: str, workers: int) -> Any:
    import litdata

    class Transformed(litdata.StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return of_bytes(kind)(sample['image']), sample['label']

    dataset = Transformed(str(data / 'litdata'), shuffle=True)
    return litdata.StreamingDataLoader(dataset, batch_size=BATCH, **options(workers))


def webdataset_loader(data: Path, kind: str, workers: int) -> Any:
    import webdataset
    from torch.utils.data import DataLoader

    tars = [str(data / 'webdataset' / '0.tar')] * max(workers, 1)
    dataset = webdataset.WebDataset(tars, shardshuffle=False, nodesplitter=None).shuffle(256)
    dataset = dataset.to_tuple('jpg', 'cls').map_tuple(of_bytes(kind), int)
    if workers:  # each worker has the whole tar: it reads its part of an epoch
        dataset = dataset.with_epoch(COUNTS_NOW[0] // workers)
    return DataLoader(dataset, batch_size=BATCH, **options(workers))


def imagefolder_loader(data: Path, kind: str, workers: int) -> Any:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    def load(path: str) -> Any:
        return of_bytes(kind)(Path(path).read_bytes())

    return DataLoader(ImageFolder(str(data / 'files'), loader=load), batch_size=BATCH, shuffle=True, **options(workers))


def ffcv_loader(data: Path, _: str, workers: int) -> Any:
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage

    pipelines = {
        'image': [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip(), ToTensor(), ToTorchImage()],
        'label': [IntDecoder(), ToTensor()],
    }
    return Loader(
        str(data / 'ffcv'),
        batch_size=BATCH,
        num_workers=max(workers, 1),
        order=OrderOption.RANDOM,
        os_cache=True,
        pipelines=pipelines,
    )


COUNTS_NOW = [0]
LOADERS = {
    'headrace': headrace_loader,
    'mosaicml-streaming': mosaicml_loader,
    'litdata': litdata_loader,
    'webdataset': webdataset_loader,
    'imagefolder': imagefolder_loader,
    'ffcv': ffcv_loader,
}
HAS_FFCV = importlib.util.find_spec('ffcv') is not None


def cpu() -> float:
    """Seconds of this process and its children."""
    ticks = 0.0
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
            ticks += int(fields[11]) + int(fields[12])
            for task in Path(f'/proc/{pid}/task').iterdir():
                waiting += map(int, (task / 'children').read_text().split())
        except OSError:  # it has ended
            continue
    return ticks / os.sysconf('SC_CLK_TCK')


def one_pass(loader: Any) -> int:
    count = 0
    for batch in loader:
        images = batch['image'] if isinstance(batch, dict) else batch[0]
        assert tuple(images.shape[1:]) == (3, 224, 224), images.shape
        count += len(images)
    return count


def run(data: Path, workers: int, rounds: int, count: int, names: list[str]) -> list[dict[str, Any]]:
    """Figures of all contenders in this process."""
    import torch

    torch.set_num_threads(1)
    COUNTS_NOW[0] = count
    kinds = [(name, kind) for kind in ('pil', 'fast') for name in names if (name, kind) != ('ffcv', 'pil')]
    kinds.append(('headrace', 'scaled'))
    loaders = {key: LOADERS[key[0]](data, key[1], workers) for key in kinds}
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in kinds}
    for loader in loaders.values():
        one_pass(loader)
    for number in range(rounds):
        for key in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
            start, used = time.perf_counter(), cpu()
            passed = one_pass(loaders[key])
            times[key].append(((time.perf_counter() - start) / passed, (cpu() - used) / passed))
    return [
        {'contender': name, 'kind': kind, 'seconds': [t[0] for t in found], 'cpu': [t[1] for t in found]}
        for (name, kind), found in times.items()
    ]


def differences(data: Path) -> dict[str, float]:
    """Mean absolute differences of central crops to those of Pillow, of 255."""
    from PIL import Image

    from headrace import ImageTensor, StreamingDataset

    means: dict[str, list[float]] = {'fast': [], 'scaled': []}
    for kind, found in means.items():
        decode = ImageTensor(size=224, crop='center', layout='HWC', scaled=kind == 'scaled')
        dataset = StreamingDataset(local=str(data / 'mds'), decode=decode)
        plain = StreamingDataset(local=str(data / 'mds'))
        for number in range(0, dataset.size, 4):
            image = plain[number]['image']
            side = round(0.875 * min(image.size))
            left, top = (image.width - side) // 2, (image.height - side) // 2
            crop = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BILINEAR)
            found.append(np.abs(np.asarray(crop).astype(int) - dataset[number]['image'].numpy()).mean())
    return {kind: float(np.mean(found)) for kind, found in means.items()}


def show(size: str, workers: int, results: list[dict[str, Any]]) -> None:
    print(f'\n| {size}, {workers} workers | transforms | images/s | headrace is | CPU ms an image | headrace is |')
    print('|---|---|---|---|---|---|')
    ours = {row['kind']: row for row in results if row['contender'] == 'headrace'}
    for row in results:
        own = ours[row['kind']]
        # The ratio of each round, so that a busy moment hits both sides.
        wall, used = (
            statistics.median(theirs / mine for theirs, mine in zip(row[key], own[key], strict=True))
            for key in ('seconds', 'cpu')
        )
        rate, cost = 1 / statistics.median(row['seconds']), 1000 * statistics.median(row['cpu'])
        ratios = ('', '') if row['contender'] == 'headrace' else (f'{wall:.2f} x', f'{used:.2f} x')
        print(
            f'| {row["contender"]} | {row["kind"]} | {rate:,.0f} | {ratios[0]} | {cost:.2f} | {ratios[1]} |', flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('photographs', type=Path)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--workers', type=int, nargs='+', default=[0, 2])
    parser.add_argument('--sizes', nargs='+', default=list(COUNTS), choices=list(COUNTS))
    parser.add_argument(
        '--only', nargs='+', default=list(LOADERS), choices=list(LOADERS), help='headrace is always there'
    )
    parser.add_argument('--share', type=float, default=1.0, help='of the pictures')
    parser.add_argument('--json', type=Path)
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root:
        for size in arguments.sizes:
            data = Path(root, size)
            count = max(BATCH * 2, int(COUNTS[size] * arguments.share) // (2 * BATCH) * 2 * BATCH)
            make_pictures(arguments.photographs, data / 'files', size, count)
            mean = sum(path.stat().st_size for path in (data / 'files').glob('*/*.jpg')) / count
            print(f'{count} pictures of {size}, {mean / 1000:.0f} kB on average')
            for name, write in (
                ('mds', write_mds),
                ('mds-bytes', write_mds_bytes),
                ('litdata', write_litdata),
                ('webdataset', write_webdataset),
                *([('ffcv', write_ffcv)] if HAS_FFCV else []),
            ):
                write(data / 'files', data / name)
            print('mean differences to Pillow', differences(data))
            for workers in arguments.workers:
                numbers = [str(number) for number in (workers, arguments.rounds, count)]
                wanted = {'headrace', *arguments.only} - (set() if HAS_FFCV else {'ffcv'})
                names = [name for name in LOADERS if name in wanted]
                done = subprocess.run(
                    [sys.executable, __file__, 'run', str(data), *numbers, *names],
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                results = json.loads(done.stdout.splitlines()[-1])
                show(size, workers, results)
                found.append({'size': size, 'workers': workers, 'results': results})
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == '__main__':
    if sys.argv[1] == 'run':
        folder_, workers_, rounds_, count_, *names_ = sys.argv[2:]
        print(json.dumps(run(Path(folder_), int(workers_), int(rounds_), int(count_), names_)))
    else:
        main()
