"""Stores and cache folders: reachable, quick, in time, and large enough."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from itertools import chain
from pathlib import Path
from statistics import median
from typing import BinaryIO, Final, cast
from urllib.parse import urlsplit

import numpy as np

from headrace.cli.doctor.loaders import check_loader
from headrace.cli.doctor.machine import Finding
from headrace.config.build import build_streams
from headrace.config.schema import named_loaders
from headrace.dataset.streams.stream import Stream
from headrace.errors import ConfigError, HeadraceError
from headrace.errors.display import count_text, human_size
from headrace.inspect.content import Content, open_content
from headrace.mixing import Config, LoaderConfig
from headrace.order import OrderConfig
from headrace.order.config import shared_shards
from headrace.storage import StoreOptions, local_path, open_store
from headrace.storage.cache.ownership import text_of
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peers import CONNECT

PROBE: Final = 16 << 20  # the most bytes of a shard that are read to measure a rate
_SERVERS: Final = {'s3': 'https://s3.amazonaws.com', 'gs': 'https://storage.googleapis.com'}
_CLOCK_SECONDS: Final = 3.0  # for the answer of a server whose clock is compared
_SKEW_NOTED, _SKEW_REFUSED = 60, 900  # seconds; S3 refuses requests that are signed 15 minutes off
_NETWORK: Final = frozenset({'nfs', 'nfs4', 'cifs', 'smb3', 'lustre', 'ceph', 'fuse.gcsfuse', 'fuse.s3fs', 'beegfs'})


@dataclass(frozen=True)
class Place:
    """Data, and the folder that they are cached in."""

    name: str
    url: str
    """Of the folder that holds the index."""
    folder: Path | None = None
    """The cache; None if the data are read in place, or if the cache does not matter."""
    limit: int | None = None
    """Bytes that the cache may take."""
    options: StoreOptions = field(default_factory=StoreOptions)
    is_trained: bool = False
    """Whether the training loader reads it."""
    stream: Stream | None = None
    """Its reader, or None before the first read."""

    def open(self) -> Content:
        """The data, as the stream finds them; see `open_content`."""
        stream = self.stream
        if stream is None:
            return open_content(self.url, self.options)
        place = stream.remote or str(stream.local)
        return open_content(
            place, self.options, split=stream.split, format=stream.format, format_options=stream.format_options
        )


def places_of(config: Config) -> list[Place]:
    """The streams of a configuration's loaders, each place once."""
    places: dict[tuple[str, Path | None], Place] = {}
    for loader in named_loaders(config).values():
        for stream in build_streams(loader):
            url, folder = _url_of(stream), None if stream.is_local else stream.folder
            name, options = stream.name or loader.name or 'train', stream.for_store()
            place = Place(name, url, folder, loader.cache_bytes, options, loader is config.train, stream)
            places.setdefault((url, folder), place)
    return list(places.values())


def _url_of(stream: Stream) -> str:
    return stream.url or str(stream.folder)


