"""Writing a dataset to a folder, beside MosaicML Streaming, litdata and WebDataset.

    python benchmarks/write.py [ROUNDS] [--images 5000] [--pixels 256] [--quick] [--json OUT] [--cases tokens text ...]
        [--processes 1 2] [--zstd no yes] [--contenders mosaicml ...]

- tokens: rows of 2,048 int32; text: an id and 30 to 90 words; images: JPEG files of a folder, read from their paths
- each with zstd and without; litdata and WebDataset without only, as they have no comparable setting
- with 2 processes each writes a half to a folder of its own, and one index is made of theirs; litdata has workers, and
  WebDataset no index

Contenders are `write` and `write_batch` (1,000 rows a call) of headrace, `MDSWriter` of mosaicml-streaming, litdata's
`optimize`, and WebDataset's `ShardWriter`. "a plain file" is what the disk takes: the bytes of tokens and texts in
files of 64 MiB, without a format. Each run is a fresh process that writes samples from its memory once to a new folder;
only the writing counts. Its line is printed when it ends. Rounds are interleaved in a random order. "write is" is the
median time of the contender over that of `write`: above 1 headrace is faster. CPU is the processor time of all threads
and processes.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZE_LIMIT = 1 << 26
COLUMNS = {
    'tokens': {'tokens': 'ndarray:int32:2048'},
    'text': {'id': 'int', 'text': 'str'},
    'images': {'id': 'int', 'image': 'jpeg'},
}
COUNTS = {'tokens': 32_000, 'text': 200_000}
QUICK = 8
CONTENDERS = ('headrace write', 'headrace write_batch', 'mosaicml', 'litdata', 'webdataset', 'a plain file')
PLAIN_ONLY = CONTENDERS[3:]
"""Contenders without compression."""


def data_of(case: str, count: int, images: Path) -> dict[str, Any]:
    """The columns of a case."""
    dice = np.random.default_rng(0)
    if case == 'tokens':
        return {'tokens': (dice.zipf(1.3, (count, 2048)) % 50_000).astype(np.int32)}
    if case == 'text':
        words = [bytes(dice.integers(97, 123, dice.integers(2, 10), dtype=np.uint8)).decode() for _ in range(5000)]
        lengths = dice.integers(30, 91, count)
        return {'id': range(count), 'text': [' '.join(random.choices(words, k=int(k))) for k in lengths]}
    paths = sorted(images.iterdir())[:count]
    return {'id': range(len(paths)), 'image': paths}


def samples_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """The same as samples."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def make_images(folder: Path, count: int, pixels: int) -> None:
    """JPEG files: of about 20 KB with 256 pixels a side, and 2 KB with 64."""
    from PIL import Image

    dice = np.random.default_rng(0)
    noise = dice.integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for i in range(count):
        turned = np.roll(noise, i, axis=(0, 1))
        Image.fromarray(turned).resize((pixels, pixels), Image.Resampling.BICUBIC).save(
            folder / f'{i:06}.jpg', quality=90
        )


def write_mds(writer: Any, case: str, samples: list[dict[str, Any]], out: str, compression: str | None) -> None:
    """With headrace or mosaicml-streaming, sample by sample."""
    is_theirs = writer.__module__.startswith('streaming')
    with writer(columns=COLUMNS[case], out=out, compression=compression, size_limit=SIZE_LIMIT) as opened:
        for sample in samples:
            # MosaicML's `jpeg` takes bytes, too, and images, but no paths.
            if case == 'images' and is_theirs:
                opened.write({**sample, 'image': sample['image'].read_bytes()})
            else:
                opened.write(sample)


def write_batches(writer: Any, case: str, columns: dict[str, Any], out: str, compression: str | None) -> None:
    """With headrace, by columns."""
    count = len(next(iter(columns.values())))
    with writer(columns=COLUMNS[case], out=out, compression=compression, size_limit=SIZE_LIMIT) as opened:
        for i in range(0, count, 1000):
            opened.write_batch({name: values[i : i + 1000] for name, values in columns.items()})


