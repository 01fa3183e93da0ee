"""`headrace simulate` beside real runs: first batch, waiting, and bytes, over a link of known rate.

    python benchmarks/simulate.py [--json OUT] [--only NAME ...]

Each run is a process of its own, with an empty cache folder and a link of its own in front of an S3 server on the
loopback interface. Its trainer sleeps for the step. The simulation has the same configuration, step, latency and rate.
The clock of both starts when the loader is asked for its first batch. The simulation counts a handshake
for each new connection. The real run has one open already, by which it has read the index.
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
from typing import Any

import numpy as np

from headrace import MDSWriter
from headrace.mixing import build_loader, load_config
from headrace.simulate import Conditions, simulate
from headrace.testing.link import Link
from headrace.testing.servers.s3 import have_rgw, moto_server, rgw_server

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
    parser.add_argument('--child')
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(real(json.loads(arguments.child))))
        return
    rows = {}
    with tempfile.TemporaryDirectory() as folder, (rgw_server if have_rgw() else moto_server)() as server:
        os.environ.update(server.environment())
        bucket = server.new_bucket()
        for data in ('200kb', '1mb', '1mb,zstd'):
            size, _, compression = data.partition(',')
            write(f's3://{bucket}/{name_of(data)}', size, compression or None)
        for name in arguments.only:
            run = {**PLAIN, **RUNS[name], 'bucket': bucket, 'folder': str(Path(folder, name))}
            foreseen = simulated(run, server.endpoint_url)
            with Link(server.endpoint_url, latency=run['latency'], rate=run['rate']) as link:
                command = [sys.executable, __file__, '--child', json.dumps({**run, 'endpoint': link.endpoint_url})]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                seen = {**json.loads(done.stdout.splitlines()[-1]), 'bytes': link.bytes_received}
            rows[name] = {'simulated': foreseen, 'real': seen}
            parts = [f'{key} {foreseen[key]:.4g} / {seen[key]:.4g} = {ratio(foreseen[key], seen[key])}' for key in seen]
            print(f'{name:18}', ', '.join(parts), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


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


def simulated(run: dict[str, Any], endpoint: str) -> dict[str, float]:
    conditions = Conditions(
        step_seconds=run['step'], bandwidth=run['rate'], latency=run['latency'], epochs=run.get('epochs', 1)
    )
    found = simulate(config_of(run, endpoint, run['folder'] + '-simulated'), conditions)
    return {
        'first batch': found.first_batch_seconds,
        'waiting': found.waiting_seconds,
        'total': found.steps[-1].end,
        'bytes': found.fetched_bytes,
    }


def real(run: dict[str, Any]) -> dict[str, float]:
    """A training that sleeps; in a process of its own."""
    loader = build_loader(config_of(run, run['endpoint'], run['folder']))
    waits: list[float] = []
    begin = time.perf_counter()
    for _ in range(run.get('epochs', 1)):
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            if next(batches, None) is None:
                break
            waits.append(time.perf_counter() - asked)
            time.sleep(run['step'])
    return {'first batch': waits[0], 'waiting': sum(waits), 'total': time.perf_counter() - begin}


if __name__ == '__main__':
    main()
