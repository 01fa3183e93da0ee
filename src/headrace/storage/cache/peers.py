"""Asks the caches of other nodes for a shard, before the bucket.

`ownership` names the node that keeps a shard. That node fetches it from the bucket, once for the cluster, and keeps it
longest (`limit`). A shard that no node keeps is fetched by the node that scores it highest, for those that want it at
about the same time. The nodes tell each other their limits when they meet. With `hosts` they cannot, and each takes the
others' limits to be its own.

No wait is a circle, even while nodes disagree about nodes or limits. A server asks no peer to fetch. A node lets
another one wait for its processes only if that one scores the shard higher: an order that depends on names alone.
A node with a lower score is asked for what it has or can fetch at once (``Prefer: wait=0``). An owner without the shard
first asks for a copy, which a peer gives at once or not, so a new node fills its cache from its peers.

Each wait is bounded: a peer that is silent for `SILENCE`, or slow, is not asked for `PAUSE`, by no process of this
node. The next one in the order is asked instead, also where a peer cannot give the shard. The bucket follows after
`ASKED` peers, or after one that fails to give a copy. All waits in vain of a node together take `LOST` at most, however
many peers have stopped. A peer whose bytes the index refuses is not asked again.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import http.client
import itertools
import logging
import math
import mmap
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from headrace.errors import ChecksumError, ConfigError, FormatError
from headrace.errors.redaction import keep_secret, logger_of, visible
from headrace.storage.cache.entry import CachePart
from headrace.storage.cache.ownership import Address, Duty, Ownership, SharedShards, hash_of, seed_of, text_of
from headrace.storage.cache.peer_options import SHORTEST_TOKEN, PeerOptions, is_loopback
from headrace.storage.transfer.answer_bounds import bounded_answer
from headrace.storage.transfer.http import CHUNK

CONNECT: Final = 1.0
"""Seconds for a connection."""
SILENCE: Final = 3.0
"""Seconds without a byte after which a peer counts as stopped; see also `peer_server.ALIVE`."""
WAIT: Final = 60.0
"""Seconds until an answer begins, at most: the owner may be fetching the shard."""
SLOWEST: Final = 4 << 20
"""Bytes a second that a peer must send, after the first `SILENCE`."""
PAUSE: Final = 30.0
"""Seconds for which a peer that failed is not asked; each failure in a row doubles them, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 480.0
LOST: Final = 8.0
"""Seconds that a node waits in vain for all its peers, at most, before it has a `PAUSE` without such a wait. A wait may
take half of those that are left, so that many stopped peers cost about as much as two."""
SHORTEST: Final = 0.25
"""Seconds below which a wait does not count. With less than this left, no peer is asked."""
START: Final = 5.0
"""Seconds after its own start for which a node waits for peers that were never there: not all start at once."""
ASKED: Final = 2
"""Peers that are asked for a shard, at most."""
ESTIMATES: Final = 16
"""A shard of an estimated size has at most so many times these bytes."""
COPIES: Final = 8
"""Peers that an owner asks for a copy, at most; they answer at once."""
IN_VAIN: Final = 16
"""Shards in a row that no peer had, after which an owner asks for no copies for `PAUSE`."""
_OF_THIS_PROCESS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL}
"""Failures of a connection that are not the peer's."""
ONLY_COPIES: Final = {'Cache-Control': 'only-if-cached'}
"""The header by which a peer gives a shard that it has, and fetches none."""
AT_ONCE: Final = {'Prefer': 'wait=0'}
"""The header by which a peer fetches a shard, unless one of its processes does already."""
FULL: Final = 507
"""The status of a server that has no room for a shard."""
_WHY_ABSENT: Final = {404: 'has other data', 503: 'cannot fetch it now', 504: 'does not have it', FULL: 'has no room'}

_log = logger_of(__name__)

