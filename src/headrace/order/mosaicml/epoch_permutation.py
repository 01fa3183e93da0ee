"""The whole-epoch permutation of MosaicML's orders: which sample stands at which position.

It is a function of (mixture, config, epoch), and not of the topology or the batching of an epoch's positions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ConfigError
from headrace.order.mosaicml.batching import epoch_seed
from headrace.order.mosaicml.resampling import drawn_ids, drawn_units
from headrace.order.mosaicml.sampling import choose_per_shard
from headrace.order.random.numpy_streams import random_stream
from headrace.order.shuffle import PERMUTATIONS
from headrace.order.state import pinned_config

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray
    from headrace.order.config import OrderConfig
    from headrace.order.mixture.mixture import Mixture

__all__ = ['Draws', 'fill_permutation', 'permutation_key']

_CHUNK = 1 << 16


def permutation_key(mixture: Mixture, config: OrderConfig, epoch: int) -> str:
    """Return a name for what `fill_permutation` computes, the same for the same arguments."""
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

    sizes: IntArray
    """int64[shards], samples of each shard."""
    chosen: IntArray
    """int64[shards], samples to draw from each."""
    first_id: int
    """Id of the first shard's first sample."""
    seed: int
    """Of the draws from shards of which a part is drawn."""

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
        """Lengths of the units that shuffles keep together; see `drawn_units`."""
        return drawn_units(self.sizes, self.chosen)

    def ids(self) -> IntArray | None:
        """Sample ids; see `drawn_ids`."""
        return drawn_ids(self.sizes, self.chosen, self.first_id, random_stream(self.seed))
