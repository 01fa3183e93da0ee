"""`headrace simulate` beside real runs: first batch, waiting, and bytes, over a link of known rate.

    python benchmarks/simulate.py [--json OUT] [--only NAME ...] [--times 3] [--nice 15]

Each run is a process of its own, with an empty cache folder and a link of its own in front of an S3 server on the
loopback interface. Its trainer sleeps for the step. The simulation has the same configuration, step, latency and rate.
A process measures what else it needs of the machine: the processor time of a request, of a shard and of a batch, and
the start of workers. A step is as long as it was in the real run, since a busy machine sleeps longer than it is told.

The runs take turns, each as often as `--times` says, and the table has the medians. The clock of both sides starts
when the loader is asked for its first batch. The real run has one connection open already, by which it has read the
index.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from headrace import MDSWriter
from headrace.mixing import build_loader, load_config
from headrace.simulate import Conditions, simulate
from headrace.storage import Transfer
from tests.support.servers.link import Link
from tests.support.servers.s3 import have_rgw, moto_server, rgw_server

SAMPLES, SIZE = 6_000, 4_000  # 24 MB
PLAIN: dict[str, Any] = {'rate': 4e6, 'latency': 0.02, 'step': 0.02, 'workers': 0, 'batch': 32, 'data': '1mb'}
RUNS: dict[str, dict[str, Any]] = {
    'network bound': {},
    'step bound': {'step': 0.06},
    'balanced': {'step': 0.033},
    'shuffled': {'shuffle': True},
    'shuffled, narrow': {'shuffle': True, 'shuffle_block_size': 1000, 'step': 0.033},
    'small shards': {'data': '200kb', 'latency': 0.05},
    'two workers': {'workers': 2, 'step': 0.033},
    'compressed': {'data': '1mb,zstd'},
    'cache limit': {'shuffle': True, 'shuffle_block_size': 1000, 'cache_limit': '8mb', 'epochs': 2},
    'far away': {'latency': 0.3, 'step': 0.04},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--json', type=Path)
    parser.add_argument('--only', nargs='*', default=list(RUNS))
    parser.add_argument('--times', type=int, default=3, help='real runs of each kind; their median counts')
    parser.add_argument('--nice', type=int, default=0, help='priority over other processes of the machine, as root')
    parser.add_argument('--child')
    arguments = parser.parse_args()
    if arguments.child:
        run = json.loads(arguments.child)
        print(json.dumps(measured(run) if 'samples' in run else real(run)))
        return
    if arguments.nice:
        os.nice(-arguments.nice)
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in ['machine', *arguments.only]}
    with tempfile.TemporaryDirectory() as folder, (rgw_server if have_rgw() else moto_server)() as server:
        os.environ.update(server.environment())
        bucket = server.new_bucket()
        for data in ('200kb', '1mb', '1mb,zstd'):
            size, _, compression = data.partition(',')
            write(f's3://{bucket}/{name_of(data)}', size, compression or None)
        plain = {**PLAIN, 'bucket': bucket}
        runs = {
            'machine': {'data': '200kb', 'rate': None, 'samples': 40},
            **{name: RUNS[name] for name in seen if name in RUNS},
        }
        for time_ in range(arguments.times):
            for name, run in runs.items():
                found = child({**plain, **run, 'folder': str(Path(folder, f'{name} {time_}'))}, server)
                seen[name].append(found)
                print(f'{name:18}', ', '.join(f'{key} {value:.4g}' for key, value in found.items()), flush=True)
        medians = {name: {key: median(run[key] for run in found) for key in found[0]} for name, found in seen.items()}
        machine = medians.pop('machine')
        foreseen = {
            name: simulated(
                {**plain, **RUNS[name], 'step': found['step'], 'folder': str(Path(folder, name))},
                server.endpoint_url,
                machine,
            )
            for name, found in medians.items()
        }
    print('\n'.join(table(foreseen, medians)))
    if arguments.json:
        rows = {name: {'simulated': foreseen[name], 'real': medians[name], 'runs': seen[name]} for name in foreseen}
        arguments.json.write_text(json.dumps({'machine': machine, 'runs': rows}, indent=1))


def child(run: dict[str, Any], server: Any) -> dict[str, float]:
    """Results of a separate process over its own link, and the bytes of the link."""
    with Link(server.endpoint_url, latency=run['latency'], rate=run['rate']) as link:
        command = [sys.executable, __file__, '--child', json.dumps({**run, 'endpoint': link.endpoint_url})]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return {**json.loads(done.stdout.splitlines()[-1]), 'bytes': link.bytes_received}


def table(foreseen: dict[str, dict[str, float]], seen: dict[str, dict[str, float]]) -> list[str]:
    """Rows of Markdown. The difference of the waiting is also given as a share of the real run's time."""
    rows = ['| run | first batch | total | waiting | difference / total | bytes |', '|---|---|---|---|---|---|']
    for name, real_ in seen.items():
        cells = [
            f'{foreseen[name][key]:.2f} s / {real_[key]:.2f} s = {ratio(foreseen[name][key], real_[key])}'
            for key in ('first batch', 'total', 'waiting')
        ]
        share = (foreseen[name]['waiting'] - real_['waiting']) / real_['total']
        sizes = foreseen[name]['bytes'], real_['bytes']
        of_bytes = f'{sizes[0] / 1e6:.1f} MB / {sizes[1] / 1e6:.1f} MB = {ratio(*sizes)}'
        rows.append(f'| {name} | {" | ".join(cells)} | {100 * share:+.1f} % | {of_bytes} |')
    return rows