Meet: TypeAlias = Callable[[str, str], 'tuple[list[str], str] | None']
"""Gives the addresses of all ranks' nodes and a secret of the run, for this node's address and a secret that may be it.
None: this process cannot meet others."""


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
    """Makes the file to write, once for each peer."""
    check: Callable[[], None]
    """Raises FormatError if that file is not what the index says."""

    @property
    def path(self) -> str:
        """Names the file in requests."""
        return f'/{self.stream}/{quote(self.part.name, safe="")}'


class _Peer:
    """A peer, as all processes know it that are forked from the one which joined."""

    def __init__(self, address: Address, cell: npt.NDArray[np.float64]) -> None:
        self.address, self._cell = address, cell
        self.has_answered = False

    @property
    def not_before(self) -> float:
        """When it may be asked again, by ``time.monotonic``; inf: never."""
        return float(self._cell[0])

    @property
    def pause(self) -> float:
        """Seconds for which it is not asked after its next failure."""
        return float(self._cell[1]) or PAUSE

    def leave(self, pause: float) -> None:
        """Do not ask it for this many seconds, nor for twice as many after its next failure."""
        self._cell[:] = time.monotonic() + pause, min(2 * pause, LONGEST_PAUSE)

    def is_well(self) -> None:
        self._cell[1] = 0.0


