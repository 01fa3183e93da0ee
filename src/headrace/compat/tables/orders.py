"""The steps of MosaicML Streaming's orders, and what its processes share."""

from __future__ import annotations

from headrace.compat.names import Tables, absent, alias, meaningless

__all__ = ['TABLES']

_ARRAYS = 'headrace.order.mosaicml.epoch_arrays'
_PARTS = "Use `get_partitions('{0}', ...)`."
_SHUFFLE = "Use `get_shuffle('{0}', ...)`."
_WORK = (
    'A loader computes its batches one by one. `dataset.plan(epoch=...)` has the samples of each batch and rank, and '
    '`headrace explain` prints them.'
)
_SHARED = (
    'headrace has no shared memory, barriers and lock files of its own. Use torch.distributed or '
    'multiprocessing.shared_memory.'
)
_SHARED_NAMES = ('SharedArray', 'SharedBarrier', 'SharedMemory', 'SharedScalar', 'get_shm_prefix')

TABLES: Tables = {
    'streaming.base.partition': alias(_ARRAYS, 'get_partitions'),
    'streaming.base.partition.orig': absent(_PARTS.format('orig'), 'get_partitions_orig'),
    'streaming.base.partition.relaxed': absent(_PARTS.format('relaxed'), 'get_partitions_relaxed'),
    'streaming.base.shuffle': alias(_ARRAYS, 'get_shuffle'),
    'streaming.base.shuffle.naive': absent(_SHUFFLE.format('naive'), 'get_shuffle_naive'),
    'streaming.base.shuffle.py1br': absent(_SHUFFLE.format('py1br'), 'get_shuffle_py1br'),
    'streaming.base.shuffle.py1e': absent(_SHUFFLE.format('py1e'), 'get_shuffle_py1e'),
    'streaming.base.shuffle.py1s': {
        **absent(_SHUFFLE.format('py1s'), 'get_shuffle_py1s'),
        **absent('It is `headrace.order.shuffle.divide_spans`, of arrays.', 'divide_spans'),
    },
    'streaming.base.shuffle.py2s': absent(_SHUFFLE.format('py2s'), 'get_shuffle_py2s'),
    'streaming.base.sampling': alias(_ARRAYS, 'get_sampling'),
    'streaming.base.spanner': alias(_ARRAYS, 'Spanner'),
    'streaming.base.batching': absent(_WORK, 'generate_work'),
    'streaming.base.batching.random': absent(_WORK, 'generate_work_random_batching'),
    'streaming.base.batching.stratified': absent(_WORK, 'generate_work_stratified_batching'),
    'streaming.base.batching.per_stream': absent(_WORK, 'generate_work_per_stream_batching'),
    'streaming.base.batching.device_per_stream': absent(_WORK, 'generate_work_device_per_stream_batching'),
    'streaming.base.world': alias('headrace.compat.processes', 'World'),
    'streaming.base.distributed': {
        **alias(
            'headrace.compat.processes',
            'all_gather',
            'all_gather_object',
            'barrier',
            'broadcast',
            'get_local_rank',
            'get_local_world_size',
            'get_rank',
            'get_world_size',
        ),
        **meaningless('headrace needs no process group. Your trainer, or you, make it.', 'maybe_init_dist'),
    },
    'streaming.base.shared': meaningless(_SHARED, *_SHARED_NAMES),
    'streaming.base.shared.array': meaningless(_SHARED, 'SharedArray'),
    'streaming.base.shared.barrier': meaningless(_SHARED, 'SharedBarrier'),
    'streaming.base.shared.memory': meaningless(_SHARED, 'SharedMemory'),
    'streaming.base.shared.prefix': meaningless(_SHARED, 'get_shm_prefix'),
    'streaming.base.shared.scalar': meaningless(_SHARED, 'SharedScalar'),
}
