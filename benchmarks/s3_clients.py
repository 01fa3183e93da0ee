"""Clients of S3: boto3 as headrace uses it, beside boto3's own downloads and obstore's.

    pip install obstore; apt-get install nginx-light
    python benchmarks/s3_clients.py [ROUNDS] [--json OUT]

Objects of 64 KiB, 2 MiB and 64 MiB lie behind nginx on the loopback interface, which takes next to no processor time:
what is measured is the client. Requests are not signed. Once it answers at once, once behind a
`tests.support.servers.link.Link` with a round trip of 20 ms. Each run is a process of its own that makes its client and
one request first, then moves all objects of one size into files in memory, four at a time. Rounds are interleaved in a
random order.

- headrace: `headrace.storage.download`: boto3's `get_object`, ranges of 8 MiB in parallel
- boto3: `download_file`, its defaults
- obstore ranges: `get_range` for the same ranges, from as many threads
- obstore stream: `get`, and its stream's chunks of a MiB

"speed" is that of headrace's median time over the client's: above 1 the client is faster than headrace. "CPU" is the
processor time of the client's process, all threads, over headrace's: below 1 the client is cheaper than headrace.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.servers.link import Link
from tests.support.servers.process import free_port, running, wait_for_port

BUCKET = 'bucket'
OBJECTS = {'64 KiB': (1 << 16, 200), '2 MiB': (1 << 21, 60), '64 MiB': (1 << 26, 6)}
"""Bytes of an object, and how many there are."""
RANGE, THREADS, AT_ONCE = 8 << 20, 8, 4
NGINX = """
daemon off; pid {root}/pid; error_log {root}/error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off; sendfile on; keepalive_requests 1000000;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    server {{ listen 127.0.0.1:{port}; root {root}/objects; }}
}}
"""

Fetch = Callable[[str, int, Path], Any]
Results = dict[tuple[str, str], dict[str, list[dict[str, float]]]]


def headrace(url: str) -> Fetch:
    from headrace.storage import Retry, StoreOptions, download, open_store

    store = open_store(f's3://{BUCKET}', StoreOptions(endpoint_url=url, anonymous=True))

    def fetch(key: str, size: int, path: Path) -> None:
        with path.open('wb') as out:
            download(store, key, out, size=size, retry=Retry())

    return fetch


def boto3(url: str) -> Fetch:
    from boto3 import client
    from botocore import UNSIGNED
    from botocore.config import Config

    checks = {'response_checksum_validation': 'when_required', 'request_checksum_calculation': 'when_required'}
    made = client(
        's3',
        endpoint_url=url,
        region_name='us-east-1',
        config=Config(signature_version=UNSIGNED, max_pool_connections=32, **checks),
    )
    return lambda key, _, path: made.download_file(BUCKET, key, str(path))


def obstore(url: str) -> Any:
    from obstore.store import S3Store

    return S3Store(BUCKET, endpoint=url, region='us-east-1', skip_signature=True, client_options={'allow_http': True})


def obstore_ranges(url: str) -> Fetch:
    from obstore import get_range

    store, pool = obstore(url), ThreadPoolExecutor(THREADS)

    def fetch(key: str, size: int, path: Path) -> None:
        with path.open('wb') as out:

            def part(start: int) -> None:
                end = min(start + RANGE, size)
                os.pwrite(out.fileno(), get_range(store, key, start=start, end=end), start)

            list(pool.map(part, range(0, size, RANGE)))

    return fetch


def obstore_stream(url: str) -> Fetch:
    from obstore import get

    store = obstore(url)

    def fetch(key: str, _: int, path: Path) -> None:
        with path.open('wb') as out:
            for chunk in get(store, key).stream(min_chunk_size=1 << 20):
                out.write(chunk)

    return fetch


CLIENTS: dict[str, Callable[[str], Fetch]] = {
    'headrace': headrace,
    'boto3': boto3,
    'obstore ranges': obstore_ranges,
    'obstore stream': obstore_stream,
}


def folder_of(kind: str) -> str:
    """Where objects of a kind lie."""
    return kind.replace(' ', '')


def run_here(client: str, url: str, kind: str) -> dict[str, float]:
    """Move all objects of a kind once; returns seconds, and seconds of processor time."""
    fetch, (size, count) = CLIENTS[client](url), OBJECTS[kind]
    with tempfile.TemporaryDirectory(dir='/dev/shm') as folder, ThreadPoolExecutor(AT_ONCE) as pool:

        def move(number: int) -> None:
            path = Path(folder, str(number))
            fetch(f'{folder_of(kind)}/{number}', size, path)
            if path.stat().st_size != size:
                raise RuntimeError(f'{client} moved {path.stat().st_size} bytes of {size}.')
            path.unlink()

        move(0)
        before, begin = processor_time(), time.monotonic()
        list(pool.map(move, range(count)))
        return {'seconds': time.monotonic() - begin, 'cpu': processor_time() - before}


def processor_time() -> float:
    """Seconds that all threads of this process have used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def server() -> Generator[str]:
    """nginx with the objects; its URL."""
    with tempfile.TemporaryDirectory(dir='/dev/shm') as root:
        Path(root).chmod(0o755)
        for kind, (size, count) in OBJECTS.items():
            folder = Path(root, 'objects', BUCKET, folder_of(kind))
            folder.mkdir(parents=True)
            (folder / '0').write_bytes(os.urandom(size))
            for number in range(1, count):
                os.link(folder / '0', folder / str(number))
        port = free_port()
        Path(root, 'nginx.conf').write_text(NGINX.format(root=root, port=port))
        with running(['nginx', '-e', f'{root}/error.log', '-c', f'{root}/nginx.conf']) as process:
            wait_for_port(port, process)
            yield f'http://127.0.0.1:{port}'