_CELLS: Final = 4096
"""Of peers, by their hash: two may share one, and then their pauses. The first one counts what is lost."""


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
        self._rooms: dict[Address, float] = {}
        self._shards = SharedShards.joined([])
        self._others_start_until = 0.0
        self._in_vain, self._no_copies_before = 0, 0.0
        self._start()

    def _start(self) -> None:
        self._cells = np.frombuffer(mmap.mmap(-1, 16 * _CELLS), np.float64).reshape(_CELLS, 2)
        self._peers: dict[Address, _Peer] = {}
        self._ownership: Ownership | None = None
        self._duties: dict[int, Duty] = {}

    def __getstate__(self) -> dict[str, Any]:
        own = {'_cells', '_peers', '_ownership', '_duties'}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()
        self._know_peers()

    def join(
        self, ranks: int = 1, nodes: int = 1, shards: SharedShards | None = None, *, room: float = math.inf
    ) -> None:
        """Find the addresses of all nodes, and ask them from now on. A later call finds what nodes a run has by then.

        Args:
            ranks: Those of the run. Only one alone needs no `hosts` and meets no others.
            nodes: Those of the run, as its topology has them.
            shards: All that the nodes share, or None to leave those of before.
            room: Bytes of them that this node's limit allows.

        Raises:
            ConfigError: the options do not fit this node, or the ranks cannot meet.
        """
        options = self._options
        if shards is not None and not shards.are_same(self._shards):
            self._shards, self._ownership, self._duties = shards, None, {}
        if not options.hosts:
            self._join_met(ranks, nodes, room)
        elif not self._peers:
            addresses, token = options.addresses(), options.token()
            self.know(options.own(addresses), token, dict.fromkeys(addresses, room))
            if len(self._peers) == 1:
                _log.warning(
                    '`peers` has found no node but this one, %s: all shards come from the bucket. Add the other nodes '
                    'to `hosts`, or start when a name server knows them.',
                    text_of(self.own),
                )
        elif self._rooms[self.own] != room:  # the others' limits are taken to be this one's
            self.know(self.own, self.token, dict.fromkeys(self._rooms, room))

    def _join_met(self, ranks: int, nodes: int, room: float) -> None:
        options, own = self._options, self._options.own_host()
        # Surviving ranks keep the current token; a token from the environment is never sent.
        secret = self.token.decode() if options.token_env is None else ''
        secret = secret or secrets.token_hex(SHORTEST_TOKEN)
        try:
            met = None if self._meet is None else self._meet(f'{own} {room}', secret)
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
            met = [f'{own} {room}'], secret
        texts, secret = met
        keep_secret(secret)
        rooms: dict[Address, float] = {}
        for host, _, text in sorted(text.partition(' ') for text in texts):
            address = host, options.port
            rooms[address] = min(float(text or room), rooms.get(address, math.inf))
        if len({is_loopback(host) for host, _ in rooms}) > 1:
            raise ConfigError(
                f'`peers` would serve on {[host for host, _ in rooms]}, of which no other machine reaches a loopback '
                f'address. Set `interface` on each node to an address that the others reach.'
            )
        token = secret.encode() if options.token_env is None else options.token()
        before = self.nodes
        self.know((own, options.port), token, rooms)
        if len(rooms) < nodes and self.nodes != before:
            _log.warning(
                '`peers` has found %d addresses of %d nodes: those with the address of another one do not share. Set '
                '`interface` on each node to an address of its own.',
                len(rooms),
                nodes,
            )

    def know(self, own: Address, token: bytes, rooms: Mapping[Address, float]) -> None:
        """Ask these nodes from now on; `nodes` gives the arguments in another process.

        Args:
            own: The address of this one.
            token: That of the run.
            rooms: The bytes that the limit of each node allows for shards.
        """
        if (own, token, rooms) != self.nodes:
            self.own, self.token, self._rooms = own, token, dict(rooms)
            self._others_start_until = time.monotonic() + START
            self._know_peers()
            _log.info('Nodes that share their caches: %d; this one is %s.', len(rooms), text_of(own))

    def _know_peers(self) -> None:
        new = (_Peer(address, self._cells[1 + seed_of(address) % (_CELLS - 1)]) for address in self._rooms)
        self._peers = {peer.address: self._peers.get(peer.address, peer) for peer in new}
        self._ownership, self._duties = None, {}

    @property
    def nodes(self) -> tuple[Address, bytes, dict[Address, float]]:
        """This node, the token, and all nodes with the room of each."""
        return self.own, self.token, self._rooms

    def __len__(self) -> int:
        """Nodes, this one included; 0 before `join`."""
        return len(self._peers)

    @property
    def ownership(self) -> Ownership:
        """Which node keeps which shard."""
        found = self._ownership
        if found is None:
            found = self._ownership = Ownership(self._rooms, self._shards)
        return found

    def before(self, shard: int) -> list[Address]:
        """The nodes that this one asks for a shard, by its hash, its keeper first; none if this one is the first."""
        order = self.ownership.order(shard)
        return order[: order.index(self.own)]

    def duty(self, shard: int) -> Duty:
        """The part of this node in sharing a shard, by its hash."""
        duty = self._duties.get(shard)
        if duty is None:
            if len(self._peers) < 2:
                return Duty.NONE
            duty = self._duties[shard] = self.ownership.duty(self.own, shard)
        return duty

    @property
    def kept_bytes(self) -> int:
        """Bytes of the shards that this node keeps for all; 0 before `join`."""
        return self.ownership.kept_bytes(self.own) if len(self._peers) > 1 else 0

    def fetch(self, wanted: PeerRequest) -> int:
        """Fetch a file from a peer; returns its bytes. 0: no peer gave it, so the bucket must."""
        if not self._peers:
            return 0
        shard = hash_of(wanted.stream, wanted.shard)
        before = [] if _serves else self.before(shard)
        scores = self.ownership.scores(shard)
        for peer in itertools.islice(self._askable(before), ASKED):
            how = {} if scores.get(peer.address, 0) > scores.get(self.own, 0) else AT_ONCE
            size = self._ask(peer, wanted, how)
            if size > 0 or size == -FULL:  # the next peer would fetch what the bucket gives this node, too
                return max(0, size)
        return self._fetch_copy(shard, wanted) if self.duty(shard) is Duty.KEEP else 0

    def _fetch_copy(self, shard: int, wanted: PeerRequest) -> int:
        """Fetch a shard that this node keeps from a peer that has it by chance: this cache may be a new one."""
        now = time.monotonic()
        if now < self._no_copies_before:
            return 0
        others = [address for address in self.ownership.order(shard) if address != self.own]
        for peer in self._askable(others[:COPIES]):
            if not (peer.has_answered or _serves or not self._options.hosts):  # it may still be starting
                continue
            size = self._ask(peer, wanted, ONLY_COPIES)
            if size > 0:
                self._in_vain = 0
                return size
            if not size:  # others wait for this node: one failure is enough
                break
        self._in_vain += 1
        if self._in_vain >= IN_VAIN:
            self._in_vain, self._no_copies_before = 0, now + PAUSE
        return 0

    def _askable(self, addresses: list[Address]) -> Iterator[_Peer]:
        peers = (self._peers.get(address) for address in addresses)  # a rescale may have removed it
        return (
            peer
            for peer in peers
            if peer is not None and time.monotonic() >= peer.not_before and self._left() >= 2 * SHORTEST
        )

    def _left(self) -> float:
        """Seconds that this node may still wait in vain."""
        at, lost = self._cells[0]
        return LOST - (lost if time.monotonic() < at + PAUSE else 0.0)

    def _lose(self, seconds: float) -> None:
        if seconds >= SHORTEST:
            self._cells[0] = time.monotonic(), LOST - self._left() + seconds

    def _ask(self, peer: _Peer, wanted: PeerRequest, how: Mapping[str, str]) -> int:
        """Fetch a file from one peer, by a request with these headers; returns its bytes.

        0: the peer failed. Below 0: it is well, but does not give it, and this is the negative of its status.
        """
        begin = time.monotonic()
        try:
            with wanted.create() as out:
                size = 0
                for chunk in self._answer(peer, wanted.path, wanted.part, how):
                    if out.write(chunk) < len(chunk):
                        raise OSError(errno.ENOSPC, 'The disk took only a part of a write')
                    size += len(chunk)
            wanted.check()
        except _AbsentError as error:
            _log.log(logging.DEBUG if how else logging.INFO, '%s.', error)
            return -error.status
        except FormatError as error:
            peer.leave(math.inf)
            _log.warning(
                'Peer %s sent a wrong file (%s), and this node does not ask it again.', text_of(peer.address), error
            )
        except _PeerError as error:
            if time.monotonic() >= peer.not_before:  # else it failed for another thread, too
                pause = peer.pause
                peer.leave(pause)
                self._lose(time.monotonic() - begin)
                _log.warning('Peer %s %s, and is not asked for %.0f s.', text_of(peer.address), error, pause)
        else:
            peer.is_well()
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

    def _answer(self, peer: _Peer, path: str, part: CachePart, how: Mapping[str, str]) -> Iterator[bytes]:
        """The bytes of a file; `_PeerError` if they do not come in time, or are not as many as they should be."""
        longest, for_bytes = self._left() / 2, part.size / SLOWEST
        silence = min(SILENCE, longest)
        connection = http.client.HTTPConnection(*peer.address, timeout=min(CONNECT, silence))
        patience = min(WAIT, math.ceil(longest + for_bytes))  # an interim answer each second could hold a step
        connection.response_class = bounded_answer(http.client.HTTPResponse, patience, 0)
        try:
            while True:
                self._connect(peer, connection)
                connection.sock.settimeout(silence)
                connection.request('GET', path, headers={**self._proven(path), **how})
                answer = connection.getresponse()
                if answer.status != 403 or self._options.hosts or time.monotonic() > self._others_start_until:
                    break
                connection.close()
                time.sleep(0.05)  # it is replacing its server by one with the current token
            peer.has_answered = True
            self._check(peer, path, part, answer)
            deadline, left = time.monotonic() + silence + for_bytes, answer.length or 0
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
    shards: SharedShards | None = None
    """All of them, or None without a limit: then each node keeps every shard that scores it highest."""

    def duty(self, shard: str) -> Duty:
        """As `Peers.duty`. `shard`: the key of its entry."""
        return self.peers.duty(hash_of(self.stream, shard))
