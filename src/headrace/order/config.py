"""A user's settings of the order, their defaults for given data, and their effect on downloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.errors import ConfigError, UnknownNameError
from headrace.errors.exclusions import refuse_exclusions
from headrace.errors.redaction import warn
from headrace.order.families import ALGORITHMS, DEFAULT_ALGORITHM, Family, family_of
from headrace.order.mixture.mixture import Mixture

PARTITIONS = ('orig', 'relaxed')
"""Ways of MosaicML Streaming to split the sequence over nodes."""

BATCHINGS = ('random', 'stratified', 'per_stream', 'device_per_stream')
SAMPLINGS = ('balanced', 'fixed')


class DefaultSeed(int):
    """The seed where none is given: that of a checkpoint takes its place. A given seed is a plain int."""


DEFAULT_SEED = DefaultSeed(9176)
"""MosaicML Streaming's."""

MAX_CANONICAL_NODES = 65_536
"""Far beyond any use: the order keeps a few numbers for each canonical node of each stream."""

MAX_BUCKET = 1 << 16
"""A window's costs are sorted in memory."""

_MAX_PLACES = 1 << 24  # canonical nodes times streams: 128 MiB for each of these numbers

_SHARDS_PER_CANONICAL_NODE = 64
_MAX_DEFAULT_CANONICAL_NODES = 64

MAX_EPOCH_SIZE: Final = 10**12  # Samples of an epoch: products of two numbers of its parts fit 64 bits.
_MAX_SAMPLES: Final = 10**18  # of a run


def is_count(value: object, least: int = 0, most: int = _MAX_SAMPLES) -> bool:
    """Whether a value is an integer within bounds, both inclusive."""
    return type(value) is int and least <= value <= most


def is_text(value: object) -> bool:
    return isinstance(value, str)


BATCH_COST_RULE: Final = (
    'must be the budget of a global batch, a whole number, or a mapping of `budget` and perhaps `multiple`, another '
    'one, and `sum`, true or false'
)
_DEFAULT_BUCKET = 64  # with `batch_cost`


@dataclass(frozen=True, slots=True)
class BatchCost:
    """The most that a global batch costs: it has as many rows as that allows, and the global batch size at most."""

    budget: int
    """The most of rows times the cost of the longest one, as if all ranks padded to it."""
    multiple: int = 8
    """Divides the rows of every batch but an epoch's last, so that ranks that divide it get equally many."""
    sum: bool = False
    """Whether the budget is that of the sum of the rows' costs, for models that do not pad."""

    @classmethod
    def of(cls, raw: object) -> BatchCost | None:
        """The value of ``batch_cost``: a number is the budget; without one, all batches have one size."""
        if raw is None or isinstance(raw, BatchCost):
            return raw
        given: Any = {'budget': raw} if type(raw) is int else raw
        cost = cls(**given) if isinstance(given, Mapping) and {'budget'} <= {*given} <= {*cls.__slots__} else None
        counts = () if cost is None else (cost.budget, cost.multiple)
        if cost is None or type(cost.sum) is not bool or not all(is_count(count, 1, (1 << 62) - 1) for count in counts):
            raise ConfigError(f'`batch_cost` {BATCH_COST_RULE}, got {raw!r:.100}.')
        return cost

    @property
    def plain(self) -> dict[str, Any]:
        """The value that YAML and checkpoints have."""
        return {'budget': self.budget, 'multiple': self.multiple, 'sum': self.sum}


def _is_batch_cost(value: object) -> bool:
    try:
        return BatchCost.of(value) is not None
    except ConfigError:
        return False


class OrderOption(NamedTuple):
    """What a dataset and the states of its runs say of a field of `OrderConfig`."""

    argument: str = ''  # The dataset's; '': the field follows from others.
    holds: Callable[[Any], bool] | None = None  # Whether a state may have a value; None: its `config` lacks the field.
    rule: str = ''  # What such a value is, for messages.
    beside: str = ''  # The field that is set in runs whose states have this one; '': all states have it.
    of_mixture: bool = False  # Whether it may change with the mixture.