def run(client: str, url: str, kind: str) -> dict[str, float]:
    """The same in a process of its own."""
    arguments = [sys.executable, __file__, '--one', client, url, kind]
    return json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def table(results: Results) -> str:
    """Markdown."""
    header = ['server', 'objects', 'headrace, MB/s', 'CPU s per GB']
    header += [f'{client}: speed, CPU' for client in CLIENTS if client != 'headrace']
    lines = [header, ['---'] * len(header)]
    for (place, kind), runs in results.items():
        moved = OBJECTS[kind][0] * OBJECTS[kind][1]
        seconds, cpu = (
            {client: statistics.median(run[what] for run in found) for client, found in runs.items()}
            for what in ('seconds', 'cpu')
        )
        line = [place, kind, f'{moved / seconds["headrace"] / 1e6:.0f}']
        line.append(f'{cpu["headrace"] / moved * 1e9:.2f}')
        line += [
            f'{seconds["headrace"] / seconds[client]:.2f} x, {cpu[client] / cpu["headrace"]:.2f} x'
            for client in runs
            if client != 'headrace'
        ]
        lines.append(line)
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('rounds', type=int, nargs='?', default=5)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--one', nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_here(*options.one)))
        return
    if not shutil.which('nginx'):
        parser.error('nginx is not installed. Run: apt-get install nginx-light')
    with server() as url, Link(url, latency=0.02) as link:
        places = {'at once': url, '20 ms': link.endpoint_url}
        cases = [(place, kind) for place in places for kind in OBJECTS]
        results: Results = {case: {client: [] for client in CLIENTS} for case in cases}
        for number in range(options.rounds):
            runs = [(case, client) for case in cases for client in CLIENTS]
            random.shuffle(runs)
            for (place, kind), client in runs:
                results[place, kind][client].append(run(client, places[place], kind))
            print(f'round {number + 1} of {options.rounds}', file=sys.stderr)
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps([[*case, runs] for case, runs in results.items()]))


if __name__ == '__main__':
    main()
