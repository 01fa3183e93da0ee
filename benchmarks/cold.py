"""The first epoch on a fresh machine: headrace beside mosaicml-streaming and litdata, from S3 over a slow link.

    python benchmarks/cold.py [ROUNDS] [--shard 2mb] [--window 4] [--tables cold,nodes,cache] [--json OUT] ...

An S3 server on the loopback interface (Ceph's RADOS gateway if it is installed, else moto) stands behind a
`tests.support.servers.link.Link`: a round trip of 20 ms, and 25 MB/s for all connections together. The samples are rows
of 2,048 tokens, int32, the first of which is the sample's number. headrace's `MDSWriter` writes the objects that
headrace and mosaicml-streaming read, litdata's `BinaryWriter` those of litdata. Each run is a process of its own with a
link of its own and an empty cache folder, and rounds are interleaved; figures are medians over rounds.

**cold**: one rank, 2 workers, batches of 64 samples, one shuffled epoch. The clock starts when all modules are
imported, before the dataset is made. The consumer takes the first batch when it is there and then one each `pace`
seconds; if a batch comes late, all later ones are due later. The pace is 99 % of the rate of the link: a loader whose
transfers never pause, and come in the order in which it needs them, is never late then, and one that loses more time
than its first batch gave it in advance is. Faster, the link itself would be late; slower would forgive pauses.

- "must" is what the first batch takes on the link: three round trips (handshake, index, shards) and the bytes of the
  index and of the shards that the first batch has samples of, found by the samples' numbers; headrace's are checked
  against its plan.
- "late" counts the batches after the first that came more than 5 ms after they were due, and sums how much.
- "bytes" are those that came over the link, heads of answers included, over those of the data set.
- "total" is the time to the end of the last batch's step, over that of the data set's bytes at the link's rate.
- "the link itself" is no loader: when headrace's shards could be there at best, in the order of their first use.
- "headrace, local" reads the same shards from a folder at the same pace: what the machine is late by itself.

What the contenders are given:

- headrace: its defaults, but for `num_canonical_nodes=1` and `shuffle_block_size`, the window.
- mosaicml-streaming: its default order (py1e) with the same window and canonical nodes, and a `predownload` of 16
  shards, as its default, 8 batches, is 2 shards here; a worker of it downloads one shard at a time. Its dataset is made
  to close the connection of the index before workers are forked, which it omits.
- litdata: `TokensLoader`, which reads rows without unpickling; `max_pre_download=16`, which it raises by itself to all
  chunks that fit 3 GB; its default downloads, by obstore, 8 at a time in each worker, which are told to allow plain
  HTTP. Its shuffle has a window of one chunk for each worker and cannot be made wider, so its first batch needs the
  fewest bytes.

**nodes**: 1, 2 and 4 nodes of one rank, each a process with a cache folder (and for mosaicml-streaming, as root, a
/dev/shm) of its own, that read one epoch with a global batch of 64 as fast as they can, over a link without a limit.
There are 4 canonical nodes, hence 3 boundaries at which a shard may belong to two. "more than once": shards that lie in
more than one node's folder at the end; "needed": those that have samples for more than one node.

**cache**: one rank reads two epochs over a link without a limit of bandwidth, as fast as it can and at a pace, with and
without a `cache_limit` of a third of the data set. Without a limit the second epoch fetches nothing, and its rate is
that of reading alone; with one it fetches two thirds again, as the first does, so it is shown beside both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

LENGTH = 2048
ROW = 4 * LENGTH
BATCH = 64
WORKERS = 2
LATE = 0.005
PACE = 0.99
CONTENDERS = ('headrace', 'mosaicml-streaming', 'litdata')
LOCAL = 'headrace, local'
NODES = (1, 2, 4)


# -- the data ----------------------------------------------------------------------------------------------------------


def rows(count: int) -> Iterator[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    for number in range(count):
        row = rng.integers(0, 50_257, LENGTH, dtype=np.int32)
        row[0] = number
        yield row


def write_mds(folder: Path, count: int, in_shard: int) -> None:
    from headrace import MDSWriter

    columns = {'tokens': f'ndarray:int32:{LENGTH}'}
    # Besides its row a sample has an offset, and a shard a head.
    limit = in_shard * (ROW + 4) + 4096
    with MDSWriter(out=str(folder), columns=columns, size_limit=limit) as writer:
        for row in rows(count):
            writer.write({'tokens': row})


def write_litdata(folder: Path, count: int, in_shard: int) -> None:
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir(parents=True)
    writer = BinaryWriter(str(folder), chunk_size=LENGTH * in_shard, item_loader=TokensLoader(block_size=LENGTH))
    for number, row in enumerate(rows(count)):
        writer[number] = torch.from_numpy(row)
    writer.done()
    writer.merge(1)


@dataclass(frozen=True)
class Data:
    """One contender's objects."""

    folder: Path
    url: str

    @property
    def size(self) -> int:
        """Bytes of all objects."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def shards(self) -> list[tuple[str, int, int]]:
        """Name, samples and bytes of each shard, in stored order."""
        index = json.loads((self.folder / 'index.json').read_text())
        if 'shards' in index:
            return [(one['raw_data']['basename'], one['samples'], one['raw_data']['bytes']) for one in index['shards']]
        return [
            (one['filename'], one['dim'] // LENGTH, (self.folder / one['filename']).stat().st_size)
            for one in index['chunks']
        ]

    def shards_of(self, ids: Sequence[int]) -> list[int]:
        """Numbers of the shards that hold these samples."""
        ends = np.cumsum([samples for _, samples, _ in self.shards()])
        return np.unique(np.searchsorted(ends, ids, side='right')).tolist()

    def must(self, ids: Sequence[int], rate: float, latency: float) -> float:
        """Seconds that the first batch takes on the link at best."""
        sizes = [size for _, _, size in self.shards()]
        needed = sum(sizes[shard] for shard in self.shards_of(ids))
        return 3 * latency + (needed + (self.folder / 'index.json').stat().st_size) / rate


@contextlib.contextmanager
def store() -> Generator[Any]:
    from tests.support.servers.s3 import have_rgw, moto_server, rgw_server

    with rgw_server() if have_rgw() else moto_server() as server:
        yield server


def upload(server: Any, folder: Path, bucket: str, prefix: str) -> Data:
    for path in sorted(folder.iterdir()):
        server.client().upload_file(str(path), bucket, f'{prefix}/{path.name}')
    return Data(folder, f's3://{bucket}/{prefix}')


# -- the contenders, each in a process of its own ----------------------------------------------------------------------


def headrace_loader(run: Mapping[str, Any]) -> Any:
    from headrace import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        remote=run['url'],
        local=run['cache'],
        batch_size=run['batch'],
        shuffle=True,
        shuffle_block_size=run['window'],
        num_canonical_nodes=run['canonical_nodes'],
        cache_limit=run.get('cache_limit'),
    )
    epochs = run.get('epochs', 1)
    return StreamingDataLoader(
        dataset, batch_size=run['batch'], num_workers=WORKERS, persistent_workers=epochs > 1, max_epochs=epochs
    )


def mosaicml_loader(run: Mapping[str, Any]) -> Any:
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        remote=run['url'],
        local=run['cache'],
        batch_size=run['batch'],
        shuffle=True,
        shuffle_block_size=run['window'],
        num_canonical_nodes=run['canonical_nodes'],
        predownload=16 * run['in_shard'],
    )
    for stream in dataset.streams:
        # Else forked workers share the connection over which the index came, and mix up the answers: samples then hold
        # heads of HTTP answers, or are those of another shard.
        stream._downloader.clean_up()
    return StreamingDataLoader(dataset, batch_size=run['batch'], num_workers=WORKERS)


def litdata_loader(run: Mapping[str, Any]) -> Any:
    import litdata
    from litdata.streaming.item_loader import TokensLoader

    dataset = litdata.StreamingDataset(
        run['url'],
        cache_dir=run['cache'],
        item_loader=TokensLoader(block_size=LENGTH),
        shuffle=True,
        drop_last=False,
        storage_options={
            'endpoint_url': os.environ['S3_ENDPOINT_URL'],
            'aws_access_key_id': os.environ['AWS_ACCESS_KEY_ID'],
            'aws_secret_access_key': os.environ['AWS_SECRET_ACCESS_KEY'],
            'region_name': os.environ['AWS_DEFAULT_REGION'],
        },
        max_pre_download=16,
        max_cache_size='1TB',
    )
    return litdata.StreamingDataLoader(dataset, batch_size=run['batch'], num_workers=WORKERS)


def prepare(contender: str) -> Any:
    """Import what the contender will; returns what makes its loader."""
    import boto3.s3.transfer  # noqa: F401 - imports are not what is measured
    import torch

    torch.set_num_threads(1)
    if contender == 'litdata':
        import litdata  # noqa: F401
        import obstore.store  # noqa: F401
        from litdata.streaming import downloader

        # It gives no way to have its downloads by obstore speak plain HTTP.
        downloader._OBSTORE_CLIENT_OPTIONS['allow_http'] = True
        return litdata_loader
    if contender == 'mosaicml-streaming':
        import streaming  # noqa: F401
        import torch.distributed as dist

        if 'WORLD_SIZE' in os.environ:  # else it would make a process group, and end it again, several times
            dist.init_process_group('gloo')
        return mosaicml_loader
    import headrace.storage.stores.s3  # noqa: F401

    return headrace_loader


def consume(batches: Iterable[Any], pace: float, start: float) -> dict[str, Any]:
    """Take batches at a pace."""
    ids: list[int] = []
    late: list[float] = []
    due = first = 0.0
    first_ids: list[int] = []
    for batch in batches:
        now = time.perf_counter()
        tokens = batch['tokens'] if isinstance(batch, dict) else batch
        found = tokens[:, 0].tolist()
        if not ids:
            first, due, first_ids = now, now, found
        else:
            late.append(max(0.0, now - due))
            if now - due > LATE:
                due = now
        ids += found
        due += pace
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
    return {
        'first': first - start,
        'total': max(due, time.perf_counter()) - start,
        'rows': len(ids),
        'first_ids': first_ids,
        'stalls': sum(one > LATE for one in late),
        'late': sum(one for one in late if one > LATE),
        'latest': max(late, default=0.0),
        'lates': [[number, round(one, 4)] for number, one in enumerate(late, 1) if one > LATE],
        'ids': ids,
    }


def check(ids: Sequence[int], count: int) -> dict[str, int]:
    """How many samples an epoch lacks, how many it has too often, and how many are no samples of the data."""
    known = [number for number in ids if 0 <= number < count]
    missing = count - len(set(known))
    return {'missing': missing, 'repeated': len(known) + missing - count, 'foreign': len(ids) - len(known)}


def run_here(run: dict[str, Any]) -> dict[str, Any]:
    """The program of one process."""
    make = prepare(run['contender'])
    start = time.perf_counter()
    loader = make(run)
    results = [consume(loader, run['pace'], start)]
    results += [consume(loader, run['pace'], time.perf_counter()) for _ in range(1, run.get('epochs', 1))]
    if run['contender'] == 'headrace':
        stats = loader.stats()
        results[-1]['stats'] = {
            name: getattr(stats, name)
            for name in ('bytes_downloaded', 'requests', 'shards_fetched', 'cache_hits', 'evictions', 'retries')
        }
        if run.get('explain'):
            # Which shards each batch needs first, to say what the link would take.
            plan = loader.plan(0)
            seen: set[int] = set()
            news: list[list[int]] = []
            for number in range(plan.num_batches):
                shards = np.unique(loader.dataset.locate(plan.ids(number))[0]).tolist()
                news.append([shard for shard in shards if shard not in seen])
                seen.update(shards)
            results[0]['news'] = news
            results[0]['planned'] = sorted(plan.ids(0).tolist()) == sorted(results[0]['first_ids'])
    return {'epochs': results}


def launch(run: dict[str, Any], environ: Mapping[str, str]) -> Any:
    """Begin a run in a new process."""
    command = [sys.executable, '-W', 'ignore', __file__, '--run', json.dumps(run)]
    if run['contender'] == 'mosaicml-streaming' and os.geteuid() == 0 and shutil.which('unshare'):
        # It takes names in shared memory that others on this machine may have, and leaves some behind.
        command = ['unshare', '-m', 'sh', '-c', 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', 'sh', *command]
    return subprocess.Popen(
        command,
        env={**os.environ, 'OMP_NUM_THREADS': '1', **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: Any, timeout: float = 600) -> dict[str, Any]:
    """The result of a process that was launched."""
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith('RESULT ')]
    if process.returncode or not lines:
        raise RuntimeError(f'A run failed ({process.returncode}):\n{errors[-3000:]}')
    return json.loads(lines[-1].removeprefix('RESULT '))


@contextlib.contextmanager
def reported(what: str) -> Generator[None]:
    """A run that fails leaves the others."""
    try:
        yield
    except RuntimeError as error:
        print(f'{what}: {error}', file=sys.stderr)


class Bench:
    """Common parts of all tables."""

    def __init__(self, arguments: argparse.Namespace, server: Any, folder: Path) -> None:
        from headrace.format import bytes_to_int

        self.arguments, self.server, self.folder = arguments, server, folder
        self.count: int = arguments.samples
        self.in_shard = max(1, bytes_to_int(arguments.shard) // ROW)
        self.window = arguments.window * self.in_shard
        self.rate: float = arguments.rate * 1e6
        self.latency: float = arguments.latency / 1e3
        bucket = server.new_bucket()
        write_mds(folder / 'mds', self.count, self.in_shard)
        self.data = {'headrace': upload(server, folder / 'mds', bucket, 'mds')}
        self.data['mosaicml-streaming'] = self.data['headrace']
        if 'litdata' in arguments.contenders and 'cold' in arguments.tables:
            write_litdata(folder / 'litdata', self.count, self.in_shard)
            self.data['litdata'] = upload(server, folder / 'litdata', bucket, 'litdata')
        self.size = self.data['headrace'].size
        self.batches = math.ceil(self.count / BATCH)

    def environ(self, link: Any) -> dict[str, str]:
        return {
            **self.server.environment(),
            'AWS_DEFAULT_REGION': 'us-east-1',
            'S3_ENDPOINT_URL': link.endpoint_url,
            'AWS_ENDPOINT_URL': link.endpoint_url,
        }

    def link(self, *, limited: bool = True) -> Any:
        from tests.support.servers.link import Link

        return Link(self.server.endpoint_url, latency=self.latency, rate=self.rate if limited else None)

    @contextlib.contextmanager
    def cache(self) -> Generator[Path]:
        found = Path(tempfile.mkdtemp(prefix='cache-', dir=self.folder))
        try:
            yield found
        finally:
            shutil.rmtree(found, ignore_errors=True)

    def run(self, contender: str, **options: Any) -> dict[str, Any]:
        """The settings of a run."""
        return {
            'contender': contender,
            'url': self.data[contender].url,
            'batch': BATCH,
            'window': self.window,
            'in_shard': self.in_shard,
            'canonical_nodes': 1,
            'pace': 0.0,
            **options,
        }


# -- cold --------------------------------------------------------------------------------------------------------------


def ideal(bench: Bench, news: Sequence[Sequence[int]], pace: float) -> dict[str, Any]:
    """A consumer's times if shards came one after another over a link that never rests."""
    data = bench.data['headrace']
    sizes = [size for _, _, size in data.shards()]
    there = 3 * bench.latency + (data.folder / 'index.json').stat().st_size / bench.rate
    due = first = late = 0.0
    stalls = 0
    for number, shards in enumerate(news):
        there += sum(sizes[shard] for shard in shards) / bench.rate
        if not number:
            first = due = there
        elif there - due > LATE:
            stalls, late, due = stalls + 1, late + there - due, there
        due += pace
    return {'first': first, 'must': first, 'stalls': stalls, 'late': late, 'total': due, 'bytes': bench.size}