def write_plain(columns: dict[str, Any], out: str) -> None:
    """The bytes of tokens or texts, in files of the size limit."""
    Path(out).mkdir()
    values = columns.get('tokens')
    data = memoryview(''.join(columns['text']).encode() if values is None else values.reshape(-1)).cast('B')
    for i in range(0, len(data), SIZE_LIMIT):
        with open(f'{out}/{i}', 'wb', buffering=0) as file:
            file.write(data[i : i + SIZE_LIMIT])


def in_processes(count: int, write: Callable[[int], None]) -> None:
    """Call `write` with the number of each process, in forked ones."""
    children: list[int] = []
    for number in range(count):
        child = os.fork()
        if not child:
            try:
                write(number)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        raise SystemExit('A process failed.')


def write_litdata(samples: list[dict[str, Any]], out: str, processes: int) -> None:
    """With litdata's `optimize`."""
    import litdata

    def sample_of(i: int) -> dict[str, Any]:
        sample = samples[i]
        return {name: value.read_bytes() if isinstance(value, Path) else value for name, value in sample.items()}

    litdata.optimize(
        fn=sample_of, inputs=list(range(len(samples))), output_dir=out, num_workers=processes, chunk_bytes=SIZE_LIMIT,
        start_method='fork', verbose=False,
    )  # fmt: skip


def write_webdataset(case: str, samples: list[dict[str, Any]], out: str) -> None:
    """With WebDataset's `ShardWriter`."""
    import webdataset

    Path(out).mkdir()
    with webdataset.ShardWriter(f'{out}/%06d.tar', maxsize=SIZE_LIMIT, maxcount=10**9, verbose=0) as writer:
        for i, sample in enumerate(samples):
            name = {'tokens': 'npy', 'text': 'txt', 'images': 'jpg'}[case]
            value = sample['tokens' if case == 'tokens' else 'text' if case == 'text' else 'image']
            if isinstance(value, Path):
                value = value.read_bytes()
            writer.write({'__key__': f'{i:09}', name: value, **({'cls': sample['id']} if 'id' in sample else {})})


