"""Times of conversions: `headrace convert` from each source, and other writers on the same images.

    python benchmarks/convert.py [--rounds 3] [--images 3000] [--rows 200000] [--only imagefolder parquet] [--json OUT]

The data are generated with each source's own library: JPEGs of 224 pixels by class, and rows of an id and 20 to 200
words. A round runs each contender once, in a fresh process, in alternating order. The figures are medians.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WORDS = [
    f'{a}{b}' for a in ('pre', 'con', 'un', 'over', 'trans', 'inter') for b in ('form', 'act', 'ly', 'port', 'mit')
]


def make_images(folder: Path, count: int) -> None:
    from PIL import Image

    random = np.random.default_rng(1)
    for i in range(count):
        path = folder / f'class-{i % 20:02}'
        path.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 255, (28, 28, 3), dtype=np.uint8)
        pixels = np.kron(coarse, np.ones((8, 8, 1), np.uint8)) // 2 + random.integers(0, 90, (224, 224, 3), np.uint8)
        Image.fromarray(pixels).save(path / f'{i:06}.jpg', quality=90)


def make_rows(count: int) -> dict[str, list]:
    random = np.random.default_rng(2)
    lengths = random.integers(20, 200, count)
    words = random.integers(0, len(WORDS), lengths.sum())
    ends = np.cumsum(lengths)
    texts = [' '.join(WORDS[w] for w in words[end - n : end]) for end, n in zip(ends, lengths, strict=True)]
    return {'id': list(range(count)), 'text': texts}


def make(kind: str, folder: Path, images: int, rows: int) -> None:
    """Data of a kind, in a folder that does not exist."""
    if kind == 'imagefolder':
        make_images(folder, images)
        return
    columns = make_rows(rows)
    folder.mkdir(parents=True)
    step = -(-rows // 8)
    for number, begin in enumerate(range(0, rows, step)):
        part = {name: values[begin : begin + step] for name, values in columns.items()}
        samples = [dict(zip(part, values, strict=True)) for values in zip(*part.values(), strict=True)]
        if kind == 'parquet':
            import pyarrow as pa
            from pyarrow import parquet

            parquet.write_table(pa.table(part), folder / f'{number}.parquet', row_group_size=10_000)
        elif kind == 'arrow':
            import datasets

            if not number:
                datasets.Dataset.from_dict(columns).save_to_disk(folder, num_shards=8)
        elif kind == 'webdataset':
            import webdataset

            with webdataset.TarWriter(str(folder / f'{number}.tar')) as tar:
                for sample in samples:
                    tar.write({'__key__': f'{sample["id"]:08}', 'txt': sample['text'], 'cls': sample['id']})
        elif kind == 'jsonl':
            (folder / f'{number}.jsonl').write_text(''.join(json.dumps(sample) + '\n' for sample in samples))
        elif kind == 'csv':
            with open(folder / f'{number}.csv', 'w', newline='') as file:
                writer = csv.DictWriter(file, list(part))
                writer.writeheader()
                writer.writerows(samples)


def labels(source: Path) -> list[tuple[str, int]]:
    """The images with their labels, as torchvision lists them."""
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(source)).samples


def read_image(item: tuple[str, int]) -> dict:
    return {'image': Path(item[0]).read_bytes(), 'label': item[1]}


def convert(contender: str, source: Path, out: Path) -> None:
    """Run one contender; its name ends with the number of processes."""
    name, _, workers = contender.partition(' -j ')
    if name == 'headrace':
        import headrace.convert

        headrace.convert.convert(source, out, workers=int(workers), progress_bar=False)
    elif name == 'litdata':
        import litdata

        litdata.optimize(
            fn=read_image,
            inputs=labels(source),
            output_dir=str(out),
            num_workers=int(workers),
            chunk_bytes='64MB',
            verbose=False,
        )
    elif name == 'webdataset':
        import webdataset

        out.mkdir()
        with webdataset.ShardWriter(str(out / '%06d.tar'), maxsize=1 << 26, verbose=0) as writer:
            for number, item in enumerate(labels(source)):
                sample = read_image(item)
                writer.write({'__key__': f'{number:08}', 'jpg': sample['image'], 'cls': sample['label']})
    elif name == 'mosaicml-streaming':
        from streaming import MDSWriter

        with MDSWriter(columns={'image': 'jpeg', 'label': 'int'}, out=str(out)) as writer:
            for item in labels(source):
                writer.write(read_image(item))


CONTENDERS = ['headrace -j 1', 'headrace -j 2']
OTHERS = ['webdataset -j 1', 'mosaicml-streaming -j 1', 'litdata -j 1', 'litdata -j 2']
KINDS = ['imagefolder', 'parquet', 'arrow', 'webdataset', 'jsonl', 'csv']

# Imports are not part of a conversion.
PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
import convert as benchmark
import headrace.convert
if {name!r} != 'headrace': __import__({module!r})
if __name__ == '__main__':
    begin, cpu = time.perf_counter(), benchmark.cpu_seconds()
    benchmark.convert({contender!r}, Path({source!r}), Path({out!r}))
    print('seconds', time.perf_counter() - begin, benchmark.cpu_seconds() - cpu)
"""


def cpu_seconds() -> float:
    """Processor time of this process and of the children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def measure(contender: str, source: Path, out: Path) -> tuple[float, float]:
    """Seconds, and seconds of processor time."""
    name = contender.partition(' ')[0]
    module = {'mosaicml-streaming': 'streaming'}.get(name, name)
    program = PROGRAM.format(
        folder=str(Path(__file__).parent),
        name=name,
        module=module,
        contender=contender,
        source=str(source),
        out=str(out),
    )
    script = out.parent / 'program.py'
    script.write_text(program)
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith('seconds ')]
    if not found:
        raise SystemExit(f'{contender}: {done.stderr[-2000:]}')
    _, seconds, cpu = found[-1].split()
    return float(seconds), float(cpu)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--images', type=int, default=3000)
    parser.add_argument('--rows', type=int, default=200_000)
    parser.add_argument('--only', nargs='+', choices=KINDS, default=KINDS)
    parser.add_argument('--json', type=Path)
    arguments = parser.parse_args()
    results = []
    print('| source | contender | rows | source | result | seconds | CPU seconds | rows per CPU second |')
    print('|---|---|---|---|---|---|---|---|')
    with tempfile.TemporaryDirectory(prefix='headrace-convert-') as temporary:
        for kind in arguments.only:
            source, out = Path(temporary, kind), Path(temporary, 'out')
            make(kind, source, arguments.images, arguments.rows)
            rows = arguments.images if kind == 'imagefolder' else arguments.rows
            contenders = CONTENDERS + (OTHERS if kind == 'imagefolder' else [])
            seconds: dict[str, list[tuple[float, float]]] = {contender: [] for contender in contenders}
            sizes: dict[str, int] = {}
            for number in range(arguments.rounds):
                for contender in contenders if number % 2 == 0 else contenders[::-1]:
                    seconds[contender].append(measure(contender, source, out))
                    sizes[contender] = size_of(out)
                    time.sleep(0.1)
            for contender in contenders:
                median, cpu = (statistics.median(values) for values in zip(*seconds[contender], strict=True))
                results.append({'source': kind, 'contender': contender, 'rows': rows, 'seconds': seconds[contender]})
                print(
                    f'| {kind} | {contender} | {rows:,} | {size_of(source) / 1e6:.0f} MB | '
                    f'{sizes[contender] / 1e6:.0f} MB | {median:.2f} | {cpu:.2f} | {rows / cpu:,.0f} |',
                    flush=True,
                )
            shutil.rmtree(source)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == '__main__':
    main()
