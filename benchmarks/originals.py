"""Known datasets: made originals with broken members, converted, killed and restarted, and verified.

    python benchmarks/originals.py [--records 1000] [--rounds 3] [--only imagenet coco] [--json OUT]

The originals have the layout of their owners, and images of 224 pixels. For each one:

- conversions with one and with four processes, in turns; the figures are medians, and the files are equal;
- a conversion that is killed at the half of its steps; the same call then gives equal files;
- `headrace verify` of each split.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from headrace.cli.datasets import ORIGINALS
from headrace.convert import ConversionReport
from headrace.inspect import verify
from headrace.originals.original import Original
from tests.support.originals import text_originals as text
from tests.support.originals import vision_originals as vision
from tests.support.originals.laion_originals import make_laion
from tests.support.originals.webvid_originals import make_webvid
from tests.support.programs.killed_children import in_a_child
from tests.support.servers.image_server import image_server
from tests.support.sources.sources_to_convert import digests

SIZE = {'width': 224, 'height': 224}
WORKERS = (1, 4)

Make = Callable[[Path, int], object]


def make_tars(root: Path, records: int) -> None:
    vision.make_imagenet_tars(root, train=records, val=records // 10, classes=20, **SIZE)


SERVERS = contextlib.ExitStack()
"""They end with this process."""


def make_laion_here(root: Path, records: int) -> None:
    make_laion(root, SERVERS.enter_context(image_server()), records)


OPTIONS: dict[str, dict[str, Any]] = {
    'laion400m': {'user_agent': 'headrace-benchmark/1', 'private_hosts': True, 'per_host': 16}
}
MAKERS: dict[str, tuple[str, Make, str]] = {
    'ImageNet, folders': (
        'imagenet',
        lambda root, records: vision.make_imagenet(root, train=records, val=records // 10, classes=20, **SIZE),
        '',
    ),
    'ImageNet, tars': ('imagenet', make_tars, ''),
    'CIFAR-10': ('cifar10', lambda root, records: vision.make_cifar10(root, rows=records // 5), ''),
    'COCO': ('coco', lambda root, records: vision.make_coco(root, train=records, val=records // 10, **SIZE), ''),
    'ADE20K': (
        'ade20k',
        lambda root, records: vision.make_ade20k(root, train=records, val=records // 10, **SIZE),
        '',
    ),
    'WebVid': ('webvid', lambda root, records: make_webvid(root, rows=records), 'results_2M_train.csv'),
    'LAION-400M': ('laion400m', make_laion_here, ''),
    'English Wikipedia': ('enwiki', lambda root, records: text.make_enwiki(root, articles=records * 5 // 4), ''),
    'C4': ('c4', lambda root, records: text.make_c4(root, train=records, val=records // 10), ''),
    'the Pile': ('pile', lambda root, records: text.make_pile(root, train=records, other=records // 10), ''),
}
"""By title: the name of the dataset, how to make an original, and the path of IN within it."""


def measure(title: str, records: int, rounds: int) -> dict[str, Any]:
    """The figures of one dataset."""
    name, make, within = MAKERS[title]
    original: Original = __import__(ORIGINALS[name], fromlist=['ORIGINAL']).ORIGINAL
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root / 'in', records)
        source = root / 'in' / within

        def convert(out: str, workers: int = 1) -> dict[str, ConversionReport]:
            return original.convert(
                source, root / out, workers=workers, size_limit=1 << 20, progress_bar=False, **OPTIONS.get(name, {})
            )

        reports = convert('first')
        expected = digests(root / 'first')
        seconds: dict[int, list[float]] = {workers: [] for workers in WORKERS}
        for _ in range(rounds):
            for workers in WORKERS:
                found = convert('again', workers)
                seconds[workers].append(sum(report.seconds for report in found.values()))
                assert digests(root / 'again') == expected, f'{title}: {workers} workers gave other files'
                shutil.rmtree(root / 'again')
        _, steps = in_a_child(lambda: convert('counted'), 0, str(root / 'counted'))
        status, _ = in_a_child(lambda: convert('killed'), steps // 2, str(root / 'killed'))
        assert status == 9
        kept = sum(report.tasks_done_before for report in convert('killed').values())
        assert digests(root / 'killed') == expected, f'{title}: a restart gave other files'
        splits = [root / 'first' / split for split in reports]
        assert all(verify(split).is_good for split in splits), f'{title}: verify failed'
    rows = sum(report.rows for report in reports.values())
    rates = {workers: rows / statistics.median(found) for workers, found in seconds.items()}
    return {
        'title': title,
        'records': rows,
        'broken': sum(report.num_errors for report in reports.values()),
        'bytes': sum(report.raw_bytes for report in reports.values()),
        'shards': sum(report.shards for report in reports.values()),
        'records_per_second': {str(workers): round(rate) for workers, rate in rates.items()},
        'tasks_kept_by_restart': kept,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--records', type=int, default=1000)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--only', nargs='+', choices=sorted({name for name, _, _ in MAKERS.values()}))
    parser.add_argument('--json', type=Path)
    arguments = parser.parse_args()
    logging.getLogger('headrace').setLevel(logging.ERROR)
    found: list[dict[str, Any]] = []
    print('| dataset | records | broken | MB | records/s, 1 process | 4 processes | tasks that the restart kept |')
    print('|---|---|---|---|---|---|---|')
    for title, (name, _, _) in MAKERS.items():
        if arguments.only is None or name in arguments.only:
            one = measure(title, arguments.records, arguments.rounds)
            found.append(one)
            rates = one['records_per_second']
            print(
                f'| {title} | {one["records"]:,} | {one["broken"]} | {one["bytes"] / 1e6:.1f} | {rates["1"]:,} | '
                f'{rates["4"]:,} | {one["tasks_kept_by_restart"]} |',
                flush=True,
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == '__main__':
    main()