def run(
    contender: str, case: str, compression: str | None, count: int, images: Path, out: str, processes: int
) -> dict[str, float]:
    """One run in this process: seconds and processor seconds."""
    columns = data_of(case, count, images)
    samples = samples_of(columns)
    writer: Any = None
    merge: Callable[[str], object] | None = None
    if contender.startswith('headrace'):
        import headrace
        from headrace.convert import merge_index as merge

        writer = headrace.MDSWriter
    elif contender == 'mosaicml':
        import streaming
        from streaming.base.util import merge_index as merge

        writer = streaming.MDSWriter
    elif contender == 'litdata':
        import litdata  # noqa: F401 - its import does not count
    elif contender == 'webdataset':
        import webdataset  # noqa: F401

    def write(rows: slice, folder: str) -> None:
        if contender == 'headrace write_batch':
            write_batches(writer, case, {name: values[rows] for name, values in columns.items()}, folder, compression)
        elif writer is not None:
            write_mds(writer, case, samples[rows], folder, compression)
        elif contender == 'litdata':
            write_litdata(samples, out, processes)
        elif contender == 'webdataset':
            write_webdataset(case, samples[rows], folder)
        else:
            write_plain(columns, out)

    before, begin = cpu(), time.perf_counter()
    if processes == 1 or contender == 'litdata':
        write(slice(None), out)
    else:
        Path(out).mkdir()
        step = -(-len(samples) // processes)
        in_processes(processes, lambda i: write(slice(i * step, (i + 1) * step), f'{out}/{i}'))
        if merge is not None:
            merge(out)
    seconds = time.perf_counter() - begin
    return {'seconds': seconds, 'cpu': cpu() - before, 'samples': len(samples)}


def cpu() -> float:
    """Processor seconds of this process and its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def in_a_process(arguments: list[str]) -> dict[str, float] | None:
    """A run in a fresh process; None if it failed."""
    done = subprocess.run(
        [sys.executable, __file__, '--run', *arguments], capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('rounds', nargs='?', type=int, default=5)
    parser.add_argument('--images', type=int, default=5000, help='files of the folder; 50000 is the full size')
    parser.add_argument('--pixels', type=int, default=256, help='width and height of an image')
    parser.add_argument('--quick', action='store_true', help=f'a {QUICK}th of the tokens and texts')
    parser.add_argument('--cases', nargs='+', choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument('--processes', nargs='+', type=int, default=[1])
    parser.add_argument('--zstd', nargs='+', choices=['no', 'yes'], default=['no', 'yes'])
    parser.add_argument('--contenders', nargs='+', choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument('--json', type=Path)
    arguments = parser.parse_args()
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix='headrace-write-') as root:
        images = Path(root, 'images')
        images.mkdir()
        if 'images' in arguments.cases:
            make_images(images, arguments.images, arguments.pixels)
        counts = {name: count // (QUICK if arguments.quick else 1) for name, count in COUNTS.items()}
        runs = [
            (case, compression, processes, contender)
            for case in arguments.cases
            for compression in ('', 'zstd')
            for processes in arguments.processes
            for contender in arguments.contenders
            if ('yes' if compression else 'no') in arguments.zstd
            and not (compression and contender in PLAIN_ONLY)
            and not (contender == 'a plain file' and (case == 'images' or processes > 1))
        ]
        for number in range(arguments.rounds):
            for case, compression, processes, contender in random.sample(runs, len(runs)):
                out = f'{root}/out'
                count = counts.get(case, arguments.images)
                result = in_a_process([contender, case, compression, str(count), str(images), out, str(processes)])
                shutil.rmtree(out, ignore_errors=True)
                if result is None:
                    continue
                name = ' '.join([case, *filter(None, [compression]), *([f'-j {processes}'] if processes > 1 else [])])
                found.setdefault((name, contender), []).append(result)
                print(
                    f'round {number}: {name}, {contender}: {result["seconds"]:.3f} s, {result["cpu"]:.3f} CPU s',
                    file=sys.stderr,
                    flush=True,
                )
                if arguments.json:
                    rows = [{'case': name, 'contender': who, 'runs': runs} for (name, who), runs in found.items()]
                    arguments.json.write_text(json.dumps(rows, indent=1))
    report(found)


def report(found: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    """Print medians, and the ratios to headrace."""
    out = io.StringIO()
    out.write('| case | contender | samples/s | write is | write_batch is | CPU s | write, CPU | write_batch, CPU |\n')
    out.write('|---|---|---|---|---|---|---|---|\n')

    def median(name: str, contender: str, what: str) -> float:
        runs = found.get((name, contender), [])
        return statistics.median(run[what] for run in runs) if runs else float('nan')

    for name in sorted({name for name, _ in found}):
        for contender in CONTENDERS:
            if (name, contender) not in found:
                continue
            cells = [f'{found[name, contender][0]["samples"] / median(name, contender, "seconds"):,.0f}']
            for what in ('seconds', 'cpu'):
                mine = median(name, contender, what)
                cells += [f'{mine:.2f}'] if what == 'cpu' else []
                cells += [f'{mine / median(name, f"headrace {own}", what):.2f} x' for own in ('write', 'write_batch')]
            out.write(f'| {name} | {contender} | {" | ".join(cells)} |\n')
    print(out.getvalue(), end='')


if __name__ == '__main__':
    if sys.argv[1:2] == ['--run']:
        chosen, case_, compression_, count_, images_, out_, processes_ = sys.argv[2:]
        print(json.dumps(run(chosen, case_, compression_ or None, int(count_), Path(images_), out_, int(processes_))))
    else:
        main()