def cold_run(bench: Bench, contender: str, pace: float) -> dict[str, Any]:
    is_local = contender == LOCAL
    of = 'headrace' if is_local else contender
    data = bench.data[of]
    with bench.link() as link, bench.cache() as cache:
        where = {'cache': str(data.folder), 'url': None} if is_local else {'cache': str(cache)}
        settings = bench.run(of, pace=pace, explain=of == 'headrace', **where)
        found = finish(launch(settings, bench.environ(link)))['epochs'][0]
        link.wait_idle()
        found['bytes'] = link.bytes_received
        found['connections'] = link.connections
        found['link_processor_time'] = link.processor_time()
    found |= check(found.pop('ids'), bench.count)
    found['must'] = data.must(found['first_ids'], bench.rate, bench.latency)
    found['size'] = data.size
    return found


def cold(bench: Bench) -> tuple[str, dict[str, Any]]:
    pace = bench.size / bench.rate / bench.batches / PACE
    contenders = [name for name in (*CONTENDERS, LOCAL) if name in bench.arguments.contenders]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for turn in range(bench.arguments.rounds):
        for name in random.Random(turn).sample(contenders, len(contenders)):
            with reported(name):
                runs[name].append(cold_run(bench, name, pace))
                found = {key: value for key, value in runs[name][-1].items() if isinstance(value, (int, float))}
                print(f'{name:<20}', {key: round(value, 3) for key, value in found.items()}, flush=True)
    news = next((found['news'] for found in runs.get('headrace', []) if 'news' in found), None)
    if news is not None:
        runs = {'the link itself': [ideal(bench, news, pace)], **runs}
    header = [
        'contender',
        'first batch',
        'must',
        'first batch / must',
        'batches late',
        'seconds late',
        'bytes',
        'total',
        'missing, repeated, foreign samples',
    ]
    lines: list[list[str]] = []
    for name, found in runs.items():
        if not found:
            lines.append([name, 'failed', *[''] * (len(header) - 2)])
            continue

        def median(key: str, found: list[dict[str, Any]] = found) -> float:
            return statistics.median(one[key] for one in found)

        is_local = name == LOCAL
        size = found[0].get('size', bench.size)
        lines.append(
            [
                name if name not in CONTENDERS else f'{name} {version(name)}',
                f'{median("first"):.2f} s',
                '' if is_local else f'{median("must"):.2f} s',
                '' if is_local else f'{statistics.median(one["first"] / one["must"] for one in found):.2f} x',
                f'{median("stalls"):g} of {bench.batches}',
                f'{median("late"):.2f} s',
                '' if is_local else f'{median("bytes") / size:.3f} x',
                f'{median("total") / (size / bench.rate):.3f} x',
                ' + '.join(
                    sorted(
                        {f'{one["missing"]}, {one["repeated"]}, {one["foreign"]}' for one in found if 'missing' in one}
                    )
                ),
            ]
        )
    for found in runs.values():
        for one in found:
            for key in ('news', 'first_ids'):
                one.pop(key, None)
    return table(header, lines), {'pace': pace, 'runs': runs}


