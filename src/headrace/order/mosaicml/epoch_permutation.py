"""The whole-epoch permutation of MosaicML's orders: which sample stands at which position.

It is a function of (mixture, config, epoch), and not of the topology or the batching of an epoch's positions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from headrace.errors import ConfigError
from headrace.order.arrays import IntArray
from headrace.order.config import OrderConfig
from headrace.order.families import PERMUTATIONS
from headrace.order.mixture.mixture import Mixture
from headrace.order.mosaicml.batching import epoch_seed
from headrace.order.random.numpy_streams import RandomStream, random_stream
from headrace.order.state import pinned_config

_CHUNK = 1 << 16


def permutation_key(mixture: Mixture, config: OrderConfig, epoch: int) -> str:
    """Return a name for the order of an epoch, of 32 hex digits: the same for the same arguments."""
    text = f'1 {config.seed} {config.num_canonical_nodes} {epoch} {pinned_config(config, mixture)}'
    sizes = mixture.shard_sizes.astype('<i8').tobytes()
    return hashlib.blake2b(sizes, key=hashlib.blake2b(text.encode()).digest(), digest_size=16).hexdigest()


def fill_permutation(mixture: Mixture, config: OrderConfig, epoch: int, out: IntArray) -> None:
    """Fill out with the sample ids of an epoch's positions.

    Args:
        mixture: streams and what an epoch draws of them.
        config: with its defaults filled in.
        epoch: 0, 1, …
        out: int64[epoch size]; at most twice its memory is needed beside.

    Raises:
        ConfigError: a shuffle block is too small, or samples are too few for it.
    """
    if config.batching == 'random':
        _fill(mixture, config, epoch, out, None, config.block_size or 1)
        return
    begin = 0
    for i, (choose, share) in enumerate(zip(mixture.choose, mixture.proportions, strict=True)):
        block = int((config.block_size or 1) * share)
        if config.shuffle and config.batching == 'device_per_stream' and not block:
            raise ConfigError(
                f'shuffle_block_size times the share of every stream must be at least 1, got {config.block_size} '
                f'times {share} (stream {mixture.streams[i].name!r}). Raise shuffle_block_size.'
            )
        _fill(mixture, config, epoch, out[begin : begin + choose], i, block)
        begin += choose


def _fill(mixture: Mixture, config: OrderConfig, epoch: int, out: IntArray, stream: int | None, block: int) -> None:
    draws = Draws.of(mixture, config, epoch, stream)
    if not config.shuffle:
        ids = draws.ids()
        out[:] = np.arange(draws.first_id, draws.first_id + len(out)) if ids is None else ids
        return
    shuffle = PERMUTATIONS[str(config.algorithm)]
    shuffle(out, draws.units(), config.num_canonical_nodes or 1, config.seed, epoch, block)
    ids = draws.ids()  # after the shuffle, which needs memory of its own
    if ids is None:
        out += draws.first_id
        return
    for begin in range(0, len(out), _CHUNK):
        out[begin : begin + _CHUNK] = ids[out[begin : begin + _CHUNK]]


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The draws of an epoch before the shuffle, of all streams or of one."""

    sizes: IntArray  # int64[shards], samples of each shard.
    chosen: IntArray  # int64[shards], samples to draw from each.
    first_id: int  # Id of the first shard's first sample.
    seed: int  # Of the draws from shards of which a part is drawn.

    @classmethod
    def of(cls, mixture: Mixture, config: OrderConfig, epoch: int, stream: int | None) -> Draws:
        """Work out how much is drawn from each shard; stream None is all of them together."""
        numbers = range(len(mixture.streams)) if stream is None else [stream]
        seed = epoch_seed(config, epoch)
        return cls(
            sizes=np.concatenate([mixture.streams[i].shard_sizes for i in numbers]),
            chosen=np.concatenate(
                [
                    choose_per_shard(
                        mixture.streams[i].shard_sizes, mixture.choose[i], config.sampling_granularity, seed
                    )
                    for i in numbers
                ]
            ),
            first_id=int(mixture.sample_offsets[numbers[0]]),
            # Which samples of a shard are drawn changes from epoch to epoch also without shuffle.
            seed=config.seed + epoch if config.sampling == 'balanced' else config.seed,
        )

    def units(self) -> IntArray:
        return drawn_units(self.sizes, self.chosen)

    def ids(self) -> IntArray | None:
        return drawn_ids(self.sizes, self.chosen, self.first_id, random_stream(self.seed))


