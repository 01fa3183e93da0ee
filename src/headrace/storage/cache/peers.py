"""Asks the caches of other nodes for a shard, before the bucket.

Each shard has one owner among the nodes: the first in an order that is a hash of shard and node (rendezvous hashing).
So all nodes agree without a message, and the shards of a node that died fall evenly to the others. The owner fetches
the shard from the bucket, once for the cluster, and keeps it longest (`limit`). The first user by the plan would save
it one copy. But it is another node in each epoch, so that nobody would know who has the shard.

A node asks only nodes that come before itself in the order of that shard to fetch it, and a server asks none. So no
wait is a circle. An owner without the shard first asks for a copy, which a peer gives at once or not. So a new node
fills its cache from its peers. Each wait is bounded: a peer that is silent for `SILENCE`, or slow, is not asked for
`PAUSE`. The next one in the order is asked instead, also where a peer cannot give the shard. The bucket follows after
`ASKED` peers, or after one that fails to give a copy. A peer whose bytes the index refuses is not asked again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import http.client
import ipaddress
import itertools
import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeAlias, cast
from urllib.parse import quote, urlsplit

from xxhash import xxh64_intdigest

from headrace.errors import ChecksumError, ConfigError, FormatError
from headrace.errors.redaction import keep_secret, logger_of, visible
from headrace.storage.cache.entry import CachePart
from headrace.storage.transfer.answer_bounds import bounded_answer
from headrace.storage.transfer.http import CHUNK

RULE: Final = (
    'must be a mapping: {} finds the nodes through torch.distributed; or `hosts`, a list of all nodes, such as '
    '["node-1", "node-2:7300"], or of one name with all their addresses; and if need be `port`, from 1 to 65535, '
    '`interface` and `token_env`'
)
PORT: Final = 7207
TOKEN_ENV: Final = 'HEADRACE_PEERS_TOKEN'  # noqa: S105 - the name of a variable
SHORTEST_TOKEN: Final = 16
"""Characters of a token at least."""

CONNECT: Final = 1.0
"""Seconds for a connection."""
SILENCE: Final = 3.0
"""Seconds without a byte after which a peer counts as stopped; see also `peer_server.ALIVE`."""
WAIT: Final = 60.0
"""Seconds until an answer begins, at most: the owner may be fetching the shard."""
FETCH: Final = 10
"""Seconds in which an owner begins to answer, in addition to the time for the bytes at `SLOWEST`."""
SLOWEST: Final = 4 << 20
"""Bytes a second that a peer must send, after the first `SILENCE`."""
PAUSE: Final = 30.0
"""Seconds for which a peer that failed is not asked; each failure in a row doubles them, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 480.0
START: Final = 5.0
"""Seconds after its own start for which a node waits for peers that were never there: not all start at once."""
ASKED: Final = 2
"""Peers that are asked for a shard, at most."""
ESTIMATES: Final = 16
"""A shard of an estimated size has at most so many times these bytes."""
_ELSEWHERE: Final = ('192.0.2.1', '2001:db8::1')
"""Addresses for documentation: nobody has them, so the default route leads there."""

COPIES: Final = 8
"""Peers that an owner asks for a copy, at most; they answer at once."""
IN_VAIN: Final = 16
"""Shards in a row that no peer had, after which an owner asks for no copies for `PAUSE`."""
_OF_THIS_PROCESS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL}
"""Failures of a connection that are not the peer's."""
FULL: Final = 507
"""The status of a server that has no room for a shard."""
_WHY_ABSENT: Final = {404: 'has other data', 503: 'cannot fetch it now', 504: 'does not have it', FULL: 'has no room'}

_log = logger_of(__name__)