def check_data(
    places: Iterable[Place],
    clock: Callable[[], float] = time.monotonic,
    *,
    train: LoaderConfig | None = None,
    nodes: int = 1,
    ranks: int = 1,
    loaders: Mapping[str, LoaderConfig] | None = None,
) -> Iterable[Finding]:
    """Findings of each store and its cache, as they come, and at last of what nodes share.

    Args:
        places: the data.
        clock: gives seconds.
        train: the training loader of the places that `is_trained` marks.
        nodes: nodes of its run.
        ranks: ranks of each node.
        loaders: all loaders of the places, by name, to be checked against the indexes.
    """
    servers, claims = set[str](), dict[tuple[int, int | None], int]()
    unread = dict[str, str]()  # By URL, why a loader of the data is not checked; empty: that is told already.
    trained = 0
    for place in places:
        try:
            content = place.open()
        except (HeadraceError, OSError) as error:
            unread[place.url] = ''
            yield Finding('problem', place.name, f'{place.url} cannot be read: {error}')
            continue
        if content.is_estimate:
            unread[place.url] = f'{place.url} has no index, so a run reads its files to count their samples'
        total = int(content.shards.raw_bytes().sum())
        count = int(content.shards.samples.sum())
        trained += len(content.shards) if place.is_trained and place.folder is not None else 0
        yield Finding(
            'ok',
            place.name,
            f'{content.format}, {count_text(count, "sample")} in {count_text(len(content.shards), "shard")}, '
            f'{human_size(total)}',
        )
        if place.folder is not None:
            yield from _cache(place, place.folder, total, claims)
        if local_path(place.url) is None:
            if not content.is_estimate:
                yield _rate(place, content, clock)
            server = place.options.endpoint_url or _SERVERS.get(urlsplit(place.url).scheme, '')
            if server and server not in servers:
                servers.add(server)
                yield from _clock_of(server)
    for name, loader in (loaders or {}).items():
        reasons = [unread[url] for url in map(_url_of, build_streams(loader)) if url in unread]
        if not reasons:
            yield from check_loader(name, loader, ranks=ranks, nodes=nodes)
        elif all(reasons):
            text = f'its columns and settings are not compared with the data: {"; ".join(reasons)}'
            yield Finding('note', name, text, 'start a run of one step on this machine')
    if train is not None and (peers := PeerOptions.of(train.peers)) is not None:
        yield _peers(peers)
    elif train is not None and trained:
        yield from _shared_shards(train, trained, nodes)


def _peers(options: PeerOptions) -> Finding:
    """Whether this node could share its cache."""
    try:
        if options.hosts or options.token_env:
            options.token()
        if not options.hosts:
            address_here = text_of((options.own_host(), options.port))
            return Finding('ok', 'peers', f'this node would serve on {address_here} to those of the process group')
        by_host = {host: replace(options, hosts=(host,)).addresses() for host in options.hosts}
        addresses = sorted(set(chain.from_iterable(by_host.values())))
        address_here = text_of(options.own(addresses))
    except ConfigError as error:
        return Finding('problem', 'peers', str(error))
    if unknown := [host for host, ips in by_host.items() if not ips]:
        fix = 'correct these `hosts`, or add them to the name server or /etc/hosts'
        return Finding('problem', 'peers', f'no name server knows an address of {", ".join(unknown)}', fix)
    if silent := [text_of(address) for address in addresses if not _is_reached(address)]:
        fix = 'let all nodes reach that port, or correct `hosts`'
        return Finding('problem', 'peers', f'this node cannot connect to {", ".join(silent)}', fix)
    return Finding(
        'ok', 'peers', f'this node would serve on {address_here} to {count_text(len(addresses) - 1, "peer")}'
    )


def _is_reached(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, CONNECT).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)  # nothing serves there yet
    return True


def _shared_shards(train: LoaderConfig, shards: int, nodes: int) -> Iterable[Finding]:
    config = OrderConfig(
        algorithm=train.shuffle_algo,
        shuffle=train.shuffle,
        num_canonical_nodes=train.num_canonical_nodes,
        batching=train.batching_method,
    )
    if train.global_batch_size is not None:
        config = config.for_batches(train.global_batch_size, None)
    shared = shared_shards(config, shards, nodes)
    if shared is not None:
        yield Finding('note', 'nodes', shared.text, shared.fix)


