"""From a state to the config, the mixture and the position that a run goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.errors import ResumeError
from headrace.errors.redaction import warn
from headrace.order.config import DefaultSeed, OrderConfig
from headrace.order.families import family_of
from headrace.order.mixture.mixture import Mixture, StreamSize
from headrace.order.mixture.schedule import Schedule
from headrace.order.mixture.takeover import Takeover
from headrace.order.native.order import NativeOrder
from headrace.order.skip import Ranges, without
from headrace.order.state import ResumeState


def resolved_from_state(config: OrderConfig, state: ResumeState) -> OrderConfig:
    """Fill in seed, canonical nodes, algorithm and block size from a state, where they were not given.

    `ResumeState.check` refuses those that were given and differ. In MosaicML's orders a state decides seed and
    canonical nodes in any case: so do MosaicML's states, and a run that began with one restarts with its own. Their
    default algorithm py1e takes the place of one that was not given.
    """
    if state.is_stale:
        return config
    pinned = state.pinned
    decides = family_of(state.algorithm).follows_state
    return replace(
        config,
        seed=state.shuffle_seed if decides or isinstance(config.seed, DefaultSeed) else config.seed,
        num_canonical_nodes=(decides and state.num_canonical_nodes)
        or config.num_canonical_nodes
        or state.num_canonical_nodes
        or None,
        algorithm=config.algorithm or state.algorithm,
        block_size=config.block_size or pinned.get('block_size'),
    )


def resume(
    state: ResumeState, config: OrderConfig, mixture: Mixture, *, may_change_mixture: bool = False
) -> tuple[Mixture, ResumeState]:
    """Go on from a state: with the mixture it was written under, or, if that is allowed, with another one.

    Under another mixture, streams that are in both go on where they were, with the sample after their last. Returns the
    mixture, which knows where it took over, and the state's position in its terms. The arguments are
    `ResumeState.check`'s.
    """
    if state.is_stale:
        return mixture, state
    config = config.resolve_defaults(mixture)
    if not state.check(config, mixture, may_change_mixture=may_change_mixture):
        return replace(mixture, takeover=state.takeover), state
    assert state.epoch_size is not None  # else nothing can differ
    pinned = state.pinned
    is_whole = config.batch_cost is not None or 'batch_cost' in pinned
    if is_whole and state.sample_in_epoch not in (0, state.epoch_size):
        raise ResumeError(
            f'With `batch_cost` another mixture takes over where an epoch ends, but the checkpoint is at sample '
            f'{state.sample_in_epoch} of {state.epoch_size}. Resume at the end of an epoch.'
        )
    window = pinned.get('bucket', 0) * pinned.get('global_batch_size', 1)
    begin = state.takeover.sample if state.epoch == state.takeover.epoch else 0
    if window and (state.sample_in_epoch - begin) % window and state.sample_in_epoch != state.epoch_size:
        raise ResumeError(
            f'With `bucket` another mixture takes over where a window ends, every {window} samples, but the '
            f'checkpoint is at sample {state.sample_in_epoch} of its epoch. Resume at the end of a window or an epoch.'
        )
    if 'global_batch_size' in pinned:
        size, devices = pinned['global_batch_size'], pinned.get('device_batches')
        config = replace(config, global_batch_size=size, device_batches=devices)
    order = NativeOrder(recorded_mixture(pinned, state.epoch_size), config, state.epoch)
    takeover, sample = order.takeover_at(state.sample_in_epoch), state.sample_in_epoch
    if sample > mixture.epoch_size or (sample == state.epoch_size and (is_whole or sample < mixture.epoch_size)):
        state = replace(state, epoch=state.epoch + 1, sample_in_epoch=0)
        takeover = replace(takeover, epoch=state.epoch, sample=0, begin=takeover.begin + sample)
    if config.sampling != 'fixed':  # a fixed sample's data are those of a subset
        positions = dict(takeover.positions)
        for stream in mixture.streams:
            position = positions.get(stream.name)
            if position is not None and position.fingerprint != stream.fingerprint:
                positions[stream.name] = position.with_other_data(stream.fingerprint, stream.size)
        takeover = replace(takeover, positions=positions)
    return replace(mixture, takeover=takeover), state


def recorded_mixture(
    pinned: Mapping[str, Any], epoch_size: int, streams: Mapping[str, StreamSize] | None = None
) -> Mixture:
    """The mixture of a state; streams that are not given have one shard, which is enough to count their draws."""
    given = streams or {}
    recorded = [
        given[s['name']]
        if s['name'] in given and given[s['name']].fingerprint == s['fingerprint']
        else StreamSize(name=s['name'], shard_sizes=np.array([s['samples']]), fingerprint=s['fingerprint'])
        for s in pinned['streams']
    ]
    choose = tuple(s['choose'] for s in pinned['streams'])
    return Mixture(
        streams=tuple(recorded),
        choose=choose,
        proportions=tuple(c / max(sum(choose), 1) for c in choose),
        epoch_size=epoch_size,
        stages=tuple(map(tuple, pinned.get('stages', [choose]))),
        schedule=Schedule.of(pinned['schedule']) if 'schedule' in pinned else None,
        takeover=Takeover.of(pinned.get('origin')),
    )


def warn_of_overruled(configured: OrderConfig, config: OrderConfig) -> None:
    """Warn where a checkpoint of MosaicML Streaming's order overrules what was given."""
    seed = [] if isinstance(configured.seed, DefaultSeed) else [('shuffle_seed', configured.seed, config.seed)]
    nodes = [('num_canonical_nodes', configured.num_canonical_nodes, config.num_canonical_nodes)]
    overruled = [f'{name} {then} (given: {now})' for name, now, then in seed + nodes if now and now != then]
    if overruled:
        warn(
            f"The run continues in the checkpoint's order, MosaicML Streaming's, with {' and '.join(overruled)}. "
            f'Leave out what the checkpoint gives.',
            stacklevel=2,
        )


def check_skipped(then: Ranges, now: Ranges) -> None:
    """Check that this run skips every sample that the checkpoint's run skips."""
    back = without(then, now)
    if back:
        raise ResumeError(
            f'the run of the checkpoint skips samples that this one does not: skip was {_text(then)} from the '
            f'checkpoint on, in samples of the run, and is {_text(now)} now, which brings back {_text(back)}. Put them '
            f"into skip, or pass on_mixture_change='continue' to train on them."
        )


def _text(ranges: Ranges) -> str:
    return ', '.join(f'[{begin}, {end}]' for begin, end in ranges) or 'nothing'