def name_of(data: str) -> str:
    return data.replace(',', '-')


def ratio(foreseen: float, seen: float) -> str:
    return f'{foreseen / seen:.2f}' if seen else 'both 0' if not foreseen else 'none'


def write(url: str, size_limit: str, compression: str | None) -> None:
    """Numbers of 4 bits, which zstd halves."""
    values = np.random.default_rng(1).integers(0, 16, (SAMPLES, SIZE), np.uint8)
    columns = {'x': f'ndarray:uint8:{SIZE}'}
    with MDSWriter(out=url, columns=columns, size_limit=size_limit, compression=compression) as writer:
        writer.write_batch({'x': values})


def config_of(run: dict[str, Any], endpoint: str, cache: str) -> Any:
    train = {
        'remote': f's3://{run["bucket"]}/{name_of(run["data"])}',
        'local': cache,
        'endpoint_url': endpoint,
        'loader': {'num_workers': run['workers']},
        **{key: run[key] for key in ('shuffle', 'shuffle_block_size', 'cache_limit') if key in run},
    }
    return load_config({'global_batch_size': run['batch'], 'train': train}).train


def simulated(run: dict[str, Any], endpoint: str, machine: dict[str, float]) -> dict[str, float]:
    conditions = Conditions(
        step_seconds=run['step'],
        bandwidth=run['rate'],
        latency=run['latency'],
        epochs=run.get('epochs', 1),
        request_seconds=machine['request'],
        publish_seconds=machine['publish'],
        read_seconds=machine['read'],
        receive_seconds=machine['receive'],
        start_seconds=machine['start'],
    )
    found = simulate(config_of(run, endpoint, run['folder'] + '-simulated'), conditions)
    return {
        'first batch': found.first_batch_seconds,
        'waiting': found.waiting_seconds,
        'total': found.steps[-1].end,
        'bytes': found.fetched_bytes,
    }


def measured(run: dict[str, Any]) -> dict[str, float]:
    """Times of this machine that a simulation needs, in seconds.

    The link has no limit of its rate, so a small shard comes at once after the latency. The batches are those of a
    training from cached shards, after a step each: a processor that has slept makes them more slowly.
    """
    loader = build_loader(config_of(run, run['endpoint'], run['folder']))
    stream = loader.dataset.pool.streams[0]
    cache, requests, publishes = stream.cache, list[float](), list[float]()
    for shard in range(run['samples']):
        came = list[float]()
        how = Transfer(almost_done=lambda came=came: came.append(time.perf_counter()))
        begin = time.perf_counter()
        cache.fetch(stream.entries[shard], how=how)
        requests.append(came[0] - begin - run['latency'])
        publishes.append(time.perf_counter() - came[0])
    list(loader)  # fetches the rest
    reads = waits_of(loader, run['step'])[0][1:]
    with_workers = config_of({**run, 'workers': 2}, run['endpoint'], run['folder'])
    first, *receives = waits_of(build_loader(with_workers), run['step'])[0]
    return {
        'request': median(requests),
        'publish': median(publishes),
        'read': fmean(reads),
        'receive': fmean(receives),
        'start': first - fmean(reads) - fmean(receives),
    }


def waits_of(loader: Any, step: float) -> tuple[list[float], list[float]]:
    """The wait for each batch of an epoch, and the time of each step, which a busy machine makes longer."""
    waits, steps, batches = list[float](), list[float](), iter(loader)
    while True:
        asked = time.perf_counter()
        if next(batches, None) is None:
            return waits, steps
        got = time.perf_counter()
        time.sleep(step)
        waits.append(got - asked)
        steps.append(time.perf_counter() - got)


def real(run: dict[str, Any]) -> dict[str, float]:
    """A training that sleeps; in a process of its own."""
    loader = build_loader(config_of(run, run['endpoint'], run['folder']))
    waits, steps = list[float](), list[float]()
    begin = time.perf_counter()
    for _ in range(run.get('epochs', 1)):
        of_epoch = waits_of(loader, run['step'])
        waits += of_epoch[0]
        steps += of_epoch[1]
    total = time.perf_counter() - begin
    return {'first batch': waits[0], 'waiting': sum(waits), 'total': total, 'step': fmean(steps)}


if __name__ == '__main__':
    main()