def _rate(place: Place, content: Content, clock: Callable[[], float]) -> Finding:
    """How quickly a request is answered, and bytes come, on one connection."""
    store = open_store(place.url, place.options)
    shards = content.shards
    largest = int(np.argmax(shards.stored_bytes()))
    stored = shards[largest].files[0]
    file = stored.zip or stored.raw
    key = file.basename if file else 'index.json'
    waits: list[float] = []
    try:
        for _ in range(3):
            begin = clock()
            store.get(key, cast('BinaryIO', io.BytesIO()), offset=0, size=1)
            waits.append(clock() - begin)
        size = min(PROBE, file.bytes if file else 1)
        begin = clock()
        store.get(key, cast('BinaryIO', io.BytesIO()), offset=0, size=size)
    except (HeadraceError, OSError) as error:
        return Finding('problem', place.name, f'{key} of {place.url} cannot be read: {error}')
    wait, seconds = median(waits), max(clock() - begin, 1e-6)
    rate = human_size(int(size / seconds))
    return Finding('ok', place.name, f'answers in {1000 * wait:.0f} ms, {rate}/s on one connection')


def _clock_of(server: str) -> Iterable[Finding]:
    """The difference between this machine's clock and a server's; nothing where it does not answer."""
    parts = urlsplit(server)
    connect = http.client.HTTPSConnection if parts.scheme == 'https' else http.client.HTTPConnection
    connection = connect(parts.hostname or '', parts.port, timeout=_CLOCK_SECONDS)
    try:
        connection.request('HEAD', '/')
        theirs = parsedate_to_datetime(connection.getresponse().getheader('Date') or '').timestamp()
    except (OSError, ValueError, http.client.HTTPException):
        return
    finally:
        connection.close()
    skew = abs(time.time() - theirs)
    if skew < _SKEW_NOTED:
        yield Finding('ok', 'clock', f'as that of {parts.hostname}, within {_SKEW_NOTED} s')
    else:
        level = 'problem' if skew >= _SKEW_REFUSED else 'note'
        fix = 'synchronise it (chrony, ntpd): stores refuse signed requests whose time is wrong'
        yield Finding(level, 'clock', f'{skew:.0f} s away from that of {parts.hostname}', fix)


def _cache(place: Place, wanted: Path, total: int, claims: dict[tuple[int, int | None], int]) -> Iterable[Finding]:
    """Room for the shards, on a quick disk. `claims`: bytes by disk and shared limit; this cache's are added."""
    folder = wanted
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(
            'problem', place.name, f'the cache {wanted} cannot be written', f'another `local`, or: chown {folder}'
        )
        return
    disk = folder.stat().st_dev
    most = total if place.limit is None else min(total, place.limit - claims.get((disk, place.limit), 0))
    held = _held(wanted)
    need = max(0, most - held)
    free = max(0, shutil.disk_usage(folder).free - sum(size for (other, _), size in claims.items() if other == disk))
    if need > free:
        fix = 'another disk for `local`, or `cache_limit` below what is free'
        text = f'the cache {wanted} needs {human_size(need)}, and {human_size(free)} are free'
        yield Finding('problem', place.name, text, fix)
    else:
        claims[disk, place.limit] = claims.get((disk, place.limit), 0) + need
        takes = f'takes {human_size(need)}{" more" if held else ""} of {human_size(free)} that are free'
        text = takes if need else f'holds {human_size(held)}, and needs no more room'
        yield Finding('ok', place.name, f'the cache {wanted} {text}')
    system = file_system(folder)
    if system in _NETWORK:
        fix = 'a local disk for `local`: the cache is read by random access'
        yield Finding('note', place.name, f'the cache {wanted} is on {system}, a network file system', fix)


def _held(folder: Path) -> int:
    """Bytes that a cache holds already, of an earlier run."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # evicted meanwhile
                total += Path(parent, name).lstat().st_size
    return total


def file_system(folder: Path) -> str:
    try:
        lines = Path('/proc/self/mounts').read_text().splitlines()
    except OSError:
        return ''
    here, best, kind = str(folder.resolve()), '', ''
    for line in lines:
        _, mounted, file_system_type, *_ = line.split(' ')
        mounted = mounted.encode().decode('unicode_escape')
        if (here + '/').startswith(mounted.rstrip('/') + '/') and len(mounted) >= len(best):
            best, kind = mounted, file_system_type
    return kind