Meet: TypeAlias = Callable[[str, str], 'tuple[list[str], str] | None']
"""Gives the addresses of all ranks' nodes and a secret of the run, for this node's address and a secret that may be it.
None: this process cannot meet others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """The key `peers` of a dataset."""

    hosts: tuple[str, ...] = ()
    """Names or addresses of all nodes, ``host`` or ``host:port``. A name may have several addresses, as a headless
    service of Kubernetes has. Empty: ranks tell each other."""
    port: int = PORT
    """Of hosts that name none."""
    interface: str | None = None
    """The address that this node serves on, one of the hosts'. None: the one of them that this machine has; without
    hosts, that on the way to the first rank."""
    token_env: str | None = None
    """The environment variable that holds the token of the run, the same on all nodes. None: `TOKEN_ENV` with hosts;
    else a rank draws a token."""

    @classmethod
    def of(cls, raw: PeerOptions | Mapping[str, Any] | None) -> PeerOptions | None:
        """Read an argument `peers`.

        Raises:
            ConfigError: it is no such mapping.
        """
        if raw is None or isinstance(raw, PeerOptions):
            return raw
        given: Any = dict(cast('Any', raw)) if isinstance(raw, Mapping) else {'hosts': None}  # pyright: ignore[reportUnnecessaryIsInstance] - the user's
        named: Any = given.get('hosts')
        hosts = tuple(named) if isinstance(named, Sequence) and not isinstance(named, str) else ()
        port = given.setdefault('port', PORT)
        texts = [*hosts, given.get('token_env', TOKEN_ENV), given.get('interface') or 'found']
        is_right = (hosts or 'hosts' not in given) and type(port) is int and 0 < port < 1 << 16
        is_right = is_right and set(given) <= set(cls.__slots__)
        if not is_right or not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(f'`peers` {RULE}, got {raw!r:.200}.')
        given['hosts'] = hosts
        return cls(**given)

    @property
    def plain(self) -> dict[str, Any]:
        """The value that YAML has."""
        found = {'hosts': list(self.hosts), 'port': self.port, 'interface': self.interface, 'token_env': self.token_env}
        return {name: value for name, value in found.items() if value}

    def token(self) -> bytes:
        """The run's token, hidden in messages from now on; ConfigError if it is missing or short."""
        name = self.token_env or TOKEN_ENV
        found = os.environ.get(name, '')
        if len(found) < SHORTEST_TOKEN:
            raise ConfigError(
                f'`peers` needs a token of at least {SHORTEST_TOKEN} characters in the environment variable '
                f'{name}, the same on all nodes, but it has {len(found)}. Make one for each run, such as '
                f'with `openssl rand -hex 16`; `token_env` names another variable.'
            )
        keep_secret(found)
        return found.encode()

    def addresses(self) -> list[tuple[str, int]]:
        """The numeric addresses of all hosts, in one order on all nodes. One that no name server knows is left out."""
        found = set[tuple[str, int]]()
        for host in self.hosts:
            name, port = _split(host)
            try:
                infos = socket.getaddrinfo(name, port or self.port, type=socket.SOCK_STREAM)
            except OSError as error:
                _log.warning('`peers` leaves %s out, which has no address: %s', host, error)
                continue
            # A machine with addresses of both families is one node.
            family = min(info[0] for info in infos)
            found.update((cast('str', info[4][0]), port or self.port) for info in infos if info[0] == family)
        return sorted(found)

    def own(self, addresses: list[tuple[str, int]]) -> tuple[str, int]:
        """The address of this node among those of all; ConfigError if there is none."""
        if self.interface is not None:
            wanted = _addresses_of(self.interface)
            own = [address for address in addresses if address[0] in wanted]
        else:
            own = [address for address in addresses if _is_of_this_machine(address[0])]
        if not own:
            raise ConfigError(
                f'`hosts` of `peers` must name this node, too, but none of {[text_of(one) for one in addresses]} is '
                f'{self.interface or "an address of this machine"}. Add it, or correct `interface`.'
            )
        others = [address for address in addresses if not _is_loopback(address[0])]
        found = next((address for address in own if address in others), own[0])
        if ipaddress.ip_address(found[0]).is_unspecified or (others and found not in others):
            raise ConfigError(
                f'`peers` would serve on {text_of(found)}, by which no other machine reaches this one. Name the nodes '
                f'by their addresses in `hosts`: a line of /etc/hosts may give a node another one on itself.'
            )
        return found

    def own_host(self) -> str:
        """The address of this node without `hosts`; ConfigError if `interface` is none of this machine's."""
        if self.interface is not None:
            found = next(filter(_is_of_this_machine, _addresses_of(self.interface)), None)
            if found is None:
                raise ConfigError(
                    f'`interface` of `peers` must be an address of this machine, got {self.interface!r}. Correct it, '
                    f'or leave it out.'
                )
            return found
        for name in (os.environ.get('MASTER_ADDR', 'localhost'), *_ELSEWHERE):
            with contextlib.suppress(OSError):  # there is no such route
                family, kind, _, _, address = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
                with socket.socket(family, kind) as unsent:  # it only looks up the route
                    unsent.connect(address)
                    found = cast('str', unsent.getsockname()[0])
                if not _is_loopback(found):  # as that of the first rank's own name may be
                    return found
        return '127.0.0.1'


