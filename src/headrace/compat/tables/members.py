"""The methods and attributes of MosaicML Streaming's classes, and their counterparts."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.compat.names import Absent, Alias, Entry, absent, meaningless

__all__ = ['MEMBERS']


def _same(cls: str, *names: str, difference: str = '') -> dict[str, Entry]:
    return {name: Alias(f'headrace.dataset:{cls}.{name}', difference) for name in names}


_WRITER = {
    **_same('MDSWriter', 'finish', 'get_config', 'write'),
    'format': Absent('absent', "Read `get_config()['format']`."),
    **meaningless(
        'It is a step inside of the writer.',
        'cancel_future_jobs',
        'encode_joint_shard',
        'encode_sample',
        'exception_callback',
        'extra_bytes_per_sample',
        'flush_shard',
        'reset_cache',
    ),
}

MEMBERS: Mapping[str, Mapping[str, Entry]] = {
    'StreamingDataset': {
        **_same(
            'StreamingDataset',
            'allow_unsafe_types',
            'batch_size',
            'batching_method',
            'cache_limit',
            'epoch_size',
            'evict_shard',
            'get_item',
            'initial_physical_nodes',
            'length',
            'load_state_dict',
            'next_epoch',
            'num_canonical_nodes',
            'num_samples',
            'num_shards',
            'num_streams',
            'partition_algo',
            'predownload',
            'replication',
            'sample_offset_per_shard',
            'sample_offset_per_stream',
            'samples_per_shard',
            'samples_per_stream',
            'sampling_granularity',
            'sampling_method',
            'shard_offset_per_stream',
            'shards_per_stream',
            'shuffle',
            'shuffle_algo',
            'shuffle_block_size',
            'shuffle_seed',
            'size',
            'spanner',
            'state_dict',
            'stream_per_shard',
            'streams',
        ),
        **_same('StreamingDataset', 'cache_usage', difference='Unpacked bytes of the present shards. It is not set.'),
        **_same('StreamingDataset', 'prepare_shard', difference='It always waits for the shard.'),
        **_same('StreamingDataset', 'resample_streams', difference="For MosaicML Streaming's orders only."),
        **_same('StreamingDataset', 'shards', difference='Entries of the index; `dataset[i]` reads samples.'),
        **meaningless('Errors of prefetches are raised where the data are read.', 'on_exception'),
        **absent('Set `cache_limit`, or call `evict_shard`.', 'evict_coldest_shard'),
    },
    'StreamingDataLoader': _same('StreamingDataLoader', 'load_state_dict', 'state_dict'),
    'Stream': {
        **_same(
            'Stream',
            'choose',
            'download_retry',
            'download_timeout',
            'keep_zip',
            'local',
            'proportion',
            'remote',
            'repeat',
            'split',
            'validate_hash',
        ),
        **meaningless(
            'The dataset does it when it opens its streams.',
            'apply_default',
            'apply_weights',
            'get_index_size',
            'get_shards',
            'prepare_shard',
            'set_up_local',
            'validate_weights',
        ),
    },
    'LocalDataset': _same('LocalDataset', 'get_item', 'num_samples', 'shards', 'size'),
    'MDSWriter': _WRITER,
}
"""By class, the entries of its members."""
