"""The whole-epoch permutation of the compatible orders: which sample stands at which position.

It is a function of (mixture, config, epoch), and not of the topology or the batching of an epoch's positions.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ConfigError
from headrace.order.batching import epoch_seed
from headrace.order.generators import random_stream
from headrace.order.resampling import resample
from headrace.order.sampling import choose_per_shard
from headrace.order.shuffle import PERMUTATIONS
from headrace.order.state import pinned_config

if TYPE_CHECKING:
    from headrace.order.config import OrderConfig
    from headrace.order.mixture import IntArray, Mixture

__all__ = ['fill_permutation', 'permutation_key', 'resample_streams']

_CHUNK = 1 << 20


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
    units, ids = resample_streams(mixture, config, epoch, stream)
    first = 0 if stream is None else int(mixture.sample_offsets[stream])
    if not config.shuffle:
        out[:] = np.arange(first, first + len(out)) if ids is None else ids
        return
    shuffle = PERMUTATIONS[str(config.algorithm)]
    shuffle(out, units, config.num_canonical_nodes or 1, config.seed, epoch, block)
    if ids is None:
        out += first
        return
    for begin in range(0, len(out), _CHUNK):
        out[begin : begin + _CHUNK] = ids[out[begin : begin + _CHUNK]]


def resample_streams(
    mixture: Mixture, config: OrderConfig, epoch: int, stream: int | None = None
) -> tuple[IntArray, IntArray | None]:
    """List what an epoch draws, of all streams or of one, before it is shuffled; see `resample`."""
    numbers = range(len(mixture.streams)) if stream is None else [stream]
    seed = epoch_seed(config, epoch)
    # Which samples of a shard are drawn changes from epoch to epoch also without shuffle.
    balanced_seed = config.seed + epoch if config.sampling == 'balanced' else config.seed
    sizes = [mixture.streams[i].shard_sizes for i in numbers]
    chosen = [
        choose_per_shard(mixture.streams[i].shard_sizes, mixture.choose[i], config.sampling_granularity, seed)
        for i in numbers
    ]
    return resample(
        np.concatenate(sizes),
        np.concatenate(chosen),
        int(mixture.sample_offsets[numbers[0]]),
        random_stream(balanced_seed),
    )