def _addresses_of(name: str) -> list[str]:
    """None, if no name server knows it."""
    with contextlib.suppress(OSError):
        return [cast('str', info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    return []


def _split(host: str) -> tuple[str, int | None]:
    if host.count(':') > 1 and not host.startswith('['):  # an IPv6 address without a port
        return host, None
    parts = urlsplit(f'//{host}')
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f'A host of `peers` is a name or an address, and a port; got {host!r}: {error}.') from error
    return parts.hostname or '', port


def _is_of_this_machine(address: str) -> bool:
    try:
        with socket.create_server((address, 0), family=family_of(address)):
            return True
    except OSError:
        return False


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ':' in address else socket.AF_INET


def text_of(address: tuple[str, int]) -> str:
    host, port = address
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def scores(address: tuple[str, int], keys: Iterable[str]) -> list[int]:
    """How firmly a node would keep each of these shards, below 2**64: the one with the highest score owns it."""
    prefix = f'{text_of(address)} '.encode()
    return [xxh64_intdigest(prefix + key.encode()) for key in keys]


def proof(token: bytes, path: str) -> str:
    """Shows for one path that its sender knows the token, which itself never goes over the network."""
    return hmac.new(token, path.encode(), hashlib.sha256).hexdigest()


class _PeerError(Exception):
    """A peer did not give the shard. The next one may."""


class _AbsentError(Exception):
    """A peer is well, but cannot give the shard."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A file of a shard, unpacked, that peers are asked for."""

    stream: str
    """Names the data on all nodes."""
    shard: str
    """The key of its entry."""
    part: CachePart
    create: Callable[[], AbstractContextManager[BinaryIO]]
    """Makes the file to write, anew for each peer."""
    check: Callable[[], None]
    """Raises FormatError if that file is not what the index says."""

    @property
    def path(self) -> str:
        """Names the file in requests."""
        return f'/{self.stream}/{quote(self.part.name, safe="")}'


@dataclass(slots=True)
class _Peer:
    address: tuple[str, int]
    not_before: float = 0.0
    """When it may be asked again, by ``time.monotonic``; inf: never."""
    pause: float = PAUSE
    """Seconds for which it is not asked after its next failure."""
    has_answered: bool = False


_serves = False


def ask_for_copies_only() -> None:
    """Have this process, which serves, ask no peer to fetch, so that no two wait for each other."""
    global _serves  # noqa: PLW0603 - it is the process' own
    _serves = True


class Peers:
    """The nodes that share their caches, as one process knows them. Usable after fork, picklable."""

    def __init__(self, options: PeerOptions, meet: Meet | None = None) -> None:
        """Touches no network, and reads no environment. `meet` is for options without hosts."""
        self._options, self._meet = options, meet
        self.token = b''
        """That of the run, from `join` on, as the next one."""
        self.own = '', 0
        """The address of this node."""
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._others_start_until = 0.0
        self._owned: dict[str, int] = {}
        self._in_vain, self._no_copies_before = 0, 0.0

    def join(self, ranks: int = 1, nodes: int = 1) -> None:
        """Find the addresses of all nodes, and ask them from now on. A later call finds what nodes a run has by then.

        Args:
            ranks: Those of the run. Only one alone needs no `hosts` and meets no others.
            nodes: Those of the run, as its topology has them.

        Raises:
            ConfigError: the options do not fit this node, or the ranks cannot meet.
        """
        options = self._options
        if not options.hosts:
            self._join_met(ranks, nodes)
        elif not self._peers:
            addresses, token = options.addresses(), options.token()
            self.know(options.own(addresses), token, addresses)
            if len(self._peers) == 1:
                _log.warning(
                    '`peers` has found no node but this one, %s: all shards come from the bucket. Add the other nodes '
                    'to `hosts`, or start when a name server knows them.',
                    text_of(self.own),
                )

    def _join_met(self, ranks: int, nodes: int) -> None:
        options, own = self._options, self._options.own_host()
        # Ranks that go on keep the token of now; one of the environment is told to nobody.
        secret = self.token.decode() if options.token_env is None else ''
        secret = secret or secrets.token_hex(SHORTEST_TOKEN)
        try:
            met = None if self._meet is None else self._meet(own, secret)
        except RuntimeError as error:  # torch.distributed's
            if not self._peers:
                raise
            _log.warning('`peers` could not ask which nodes there are now, and goes on with those of before: %s', error)
            return
        if met is None:
            if self._peers:  # the process group has ended
                return
            if ranks > 1:
                raise ConfigError(
                    f'`peers` without `hosts` needs the process group of torch.distributed, by which the {ranks} ranks '
                    f'find each other, and a headrace.StreamingDataLoader. Initialize the group before the first '
                    f'batch, or list all nodes under `hosts`.'
                )
            met = [own], secret
        hosts, secret = sorted(set(met[0])), met[1]
        keep_secret(secret)
        if len({_is_loopback(host) for host in hosts}) > 1:
            raise ConfigError(
                f'`peers` would serve on {hosts}, of which no other machine reaches a loopback address. Set '
                f'`interface` on each node to an address that the others reach.'
            )
        token = secret.encode() if options.token_env is None else options.token()
        before = self.nodes
        self.know((own, options.port), token, [(host, options.port) for host in hosts])
        if len(hosts) < nodes and self.nodes != before:
            _log.warning(
                '`peers` has found %d addresses of %d nodes: those with the address of another one do not share. Set '
                '`interface` on each node to an address of its own.',
                len(hosts),
                nodes,
            )

    def know(self, own: tuple[str, int], token: bytes, addresses: Sequence[tuple[str, int]]) -> None:
        """Ask the nodes of these addresses from now on; `nodes` gives the arguments in another process."""
        if (own, token, tuple(addresses)) != self.nodes:
            self.own, self.token = own, token
            self._others_start_until = time.monotonic() + START
            self._peers = {address: self._peers.get(address, _Peer(address)) for address in addresses}
            self._owned = {}
            _log.info('Nodes that share their caches: %d; this one is %s.', len(addresses), text_of(own))

    @property
    def nodes(self) -> tuple[tuple[str, int], bytes, tuple[tuple[str, int], ...]]:
        """This node, the token, and all nodes."""
        return self.own, self.token, tuple(self._peers)

    def __len__(self) -> int:
        """Nodes, this one included; 0 before `join`."""
        return len(self._peers)

    def _score(self, address: tuple[str, int], key: str) -> tuple[int, tuple[str, int]]:
        return scores(address, [key])[0], address

    def before(self, key: str) -> list[tuple[str, int]]:
        """The nodes that come before this one in the order of a shard, its owner first; none if this one owns it."""
        own = self._score(self.own, key)
        scores = (self._score(address, key) for address in self._peers)
        return [address for _, address in sorted((one for one in scores if one > own), reverse=True)]

    def owned(self, key: str) -> int:
        """How firmly this node keeps a shard that it owns, from 1 on; 0: another one owns it, or none does yet."""
        if not self._peers:
            return 0
        found = self._owned.get(key)
        if found is None:
            found = self._owned[key] = 0 if self.before(key) else 1 + self._score(self.own, key)[0]
        return found

    def fetch(self, wanted: PeerRequest) -> int:
        """Fetch a file from a peer; returns its bytes. 0: no peer gave it, so the bucket must."""
        if not self._peers:
            return 0
        key = f'{wanted.stream}/{wanted.shard}'
        before = [] if _serves else self.before(key)
        for peer in itertools.islice(self._askable(before), ASKED):
            size = self._ask(peer, wanted)
            if size > 0 or size == -FULL:  # the next peer would fetch what the bucket gives this node, too
                return max(0, size)
        return 0 if before else self._fetch_copy(key, wanted)

    def _fetch_copy(self, key: str, wanted: PeerRequest) -> int:
        """Fetch a shard that this node owns from a peer that has it by chance: this cache may be a new one."""
        now = time.monotonic()
        if now < self._no_copies_before:
            return 0
        others = sorted((self._score(address, key) for address in self._peers if address != self.own), reverse=True)
        for peer in self._askable([address for _, address in others[:COPIES]]):
            if not (peer.has_answered or _serves or not self._options.hosts):  # it may still be starting
                continue
            size = self._ask(peer, wanted, only_cached=True)
            if size > 0:
                self._in_vain = 0
                return size
            if not size:  # others wait for this node: one failure is enough
                break
        self._in_vain += 1
        if self._in_vain >= IN_VAIN:
            self._in_vain, self._no_copies_before = 0, now + PAUSE
        return 0

    def _askable(self, addresses: list[tuple[str, int]]) -> Iterator[_Peer]:
        peers = (self._peers.get(address) for address in addresses)  # a rescale may have removed it
        return (one for one in peers if one is not None and time.monotonic() >= one.not_before)

    def _ask(self, peer: _Peer, wanted: PeerRequest, *, only_cached: bool = False) -> int:
        """Fetch a file from one peer; returns its bytes.

        0: the peer failed. Below 0: it is well, but does not give it, and this is the negative of its status.
        """
        try:
            with wanted.create() as out:
                size = 0
                for chunk in self._answer(peer, wanted.path, wanted.part, only_cached=only_cached):
                    if out.write(chunk) < len(chunk):
                        raise OSError(errno.ENOSPC, 'The disk took only a part of a write')
                    size += len(chunk)
            wanted.check()
        except _AbsentError as error:
            _log.log(logging.DEBUG if only_cached else logging.INFO, '%s.', error)
            return -error.status
        except FormatError as error:
            self._leave(peer, f'sent a wrong file ({error}), and is not asked again by this process', math.inf)
        except _PeerError as error:
            if time.monotonic() >= peer.not_before:  # else it failed for another thread, too
                self._leave(peer, f'{error}, and is not asked for {peer.pause:.0f} s', peer.pause)
                peer.pause = min(2 * peer.pause, LONGEST_PAUSE)
        else:
            peer.pause = PAUSE
            return size
        return 0

    def status_of_own(self) -> int | None:
        """The status with which this node's own address answers, 204 for a server of this run; None: it does not."""
        # It may be starting, on a busy machine.
        connection = http.client.HTTPConnection(*self.own, timeout=WAIT)
        connection.response_class = bounded_answer(http.client.HTTPResponse, WAIT, 0)
        try:
            connection.request('GET', '/', headers=self._proven('/'))
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _proven(self, path: str) -> dict[str, str]:
        return {'Authorization': f'HMAC {proof(self.token, path)}'}

    def _leave(self, peer: _Peer, why: str, pause: float) -> None:
        peer.not_before = time.monotonic() + pause
        _log.warning('Peer %s %s.', text_of(peer.address), why)

    def _answer(self, peer: _Peer, path: str, part: CachePart, *, only_cached: bool) -> Iterator[bytes]:
        """The bytes of a file; `_PeerError` if they do not come in time, or are not as many as they should be."""
        connection = http.client.HTTPConnection(*peer.address, timeout=CONNECT)
        patience = min(WAIT, math.ceil(FETCH + part.size / SLOWEST))  # an interim answer each second could hold a step
        connection.response_class = bounded_answer(http.client.HTTPResponse, patience, 0)
        try:
            extra = {'Cache-Control': 'only-if-cached'} if only_cached else {}
            while True:
                self._connect(peer, connection)
                connection.request('GET', path, headers={**self._proven(path), **extra})
                answer = connection.getresponse()
                if answer.status != 403 or self._options.hosts or time.monotonic() > self._others_start_until:
                    break
                connection.close()
                time.sleep(0.05)  # it is replacing its server by one with the token of now
            peer.has_answered = True
            self._check(peer, path, part, answer)
            deadline, left = time.monotonic() + SILENCE + part.size / SLOWEST, answer.length or 0
            while left:
                chunk = answer.read1(min(CHUNK, left))
                if not chunk:
                    raise _PeerError(f'broke off {left} bytes before the end of {path}')
                if time.monotonic() > deadline:
                    raise _PeerError(f'is too slow: {left} bytes of {path} are missing')
                left -= len(chunk)
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in _OF_THIS_PROCESS:
                raise _AbsentError(f'This process cannot ask {text_of(peer.address)} for {path}: {error}', 1) from error
            raise _PeerError(
                f'does not answer for {path} ({type(error).__name__}: {visible(str(error)[:200], one_line=True)})'
            ) from error
        finally:
            connection.close()

    def _connect(self, peer: _Peer, connection: http.client.HTTPConnection) -> None:
        """Connect; a peer that was never there may still be starting."""
        while True:
            try:
                connection.connect()
                break
            except OSError:
                if peer.has_answered or time.monotonic() > self._others_start_until:
                    raise
                time.sleep(0.05)
        connection.sock.settimeout(SILENCE)

    def _check(self, peer: _Peer, path: str, part: CachePart, answer: http.client.HTTPResponse) -> None:
        name = f'Peer {text_of(peer.address)}'
        if answer.status in _WHY_ABSENT:
            raise _AbsentError(f'{name} does not give {path}: it {_WHY_ABSENT[answer.status]}', answer.status)
        if answer.status == 403:
            raise _PeerError('refuses this node: its token is another')
        if answer.status != 200:
            raise _PeerError(f'answered {path} with status {answer.status}')
        most = part.size if part.size_at is None else ESTIMATES * part.size
        if answer.length is None or not (answer.length == most or (part.size_at is not None and answer.length < most)):
            raise ChecksumError(f'{path} has {answer.length} bytes there, the index gives {part.size}.')


def digest_of(fingerprint: str) -> str:
    """The name of a stream's data in requests."""
    return hashlib.blake2b(fingerprint.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class StreamPeers:
    """The peers' shards of one stream."""

    peers: Peers
    stream: str
    """Names the data on all nodes."""

    def owned(self, shard: str) -> int:
        """As `Peers.owned`. `shard`: the key of its entry."""
        return self.peers.owned(f'{self.stream}/{shard}')