# -- nodes -------------------------------------------------------------------------------------------------------------


def nodes_run(bench: Bench, contender: str, nodes: int) -> dict[str, Any]:
    from tests.support.servers.process import free_port

    data = bench.data[contender]
    needed: Counter[int] = Counter()
    fetched: Counter[str] = Counter()
    ids: list[int] = []
    names = {name for name, _, _ in data.shards()}
    with bench.link(limited=False) as link, contextlib.ExitStack() as stack:
        port = str(free_port())
        processes: list[Any] = []
        caches: list[Path] = []
        for rank in range(nodes):
            caches.append(stack.enter_context(bench.cache()))
            temporary = stack.enter_context(bench.cache())
            environ = {**bench.environ(link), 'TMPDIR': str(temporary)}
            if nodes > 1:
                environ |= {
                    'WORLD_SIZE': str(nodes),
                    'RANK': str(rank),
                    'LOCAL_WORLD_SIZE': '1',
                    'LOCAL_RANK': '0',
                    'MASTER_ADDR': '127.0.0.1',
                    'MASTER_PORT': port,
                    'GLOO_SOCKET_IFNAME': 'lo',
                }
            settings = bench.run(contender, cache=str(caches[-1]), batch=BATCH // nodes, canonical_nodes=4)
            processes.append(launch(settings, environ))
        stack.callback(lambda: [process.kill() for process in processes])
        seconds = 0.0
        for process in processes:
            found = finish(process)['epochs'][0]
            seconds = max(seconds, found['total'])
            ids += found['ids']
            needed.update(data.shards_of(found['ids']))
        for cache in caches:
            fetched.update({path.name for path in cache.rglob('*')} & names)
        link.wait_idle()
        size = link.bytes_received
    return {
        'nodes': nodes,
        'bytes': size,
        'size': bench.size,
        'objects': len(names),
        'fetched': fetched.total(),
        'fetched_more_than_once': sum(times > 1 for times in fetched.values()),
        'needed_more_than_once': sum(times > 1 for times in needed.values()),
        'seconds': seconds,
        **check(ids, bench.count),
    }


def nodes_table(bench: Bench) -> tuple[str, dict[str, Any]]:
    lines: list[list[str]] = []
    results: dict[str, Any] = {}
    for name in ('headrace', 'mosaicml-streaming'):
        if name not in bench.arguments.contenders:
            continue
        for nodes in NODES:
            found: list[dict[str, Any]] = []
            for _ in range(bench.arguments.rounds):
                with reported(f'{name}, {nodes} nodes'):
                    found.append(nodes_run(bench, name, nodes))
            results[f'{name}, {nodes}'] = found
            if not found:
                lines.append([name, str(nodes), 'failed', '', '', '', ''])
                continue
            worst = max(found, key=lambda one: one['bytes'])
            lines.append(
                [
                    name,
                    str(nodes),
                    f'{worst["bytes"] / worst["size"]:.3f} x',
                    f'{worst["fetched"]} of {worst["objects"]}',
                    str(worst['fetched_more_than_once']),
                    str(worst['needed_more_than_once']),
                    f'{worst["missing"]}, {worst["repeated"]}, {worst["foreign"]}',
                ]
            )
            print(' | '.join(lines[-1]), flush=True)
    header = [
        'contender',
        'nodes',
        'bytes',
        'shards fetched',
        'more than once',
        'needed more than once',
        'missing, repeated, foreign samples',
    ]
    return table(header, lines), results


# -- cache -------------------------------------------------------------------------------------------------------------


def cache_table(bench: Bench) -> tuple[str, dict[str, Any]]:
    third = bench.size // 3
    pace = bench.size / bench.rate / bench.batches / PACE
    kinds = {
        'as fast as it can': {'pace': 0.0},
        f'at {bench.rate * PACE / 1e6:.3g} MB/s': {'pace': pace},
    }
    runs: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for _ in range(bench.arguments.rounds):
        for kind, options in kinds.items():
            for is_limited in (False, True):
                limit = {'cache_limit': third} if is_limited else {}
                with bench.link(limited=False) as link, bench.cache() as cache:
                    settings = bench.run('headrace', cache=str(cache), epochs=2, **options, **limit)
                    epochs = finish(launch(settings, bench.environ(link)))['epochs']
                    link.wait_idle()
                    left = sum(path.stat().st_size for path in cache.rglob('*.mds'))
                    size = link.bytes_received
                faults = [check(epoch.pop('ids'), bench.count) for epoch in epochs]
                found = {
                    'rates': [bench.count / epoch['total'] for epoch in epochs],
                    'rate': 2 * bench.count / sum(epoch['total'] for epoch in epochs),
                    'stalls': sum(epoch['stalls'] for epoch in epochs),
                    'late': sum(epoch['late'] for epoch in epochs),
                    'bytes': size,
                    'left': left,
                    'stats': epochs[-1].get('stats'),
                    'missing': sum(fault['missing'] for fault in faults),
                    'repeated': sum(fault['repeated'] for fault in faults),
                    'foreign': sum(fault['foreign'] for fault in faults),
                }
                runs.setdefault((kind, is_limited), []).append(found)
                print(kind, is_limited, found, flush=True)

    def median(kind: str, is_limited: bool, key: str) -> float:
        return statistics.median(one[key] for one in runs[kind, is_limited])

    def rate(kind: str, is_limited: bool, epoch: int) -> float:
        return statistics.median(one['rates'][epoch] for one in runs[kind, is_limited])

    lines: list[list[str]] = []
    for kind in kinds:
        for is_limited in (False, True):
            paced = bool(kinds[kind]['pace'])
            lines.append(
                [
                    f'{kind}, {"a third of the data" if is_limited else "no limit"}',
                    f'{rate(kind, is_limited, 0):,.0f}',
                    f'{rate(kind, is_limited, 1):,.0f}',
                    f'{rate(kind, is_limited, 1) / rate(kind, False, 0):.2f} x',
                    f'{median(kind, is_limited, "rate") / median(kind, False, "rate"):.2f} x',
                    f'{median(kind, is_limited, "stalls"):g}, {median(kind, is_limited, "late"):.2f} s'
                    if paced
                    else '',
                    f'{median(kind, is_limited, "bytes") / bench.size:.2f} x',
                    f'{max(one["left"] for one in runs[kind, is_limited]) / third:.2f}',
                ]
            )
    header = [
        'headrace, two epochs',
        'samples/s, epoch 1',
        'epoch 2',
        'epoch 2, against epoch 1 without limit',
        'both, against no limit',
        'late',
        'bytes',
        'in the cache at the end, of the limit',
    ]
    named = {f'{kind}, {"limit" if limited else "no limit"}': found for (kind, limited), found in runs.items()}
    return table(header, lines), named


# -- all of it ---------------------------------------------------------------------------------------------------------


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    parts = [header, ['---'] * len(header), *lines]
    return ''.join('| ' + ' | '.join(part) + ' |\n' for part in parts)


def main() -> None:
    if sys.argv[1:2] == ['--run']:
        print('RESULT ' + json.dumps(run_here(json.loads(sys.argv[2]))), flush=True)
        return
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0] if __doc__ else None)
    parser.add_argument('rounds', type=int, nargs='?', default=2)
    parser.add_argument('--rate', type=float, default=25, help='MB/s of the link')
    parser.add_argument('--latency', type=float, default=20, help='milliseconds of a round trip')
    parser.add_argument('--samples', type=int, default=48_000)
    parser.add_argument('--shard', default='2mb', help='size of a shard, such as 64mb')
    parser.add_argument('--window', type=int, default=4, help='shuffle_block_size, in shards')
    parser.add_argument('--tables', default='cold,nodes,cache')
    parser.add_argument('--contenders', default=','.join((*CONTENDERS, 'local')), help='local: headrace, from a folder')
    parser.add_argument('--json', type=Path, help='where to write all figures')
    parser.add_argument('--nice', type=int, default=0, help='priority over other processes of the machine, as root')
    arguments = parser.parse_args()
    arguments.contenders = [LOCAL if name == 'local' else name for name in arguments.contenders.split(',')]
    if arguments.nice:
        os.nice(-arguments.nice)
    tables = {'cold': cold, 'nodes': nodes_table, 'cache': cache_table}
    results: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name != 'json'}
    with store() as server, tempfile.TemporaryDirectory(prefix='headrace-cold-', ignore_cleanup_errors=True) as name:
        bench = Bench(arguments, server, Path(name))
        results |= {'server': server.name, 'size': bench.size, 'shards': len(bench.data['headrace'].shards())}
        title = (
            f'{server.name}, {arguments.latency:g} ms, {arguments.rate:g} MB/s; {bench.count:,} samples, '
            f'{bench.size / 1e6:.0f} MB, {results["shards"]} shards of {arguments.shard}, '
            f'windows of {arguments.window} shards'
        )
        print(title, flush=True)
        texts: list[str] = []
        for kind in arguments.tables.split(','):
            text, results[kind] = tables[kind](bench)
            texts.append(f'{kind}:\n\n{text}')
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))
    print(f'\n{title}\n')
    print('\n'.join(texts))


if __name__ == '__main__':
    main()