def _option(default: Any, *option: Any, **more: Any) -> Any:
    return field(default=default, metadata={'option': OrderOption(*option, **more)})


_is_positive = partial(is_count, least=1)
_of_batches = partial(_option, None, of_mixture=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderConfig:
    """The settings that a global sequence depends on, beside its mixture and epoch. None: see `resolve_defaults`."""

    shuffle: bool = _option(False, 'shuffle', lambda value: isinstance(value, bool), 'true or false')
    """Whether samples are shuffled. If not, streams follow one another in stored order."""
    algorithm: str | None = _option(None, 'shuffle_algo', ALGORITHMS.__contains__, f'one of {", ".join(ALGORITHMS)}')
    """Name of the shuffle algorithm."""
    seed: int = _option(DEFAULT_SEED, 'shuffle_seed')
    """Shuffle seed, a non-negative int of any size."""
    num_canonical_nodes: int | None = _option(None, 'num_canonical_nodes')
    """Number of parts that the sequence runs through side by side: position p belongs to canonical node p modulo
    this. On any number of nodes that divides it, a node reads only its own parts' shards. 0 is None."""
    block_size: int | None = _option(None, 'shuffle_block_size', _is_positive, 'a number of samples')
    """Samples of a canonical node's sequence over which a shard's samples are spread, about."""
    batching: str = _option('random', 'batching_method', is_text, 'text')
    """How streams share batches."""
    sampling: str = _option('balanced', 'sampling_method', is_text, 'text')
    """Samples of a stream that an epoch takes in part. ``balanced``: others in each epoch; the native order continues
    with its next samples. ``fixed``: the same in each epoch."""
    sampling_granularity: int = _option(1, 'sampling_granularity', _is_positive, 'a number of samples')
    """Samples of a shard that are chosen together. The native order knows it with ``fixed`` sampling only."""
    bucket: int | None = _of_batches(
        'bucket', partial(_is_positive, most=MAX_EPOCH_SIZE), 'a number of batches', beside='bucket'
    )
    """Batches of a window, whose samples are sorted by cost: see `headrace.order.lengths`. None: no windows."""
    batch_cost: BatchCost | None = _of_batches(  # noqa: RUF009 - a field
        'batch_cost', _is_batch_cost, 'a budget of cost', beside='batch_cost'
    )
    """Batches of a window are cut by cost, and the global batch size is the most rows of one. ``bucket`` is
    64 by default then. None: all batches have one size."""
    costs: str = _option('', '', is_text, 'text', beside='bucket', of_mixture=True)
    """The identity of the costs, with ``bucket``."""
    global_batch_size: int | None = _of_batches(
        '', partial(_is_positive, most=MAX_EPOCH_SIZE), 'a number of samples', beside='global_batch_size'
    )
    """Samples of a global batch. Of native orders those with ``bucket`` or batching but ``random`` depend on it."""
    device_batches: int | None = _of_batches(
        '', partial(_is_positive, most=MAX_EPOCH_SIZE), 'a number of device batches', beside='device_batches'
    )
    """Device batches of a global batch, of which the native order's ``device_per_stream`` gives each to one stream."""
    partition: str = _option('relaxed', 'partition_algo', is_text, 'text')
    """How the sequence is split over nodes; the native order ignores it."""

    @classmethod
    def of(cls, options: Any) -> OrderConfig:
        """The settings among a dataset's options."""
        return cls(**{name: getattr(options, option) for option, name in ORDER_ARGUMENTS.items()})

    def __post_init__(self) -> None:
        bounds = {'device_batches': 1, 'bucket': 1, 'seed': 0, 'num_canonical_nodes': 0, 'block_size': 1}
        bounds['sampling_granularity'] = 1
        if self.batch_cost is not None and self.bucket is None:
            object.__setattr__(self, 'bucket', _DEFAULT_BUCKET)
        for name, least in bounds.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigError(f'{name} must be an int of at least {least}, got {value!r}.')
        refuse_exclusions({argument: getattr(self, name) for argument, name in ORDER_ARGUMENTS.items()})
        if (self.bucket or 0) > MAX_BUCKET:
            raise ConfigError(f'bucket must be at most {MAX_BUCKET:,} batches, got {self.bucket}.')
        if self.batching not in BATCHINGS:
            raise ConfigError(f'batching_method must be one of {list(BATCHINGS)}, got {self.batching!r}.')
        if self.sampling not in SAMPLINGS:
            raise ConfigError(f'sampling_method must be one of {list(SAMPLINGS)}, got {self.sampling!r}.')
        if self.partition not in PARTITIONS:
            raise UnknownNameError(f'partition_algo must be one of {list(PARTITIONS)}, got {self.partition!r}.')
        if (self.num_canonical_nodes or 0) > MAX_CANONICAL_NODES:
            raise ConfigError(
                f'num_canonical_nodes must be at most {MAX_CANONICAL_NODES:,}, got {self.num_canonical_nodes}. A small '
                f'multiple of the number of machines is enough.'
            )

    @property
    def pinned(self) -> dict[str, Any]:
        """The fields that states have, as values of JSON."""
        return {
            name: getattr(value, 'plain', value)
            for name, option in ORDER_OPTIONS.items()
            if option.holds is not None and (not option.beside or getattr(self, option.beside) not in (None, False))
            for value in [getattr(self, name)]
        }

    @property
    def family(self) -> Family:
        """The family of the algorithm."""
        return family_of(self.algorithm)

    @property
    def has_batches(self) -> bool:
        """Whether the sequence depends on where global batches begin and end."""
        return (self.batching != 'random' or self.bucket is not None) and not self.family.deals_batches

    @property
    def takes_bucket(self) -> bool:
        """Whether `bucket` could be set beside the rest."""
        return self.bucket is None and not self.family.deals_batches and 'per_stream' not in self.batching

    def takeover_unit(self, epoch_size: int) -> int:
        """Samples from one position of an epoch to the next at which another mixture may take over."""
        if self.batch_cost is not None:
            return epoch_size
        return 1 if self.bucket is None else self.bucket * (self.global_batch_size or 1)

    @property
    def units(self) -> int:
        """Parts of a global batch that are of one stream each; 0: batches are mixed, or the parts not yet known."""
        if not self.has_batches or self.batching in ('random', 'stratified'):
            return 0
        return 1 if self.batching == 'per_stream' else self.device_batches or 0

    def for_batches(self, global_batch_size: int, replicas: int | None) -> OrderConfig:
        """The settings for global batches of a size; `replicas` gives the device batches, unless they are settled."""
        if not self.has_batches:
            return self
        devices = self.device_batches
        if self.batching == 'device_per_stream' and (devices is None or global_batch_size % devices):
            devices = replicas
        return replace(self, global_batch_size=global_batch_size, device_batches=devices)

    def resolve_defaults(self, mixture: Mixture, num_nodes: int = 1) -> OrderConfig:
        """Fill in every None.

        The native order takes all from the data alone, so that the sequence does not depend on the topology:

        * algorithm: native.
        * num_canonical_nodes: 1 without shuffle, so that the sequence is the stored one. With shuffle the power of two
          below shards / 64, from 1 to 64. Then that many nodes read disjoint shards, and each part has enough shards to
          shuffle well. The number divides the global batch, except with random batching.
        * block_size: 4,000,000 / num_canonical_nodes, but at least 262,144, as in MosaicML Streaming.

        MosaicML's orders have MosaicML Streaming's defaults: `Family.nodes` times ``num_nodes`` canonical nodes.

        Args:
            mixture: the data.
            num_nodes: nodes of the parallel world that the run begins on.

        Raises:
            ConfigError: the batching needs canonical nodes or device batches that divide the global batch; or the
                canonical nodes are too many for the streams.
        """
        refuse_exclusions({'batch_cost': self.batch_cost, 'global_batch_size': self.global_batch_size})
        nodes = self.canonical_nodes(mixture.num_shards, num_nodes)
        if nodes * len(mixture.streams) > max(_MAX_PLACES, len(mixture.streams)):
            raise ConfigError(
                f'num_canonical_nodes times the number of streams must be at most {_MAX_PLACES:,}, got {nodes} for '
                f'{len(mixture.streams)} streams. Set num_canonical_nodes to fewer.'
            )
        if self.units and self.global_batch_size is not None and self.global_batch_size % nodes:
            raise ConfigError(
                f'with {self.batching} batching num_canonical_nodes must divide the global batch, got {nodes} for '
                f'batches of {self.global_batch_size}. {math.gcd(nodes, self.global_batch_size)} would.'
            )
        if self.units and (self.global_batch_size or 0) % self.units:
            raise ConfigError(
                f'the device batches must divide the global batch, got {self.units} for batches of '
                f'{self.global_batch_size}.'
            )
        return replace(
            self,
            seed=int(self.seed),
            algorithm=self.algorithm or DEFAULT_ALGORITHM,
            num_canonical_nodes=nodes,
            block_size=self.block_size or max(4_000_000 // nodes, 262_144),
        )

    def canonical_nodes(self, shards: int, num_nodes: int = 1) -> int:
        """The number given, or the default that `resolve_defaults` describes; `shards`: of all streams together."""
        if self.num_canonical_nodes:
            return self.num_canonical_nodes
        if self.family.nodes:
            return num_nodes * self.family.nodes
        parts = shards // _SHARDS_PER_CANONICAL_NODE if self.shuffle else 1
        nodes = min(1 << max(parts.bit_length() - 1, 0), _MAX_DEFAULT_CANONICAL_NODES)
        divided = self.global_batch_size if self.batch_cost is None else self.batch_cost.multiple
        return math.gcd(nodes, divided or nodes)

    def warn_of_small_blocks(self, mixture: Mixture) -> None:
        """Warn of blocks that leave a stream's samples close to their shard, in the batches that they share."""
        if not (self.shuffle and self.family.has_blocks) or self.block_size is None:
            return
        # Other streams spread a stream's samples, too, unless batches are of one stream.
        is_shared = self.batching == 'random' or (self.batching == 'stratified' and not self.family.deals_batches)
        for stream, share in zip(mixture.streams, mixture.proportions, strict=True):
            block = self.block_size if is_shared else int(self.block_size * share)
            largest = int(stream.shard_sizes.max())
            if share and block < largest < stream.size:
                warn(
                    f'Shuffle block size was smaller than shard size for some shards of stream {stream.name!r} '
                    f'({block} < {largest} samples). Samples will stay close to their shard. Recommendation is to set '
                    f'shuffle_block_size to {math.ceil(largest if is_shared else largest / share)} or more.',
                    stacklevel=4,
                )
                return


ORDER_OPTIONS: Final[Mapping[str, OrderOption]] = {
    setting.name: setting.metadata['option'] for setting in fields(OrderConfig)
}
ORDER_ARGUMENTS: Final = {option.argument: name for name, option in ORDER_OPTIONS.items() if option.argument}
"""Arguments of a dataset, and their names in `OrderConfig`."""


class SharedShards(NamedTuple):
    """Several nodes read each shard."""

    text: str
    """A sentence that says so."""
    fix: str
    """The setting that changes it, as an imperative."""
    canonical_nodes: int
    """The value of that setting."""


def shared_shards(config: OrderConfig, shards: int, nodes: int) -> SharedShards | None:
    """Whether several nodes read each shard, though nodes could have shards of their own; None: no.

    Position p of the sequence belongs to canonical node p modulo C, and to node p modulo N. So gcd(N, C) groups of
    nodes have disjoint canonical nodes, and the N / gcd(N, C) nodes of a group read the same shards.
    """
    canonical = config.canonical_nodes(shards, nodes)
    copies = nodes // math.gcd(nodes, canonical)
    # With fewer shards than nodes, the parts of nodes would lie in the same shards, too.
    if copies == 1 or shards < nodes:
        return None
    wanted = max(canonical // nodes, 1) * nodes
    if config.has_batches and (config.global_batch_size or 0) % wanted:
        wanted = nodes  # divides every global batch
    return SharedShards(
        f'{copies} of {nodes} nodes download each shard, because num_canonical_nodes is {canonical}',
        f'set `num_canonical_nodes: {wanted}` in a new run, and each node downloads shards of its own; it changes the '
        f'order of the samples',
        wanted,
    )
