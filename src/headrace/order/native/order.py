"""The native order: any position of any epoch by arithmetic, with set-up in proportion to the number of shards.

How position p of an epoch becomes a sample:

1. The epoch is cut into segments (`node_quotas`), one as a rule. In a segment that begins at b, p is slot
   (p - b) div C of canonical node c = p mod C.
2. `interleave` says which stream the slot draws from, and which of the stream's draws on this node it is.
3. The stream is an endless sequence through all epochs, pass after pass over all its samples. So all samples come
   once before any comes twice, for any weights and epoch size. `stream_passes` finds the draw's pass, and its number
   in the node's share of that pass.
4. A node's share of a pass is a stretch of the stream's line of shards. The line is the same in all passes, so a node
   reads the same shards in every pass, except a few at the ends. With shuffle, the stretch is a cell that each pass
   shuffles again (`cell_table`); without, it is read as stored.

Example: one stream of 3 shards (ids 0-3, 4-7, 8-11), 2 canonical nodes, ``seed=7``. The epoch is one *segment* of 12
positions. Its ids are 11 0 10 4 2 7 8 3 1 6 9 5. Position 4 is slot 2 of node 0, the stream's *draw* 2
there: *pass* 0 has draws 0 to 5 of each node, pass 1 draws 6 to 11. The line of shards is 2, 0, 1. Node 0's *stretch*
is its first half: shard 2, and two samples of shard 0. The *cell* is that stretch, shuffled: 11 10 2 8 1 9. So
draw 2, and position 4, is sample 2. In pass 1 the cell is 9 10 8 11 2 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from headrace.errors import ConfigError, TopologyError
from headrace.errors.exclusions import refuse_exclusions
from headrace.order.arrays import IntArray
from headrace.order.config import OrderConfig
from headrace.order.mixture.mixture import Mixture, StreamSize
from headrace.order.mixture.takeover import Takeover
from headrace.order.native.cell_table import CellTable
from headrace.order.native.node_quotas import NodeQuotas
from headrace.order.native.segment import Segment
from headrace.order.native.special.fixed_subset import FixedSubset
from headrace.order.native.stream_passes import StreamLine, StreamPasses
from headrace.order.plan import Plan
from headrace.order.protocols import Order
from headrace.order.random.hashing import derive, hash_text
from headrace.order.skip import Skip, in_whole_batches, skipped_in_epoch, skipped_ranges
from headrace.order.topology import BatchSpec, check_batch_size

_VERSION_KEY = hash_text('headrace native order 1')
_INTERLEAVE, _SUBSET, _REST = 1, 3, 4  # the streams' own keys have 2: see `stream_passes`
_BULK = 16384  # positions evaluated at once: arrays that fit the CPU's cache


class NativeOrder(Order):
    """The sequence of an epoch; caches recent nodes, passes and windows for the batch right after the last one."""

    def __init__(self, mixture: Mixture, config: OrderConfig, epoch: int) -> None:
        """Take a config with its defaults filled in; nothing is loaded."""
        if config.batching in ('per_stream', 'device_per_stream') and not (config.units and config.global_batch_size):
            raise ConfigError(f'{config.batching} batching depends on the batch size, which is not known.')
        takeover = mixture.takeover
        if epoch < takeover.epoch:
            raise ConfigError(f'this mixture took over in epoch {takeover.epoch}, got epoch {epoch} of another one.')
        self.num_canonical_nodes = nodes = config.num_canonical_nodes or 1
        self.mixture, self._batching = mixture, config.batching
        self._size, self.epoch = mixture.epoch_size, epoch
        self.first = takeover.sample if epoch == takeover.epoch else 0
        key = derive(_VERSION_KEY, config.seed)
        node_quotas = NodeQuotas(mixture, config)
        self._subsets = _fixed_subsets(mixture, config, derive(key, _SUBSET))
        self._offsets = mixture.sample_offsets
        self.streams: list[StreamLine] = []
        blocks = _block_sizes(mixture, config.block_size or 1)
        for s, (stream, block) in enumerate(zip(mixture.streams, blocks, strict=True)):
            if s in self._subsets:
                stream = _of_subset(stream, self._subsets[s])  # noqa: PLW2901
            position = takeover.positions.get(stream.name)
            if position is not None and position.fingerprint != stream.fingerprint:
                position = None  # other data under the same name
            rest_key = derive(key, _REST, hash_text(stream.name)) if config.shuffle else None
            passes = StreamPasses(node_quotas, s, stream.size, block, position, rule=takeover.rule, key=rest_key)
            self.streams.append(StreamLine(stream, passes, num_nodes=nodes, key=key, is_shuffled=config.shuffle))
        self._sizes = np.array([stream.passes.size for stream in self.streams])
        node_draws = np.array([stream.passes.node_draws for stream in self.streams])
        self._first_regular = np.array([stream.passes.first_regular for stream in self.streams])
        self._is_regular = not self._first_regular.any()
        self._segments = [
            Segment(node_quotas, epoch, i, config, node_draws, derive(key, _INTERLEAVE, epoch))
            for i in range(len(node_quotas.segments(epoch)))
        ]
        self._begins = np.array([segment.begin for segment in self._segments])
        self._is_shuffled = config.shuffle
        self.units = config.units
        self._counted = -1, np.zeros(0, np.int64)  # a position, and the draws of each stream before it
        self._max_units = 65536 + 4 * (mixture.num_shards + len(self.streams) * nodes)
        self._forget()

    def at(self, positions: IntArray) -> IntArray:
        if len(positions) and (int(positions.min()) < self.first or int(positions.max()) >= self._size):
            raise IndexError(
                f'positions must be in [{self.first}, {self._size}), got {positions.min()} to {positions.max()}.'
            )
        if len(positions) <= _BULK:
            return self._at(positions)
        # In ascending order each window and cell is made once.
        ids = np.empty(len(positions), np.int64)
        ascending = np.argsort(positions, kind='stable')
        for i in range(0, len(positions), _BULK):
            where = ascending[i : i + _BULK]
            ids[where] = self._at(positions[where])
        return ids

    def draws_at(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return streams int64[n] at positions int64[n], and node draws int64[n] since the streams' first ever."""
        streams, node_draws = np.empty_like(positions), np.empty_like(positions)
        numbers, all_nodes = self._begins.searchsorted(positions, 'right') - 1, positions % self.num_canonical_nodes
        for number in np.unique(numbers):
            where, segment = (numbers == number).nonzero()[0], self._segments[number]
            nodes, slots = all_nodes[where], (positions[where] - segment.begin) // self.num_canonical_nodes
            streams[where], before = segment.interleave.at(nodes, slots)
            node_draws[where] = before + segment.node_draws.take(streams[where] * self.num_canonical_nodes + nodes)
        return streams, node_draws

    def _at(self, positions: IntArray) -> IntArray:
        if len(self._segments) == 1:
            return self._in_segment(self._segments[0], positions)
        ids = np.empty(len(positions), np.int64)
        numbers = self._begins.searchsorted(positions, 'right') - 1
        for number in np.unique(numbers):
            where = (numbers == number).nonzero()[0]
            ids[where] = self._in_segment(self._segments[number], positions[where])
        return ids

    def _in_segment(self, segment: Segment, positions: IntArray) -> IntArray:
        slots, nodes = positions - segment.begin, positions % self.num_canonical_nodes
        slots //= self.num_canonical_nodes
        streams, node_draws = segment.interleave.at(nodes, slots)
        places = streams * self.num_canonical_nodes
        places += nodes
        draws = segment.draws_of(streams, nodes, places, node_draws)
        node_draws = node_draws + segment.node_draws.take(places)
        passes = draws // self._sizes.take(streams)
        if not self._is_regular:
            self._correct(passes, streams, nodes, node_draws)
        ids = self._in_passes(streams, places, passes, node_draws, draws)
        for s, subset in self._subsets.items():
            where = (streams == s).nonzero()[0]
            ids[where] = subset.samples(ids[where])
        ids += self._offsets.take(streams)
        return ids

    def _in_passes(
        self, streams: IntArray, places: IntArray, passes: IntArray, node_draws: IntArray, draws: IntArray
    ) -> IntArray:
        """Return the samples of node draws in passes over their streams, int64[n]; arguments are int64[n] each."""
        rests = [
            (s, where)
            for s, stream in enumerate(self.streams)
            if stream.passes.rest is not None
            and len(where := ((streams == s) & (passes == stream.passes.rest)).nonzero()[0])
        ]
        if not rests:
            starts, begins = self._shares(places, passes)  # may begin a new table
            node_draws -= begins
            return self._table.at(starts, node_draws) if self._is_shuffled else starts + node_draws
        samples, others = np.empty_like(node_draws), np.ones(len(node_draws), np.bool_)
        for s, where in rests:
            samples[where] = self.streams[s].rest[draws[where] - self.streams[s].passes.draws]
            others[where] = False
        if others.any():
            samples[others] = self._in_passes(*(a[others] for a in (streams, places, passes, node_draws, draws)))
        return samples

    def _correct(self, passes: IntArray, streams: IntArray, nodes: IntArray, node_draws: IntArray) -> None:
        """Put in the passes of streams that are not yet, or never, where the mixture has them."""
        where = (passes < self._first_regular.take(streams)).nonzero()[0]
        for s in np.unique(streams[where]).tolist():
            of_stream = where[streams[where] == s]
            near = passes[of_stream]
            passes[of_stream] = self.streams[s].passes.numbers(node_draws[of_stream], nodes[of_stream], near)

    def _shares(self, places: IntArray, passes: IntArray) -> tuple[IntArray, IntArray]:
        """Cells of the nodes' shares of passes, or first samples without shuffle, and the node draws before them.

        `places` are stream · nodes + node. All arrays are int64[n].
        """
        missing = self._latest_pass.take(places) != passes
        if not missing.any():
            return self._latest_start.take(places), self._latest_begin.take(places)
        if self._table.units.used > self._max_units:
            self._forget()
            missing[:] = True
        starts, begins = self._latest_start.take(places), self._latest_begin.take(places)
        where = missing.nonzero()[0]
        # Pass first, so that a place's latest pass comes last.
        keys, of_key = np.unique(passes[where] * len(self._latest_pass) + places[where], return_inverse=True)
        shares: list[tuple[int, int]] = []
        for key in keys.tolist():
            k, place = divmod(key, len(self._latest_pass))
            share = self._known.get((place, k))
            if share is None:
                share = self._known[place, k] = self._make_share(place, k)
            self._latest_pass[place] = k
            self._latest_start[place], self._latest_begin[place] = share
            shares.append(share)
        starts[where], begins[where] = np.array(shares, np.int64)[of_key].T
        return starts, begins

    def _make_share(self, place: int, k: int) -> tuple[int, int]:
        s, node = divmod(place, self.num_canonical_nodes)
        stream = self.streams[s]
        begin, end, node_draw = stream.stretch(node, k)
        if not self._is_shuffled:
            return begin, node_draw
        return self._table.add(*stream.parts(begin, end, node, k)), node_draw

    def _forget(self) -> None:
        places = len(self.streams) * self.num_canonical_nodes
        self._table = CellTable()
        self._known: dict[tuple[int, int], tuple[int, int]] = {}
        self._latest_pass = np.full(places, -1, np.int64)
        self._latest_start = np.zeros(places, np.int64)
        self._latest_begin = np.zeros(places, np.int64)

    def _find(self, stream: int, sample_id: int, start: int) -> Iterator[int]:
        # Each costs about as much as the set-up of the passes that it lies between, however many the epoch has.
        sample, subset = sample_id - int(self._offsets[stream]), self._subsets.get(stream)
        numbers = [sample] if subset is None else subset.numbers(sample)
        return heapq.merge(*(self._positions_of(stream, number, start) for number in numbers))

    def _positions_of(self, s: int, sample: int, start: int) -> Iterator[int]:
        passes, first_segment, last_segment = self.streams[s].passes, self._segments[0], self._segments[-1]
        nodes = slice(s * self.num_canonical_nodes, (s + 1) * self.num_canonical_nodes)
        first = first_segment.node_draws[nodes] if start <= self.first else self.node_draws_before(start)[s]
        last = last_segment.node_draws[nodes] + last_segment.quotas[s]
        if (first == last).all():
            return
        # Nodes are not equally far in a pass, so that a later one may have the sample at an earlier position. Those
        # found wait until no pass that is left begins before them.
        positions: list[int] = []
        before = first
        for k in passes.spanned(first, last):
            while positions and (passes.begin(k) >= before).all():
                yield heapq.heappop(positions)
                before = self.node_draws_before(positions[0])[s] if positions else first
            for node, node_draw in self.streams[s].node_draws_of(sample, k):
                if first[node] <= node_draw < last[node]:
                    each = (segment.position_of(s, node, node_draw) for segment in self._segments)
                    position = next(position for position in each if position is not None)
                    if not positions or position < positions[0]:
                        before = self.node_draws_before(position)[s]
                    heapq.heappush(positions, position)
        yield from sorted(positions)

    def plan(
        self,
        batches: BatchSpec,
        start: int = 0,
        *,
        epoch: int = 0,
        skip: Skip = (),
        initial_nodes: int | None = None,  # noqa: ARG002
    ) -> Plan:
        topology, size, remainder = batches.topology, batches.global_batch_size, batches.remainder
        check_batch_size(size, topology, batches.uneven)
        ranges = skipped_ranges(skip, self.mixture, size, remainder)
        ranges = skipped_in_epoch(ranges, self.mixture.takeover.begin_of(epoch, self._size), self._size)
        if self.units:
            settings = {'remainder': remainder, 'uneven': batches.uneven, 'batching_method': self._batching}
            drawn = [
                stream for stream, is_drawn in zip(self.mixture.streams, self.mixture.is_drawn, strict=True) if is_drawn
            ]
            refuse_exclusions({**settings, 'streams': drawn})
            _check_units(self.units, size, topology.replicas)
            ranges = in_whole_batches(ranges, self.first, size, self._size)
        return Plan(self, topology, size, start, remainder, ranges, batches.uneven)

    def takeover_at(self, position: int) -> Takeover:
        """Return where another mixture takes over from this one, if it does at a position of this epoch."""
        node_draws = self.node_draws_before(position)
        positions = dict(self.mixture.takeover.positions)
        for stream, row in zip(self.streams, node_draws, strict=True):
            positions[stream.name] = stream.passes.position(row, stream.fingerprint)
        begin = self.mixture.takeover.begin_of(self.epoch, len(self))
        return Takeover(epoch=self.epoch, sample=position, begin=begin, positions=positions, rule=2)

    def stream_counts(self, begin: int, end: int) -> IntArray:
        # It costs about as much for few positions as for all, and least where they follow those counted last.
        if len(self.streams) == 1:
            return np.array([end - begin])
        before = self._counted[1] if self._counted[0] == begin else self.node_draws_before(begin).sum(1)
        self._counted = end, self.node_draws_before(end).sum(1)
        return self._counted[1] - before

    def node_draws_before(self, position: int) -> IntArray:
        """Return the node draws before a position of this epoch, since the streams' first: int64[streams, nodes]."""
        if not self.first <= position <= self._size:
            raise IndexError(f'positions must be in [{self.first}, {self._size}], got {position}.')
        segment = self._segments[max(int(self._begins.searchsorted(position, 'right')) - 1, 0)]
        before = segment.node_draws.reshape(len(self.streams), -1).copy()
        for node in range(self.num_canonical_nodes):
            first = (node - segment.begin) % self.num_canonical_nodes
            slot = max(-(-(position - segment.begin - first) // self.num_canonical_nodes), 0)
            before[:, node] += segment.interleave.draws_before(node, slot)
        return before


def _fixed_subsets(mixture: Mixture, config: OrderConfig, key: int) -> dict[int, FixedSubset]:
    """By stream number, the samples of streams that an epoch takes in part, where they are the same in each epoch."""
    partial = [s for s, (n, stream) in enumerate(zip(mixture.choose, mixture.streams, strict=True)) if n % stream.size]
    if config.sampling == 'fixed':
        refuse_exclusions({'schedule': mixture.schedule, 'sampling_method': config.sampling})
        granularity = config.sampling_granularity
        return {
            s: FixedSubset(stream, mixture.choose[s], granularity, derive(key, hash_text(stream.name)))
            for s, stream in enumerate(mixture.streams)
            if s in partial
        }
    if config.sampling_granularity > 1 and partial and mixture.schedule is None:
        raise ConfigError(
            f"with the native order sampling_granularity needs sampling_method 'fixed', got "
            f'{config.sampling_granularity} for stream {mixture.streams[partial[0]].name!r}, of which an epoch takes a '
            f"part. 'balanced' sampling continues with the next samples in each epoch, whole shards after one another. "
            f"Remove sampling_granularity, or choose sampling_method 'fixed' or one of MosaicML Streaming's orders."
        )
    return {}


def _of_subset(stream: StreamSize, subset: FixedSubset) -> StreamSize:
    """The stream as it is without the samples that no epoch draws."""
    size = int(subset.sizes.sum())
    return StreamSize(name=stream.name, shard_sizes=subset.sizes, fingerprint=f'{stream.fingerprint} {size}')


def _block_sizes(mixture: Mixture, block_size: int) -> list[int]:
    """The samples of each stream in a block of the sequence, by the largest share that the stream ever has."""
    mixes: list[tuple[int, ...]] = [*mixture.stages]
    if mixture.schedule is not None:
        mixes = [step.weights for step in mixture.schedule.steps([stream.name for stream in mixture.streams])]
    blocks = [1] * len(mixture.streams)
    for mix in mixes:
        total = sum(mix)
        blocks = [max(block, block_size * share // total) for block, share in zip(blocks, mix, strict=True)]
    return blocks


def _check_units(units: int, global_batch_size: int, replicas: int) -> None:
    """Check that a replica's batch is of whole units, or within one."""
    if units % replicas and replicas % units:
        divisors = [n for n in range(1, global_batch_size + 1) if global_batch_size % n == 0]
        allowed = [n for n in divisors if units % n == 0 or n % units == 0]
        raise TopologyError(
            f'with device_per_stream batching the ranks that share a global batch must divide the {units} device '
            f'batches that the run began with, or be a multiple of them, got {replicas}. Possible are {allowed}.'
        )