def drawn_units(sizes: IntArray, chosen: IntArray) -> IntArray:
    """Return the lengths of units, int64[units].

    Of a shard of n samples, c of them drawn, come c div n full copies, then c mod n different samples. Each is a unit
    of its own, which shuffles keep together as they do a shard.
    """
    copies = chosen // np.maximum(sizes, 1)
    parts = chosen - copies * sizes
    # A shard's full copies, then its part copy, if any: two runs for each shard.
    lengths = np.stack([sizes, parts], 1).ravel()
    return np.repeat(lengths, np.stack([copies, (parts > 0).astype(np.int64)], 1).ravel())


def drawn_ids(sizes: IntArray, chosen: IntArray, first_id: int, stream: RandomStream) -> IntArray | None:
    """Return the sample ids of the units, unit after unit, ascending in each; int64[sum of chosen].

    None if these are just all samples in stored order. The stream has random numbers for the samples of part copies.
    """
    if (sizes == chosen).all():
        return None
    begins = first_id + np.cumsum(sizes) - sizes
    ids = np.empty(int(chosen.sum()), np.int64)
    at = 0
    for begin, size, count in zip(begins.tolist(), sizes.tolist(), chosen.tolist(), strict=True):
        copies, part = divmod(count, max(size, 1))
        for _ in range(copies):
            ids[at : at + size] = np.arange(begin, begin + size)
            at += size
        if part:
            drawn = stream.choice(size, part, replace=False)
            drawn.sort()
            ids[at : at + part] = drawn
            ids[at : at + part] += begin
            at += part
    return ids


def choose_per_shard(sizes: IntArray, choose: int, granularity: int, seed: int) -> IntArray:
    """Spread a stream's samples over its shards: whole passes evenly, the rest by random picks; int64[shards].

    `granularity`: samples of a pick, all from one shard. A ConfigError if it is below 1, or `choose` negative.
    """
    if choose < 0:
        raise ConfigError(f'a stream must choose at least 0 samples, got {choose}.')
    if granularity < 1:
        raise ConfigError(f'sampling_granularity must be at least 1, got {granularity}.')
    passes, rest = divmod(choose, int(sizes.sum()))
    chosen = sizes * passes
    if not rest:
        return chosen
    picks = -(-sizes // granularity)
    ends = np.cumsum(picks)
    last = sizes - (picks - 1) * granularity  # the last pick of a shard is the rest

    # MosaicML Streaming counts the pick before an empty shard as a whole one. So this pick's shard may have to give
    # more samples than it has.
    full = np.flatnonzero(picks)
    before_empty = full[np.append(np.diff(full) > 1, full[-1] < len(sizes) - 1)]
    last[before_empty] = granularity
    count = int(ends[-1])
    order = np.arange(count, dtype=np.uint32 if count < 1 << 32 else np.int64)  # shuffled with the same draws
    random_stream(seed).shuffle(order)
    for begin in range(0, count, _CHUNK):
        chunk = order[begin : begin + _CHUNK]
        shards = np.searchsorted(ends, chunk, 'right')
        taken = np.where(chunk == ends[shards] - 1, last[shards], granularity)
        total = np.cumsum(taken)
        if total[-1] < rest:
            np.add.at(chosen, shards, taken)
            rest -= int(total[-1])
            continue
        used = int(np.searchsorted(total, rest)) + 1
        taken[used - 1] -= total[used - 1] - rest  # of the last pick only a part
        np.add.at(chosen, shards[:used], taken[:used])
        break
    return chosen
