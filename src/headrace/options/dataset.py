"""The options of a dataset: its streams' defaults, the order of the samples, and the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, cast

from headrace.errors.redaction import redacted_repr
from headrace.format import bytes_to_int
from headrace.options.constraints import AtLeast, Bytes, Count, MoreThan, OneOf, Parsed, parsed
from headrace.options.streams import SelectionConfig
from headrace.order import Exhaustion, MixtureChange, Remainder, SkipRange
from headrace.order.config import BATCH_COST_RULE, BATCHINGS, PARTITIONS, SAMPLINGS, BatchCost
from headrace.order.families import ALGORITHMS
from headrace.order.skip import read_range
from headrace.order.topology import Uneven
from headrace.selection import Mistake
from headrace.storage.cache.peer_options import RULE, PeerOptions

LossWeight: TypeAlias = Literal['samples', 'cost']
BadSamplePolicy: TypeAlias = Literal['raise', 'skip']
OnGrowth: TypeAlias = Literal['ignore', 'next_pass', 'delta', 'wait']


def _read_skip(value: object, mistakes: list[Mistake]) -> tuple[tuple[int | str, int | str], ...]:
    if not isinstance(value, list):
        mistakes.append(Mistake((), value, 'must be a list of ranges [begin, end]'))
        return ()
    items = cast('list[Any]', value)
    rules = [(number, read_range(item)) for number, item in enumerate(items)]
    wrong = [Mistake((number,), items[number], rule) for number, rule in rules if isinstance(rule, str)]
    mistakes += wrong
    return () if wrong else tuple((begin, end) for begin, end in items)


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions(SelectionConfig):
    """The options that a `StreamingDataset` and a loader of a configuration have alike."""

    streams: Sequence[Any] | None = None
    """The streams to mix: `Stream` objects in Python, and in a configuration streams by name, or a list of streams with
    `name`. Or give a single one by `remote`, `local` and `split`."""

    remote: str | None = None
    """In place of `streams`: a single one's `remote`."""

    local: str | None = None
    """In place of `streams`: a single one's `local`."""

    split: str | None = None
    """In place of `streams`: a single one's `split`."""

    epoch_size: Annotated[int | str | None, Count()] = None
    """Samples per epoch; not with `repeat` or `choose`. Default: those of the streams."""

    predownload: Annotated[int | None, AtLeast(0)] = None
    """Samples that each worker prefetches. Default: 65,536 or 8 batches, the larger, in 512 MiB and 1,024 shards."""

    cache_limit: Annotated[int | str | None, Bytes()] = None
    """Limit of shards and indexes in this machine's cache folders. Default: none."""

    peers: Annotated[PeerOptions | Mapping[str, Any] | None, parsed(PeerOptions.of, 'a mapping', RULE)] = None
    """`{}` has the nodes share their caches: see `docs/tuning.md`. Default: each node downloads for itself."""

    sampling_method: Annotated[str, OneOf(SAMPLINGS)] = 'balanced'
    """From a stream taken in part: other samples in each epoch, or the same ones. `fixed` does not go with a
    `schedule`."""

    sampling_granularity: Annotated[int, AtLeast(1)] = 1
    """Samples that are taken together from a shard, to read fewer shards; above 1, the native order needs `fixed`."""

    partition_algo: Annotated[str, OneOf(PARTITIONS)] = 'relaxed'
    """How MosaicML Streaming's orders deal shards to nodes."""

    num_canonical_nodes: Annotated[int | None, AtLeast(1)] = None
    """Parts of the order that are read side by side, on any number of nodes. Another number gives another order.
    Default: the checkpoint's, or the algorithm's."""

    shuffle: bool = False
    """Shuffle the samples."""

    shuffle_algo: Annotated[str | None, OneOf(ALGORITHMS)] = None
    """Order of the samples: see `docs/order.md`. Default: the checkpoint's, or `native`."""

    shuffle_seed: Annotated[int | None, AtLeast(0)] = None
    """Seed of the order; a resume refuses another one than the checkpoint's. Default: the top level's, the
    checkpoint's, or 9176."""

    shuffle_block_size: Annotated[int | None, Count()] = None
    """Samples that are shuffled among each other, per canonical node. Default: the algorithm's."""

    batching_method: Annotated[str, OneOf(BATCHINGS)] = 'random'
    """How streams share a batch: see `docs/mixtures.md`."""

    bucket: Annotated[int | None, AtLeast(1)] = None
    """Batches of a window whose samples are sorted by `cost`: see `docs/lengths.md`."""

    batch_cost: Annotated[
        int | Mapping[str, Any] | BatchCost | None, parsed(BatchCost.of, 'a number, or a mapping', BATCH_COST_RULE)
    ] = None
    """Cut batches of a window so that rows times the longest `cost` are at most this: see `docs/lengths.md`. The batch
    size is the most rows. A mapping has `budget`; `multiple`, which divides the rows and must divide by the ranks, 8 by
    default; and `sum`, true for the sum of costs. `bucket` is 64 then by default."""

    balance: Annotated[float | None, MoreThan(0)] = None
    """Deal rows to ranks so that sums of `cost` to this power are nearly equal: 1, or 2 for attention."""

    loss_weight: LossWeight | None = None
    """Put the weight of each row into the batch, as `loss_weight`: see `docs/order.md`."""

    uneven: Uneven | None = None
    """Ranks that do not divide `global_batch_size`: see `docs/order.md`. `pad` gives each equally many rows, some of
    them padding; `ragged` does not. Default: refused."""

    schedule: Any = ()
    """Proportions that change during the run, in place of weights. Each point has `at`, `proportions` and `change`."""

    decisions: Sequence[Any] | Mapping[str, Any] = ()
    """Decided proportions of an earlier run, to be repeated: see `docs/mixtures.md`."""

    when_exhausted: Exhaustion = 'repeat'
    """After the last sample of a stream: begin its next pass, end the epoch, or continue without it."""

    on_mixture_change: MixtureChange = 'refuse'
    """Refuse a checkpoint of another mixture, or continue each stream where it was."""

    on_growth: OnGrowth = 'ignore'
    """Shards that are appended during the run: leave them out, take them from the next epoch on, take only the new
    samples if there are any, or wait for new ones. See `docs/mixtures.md`."""

    growth_wait: Annotated[float, MoreThan(0)] = 600
    """Seconds for which `on_growth: wait` waits for new samples, before it raises an EmptyDatasetError."""

    allow_unsafe_types: bool = False
    """Read pickles. They run code of their writer: for your own data only."""

    replication: Annotated[int | None, AtLeast(1)] = None
    """Neighbouring ranks that get the same samples, such as the tensor-parallel degree. Default: 1."""

    remainder: Remainder | None = None
    """Samples after the last full global batch: fill it with repeats, mark these, or drop the samples. Default:
    `repeat`; `exact` for evaluation under Lightning."""

    skip: Annotated[Sequence[SkipRange], Parsed(_read_skip, 'a list of pairs')] = ()
    """Ranges of the run to skip, the end exclusive: `[[4096, 8192], [1200ba, 1250ba], [17doc, 20doc]]`. They count
    samples, global batches of the present size, or documents. Each resume may add some; one ahead of a checkpoint needs
    `on_mixture_change: continue`."""

    on_bad_sample: BadSamplePolicy = 'raise'
    """Raise for a sample whose data are missing or damaged, or read another in its row, and mark the row as
    `is_bad_sample`."""

    @property
    def cache_bytes(self) -> int | None:
        """The limit of the cache in bytes, or None."""
        return None if self.cache_limit is None else bytes_to_int(self.cache_limit)
