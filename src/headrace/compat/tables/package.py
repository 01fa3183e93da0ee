"""`streaming`, and the modules of datasets, streams, writers and functions around them."""

from __future__ import annotations

from headrace.compat.names import Alias, Tables, absent, alias, meaningless

__all__ = ['TABLES']

DATASET = alias(
    'headrace.dataset',
    'StreamingDataset',
    difference="Without `shuffle_algo` a new run has headrace's order, which is equal on any number of ranks; a loaded "
    "checkpoint of MosaicML Streaming makes it 'py1e'. Pass shuffle_algo='py1e' for MosaicML Streaming's.",
)
LOADER = alias('headrace.dataset', 'StreamingDataLoader')
STREAM = alias('headrace.dataset', 'Stream')
LOCAL = alias('headrace.dataset', 'LocalDataset')
MDS_WRITER = alias('headrace.dataset', 'MDSWriter')
JSON_WRITER = alias('headrace.dataset', 'JSONWriter')
XSV_WRITERS = alias('headrace.dataset', 'CSVWriter', 'TSVWriter', 'XSVWriter')
WRITERS = {**MDS_WRITER, **JSON_WRITER, **XSV_WRITERS}
ALL = {**DATASET, **LOADER, **STREAM, **LOCAL, **WRITERS}

_SPARK = {
    **alias(
        'headrace.compat.functions',
        'dataframe_to_mds',
        difference="A failed task leaves no shards. Columns are inferred as `infer_dataframe_schema`'s.",
    ),
    **alias(
        'headrace.convert',
        'infer_dataframe_schema',
        difference='Bytes and shorts are stored signed. Booleans, times, structs and maps have encodings, too.',
    ),
    'dataframeToMDS': Alias('headrace.compat.functions:dataframe_to_mds', 'A name of earlier versions.'),
    **absent('Call `infer_dataframe_schema`, which says what a column becomes.', 'is_json_compatible', 'SPARK_TO_MDS'),
}

TABLES: Tables = {
    'streaming': ALL,
    'streaming._version': alias('headrace.compat.finder', '__version__'),
    'streaming.base': ALL,
    'streaming.base.dataset': DATASET,
    'streaming.base.dataloader': LOADER,
    'streaming.base.stream': {
        **STREAM,
        **alias(
            'headrace.dataset',
            'streams_registry',
            difference='`register`, `register_class`, `get`, `get_all` and `in`; no other method of catalogue.',
        ),
    },
    'streaming.base.local': LOCAL,
    'streaming.base.array': {
        'Array': Alias('headrace.dataset.attributes:SamplesById', 'An index out of range is always an IndexError.')
    },
    'streaming.base.util': {
        **alias(
            'headrace.compat.functions',
            'clean_stale_shared_memory',
            difference='Returns at once: headrace leaves nothing in shared memory.',
        ),
        **alias('headrace.compat.functions', 'get_list_arg', 'wait_for_file_to_exist', 'retry'),
        **alias('headrace.compat.functions', 'get_import_exception_message', difference="Names headrace's extra."),
        **alias('headrace.format', 'bytes_to_int', 'number_abbrev_to_int'),
        **alias(
            'headrace.convert',
            'merge_index',
            difference='Parts may lie at any depth, and their columns must fit. A missing part is an error. '
            'Shards of the root itself stay.',
        ),
    },
    'streaming.base.converters': _SPARK,
    'streaming.base.converters.dataframe_to_mds': _SPARK,
    'streaming.base.registry_utils': absent(
        'headrace has one registry, `streams_registry`. Take catalogue or a dict for your own.',
        'TypedRegistry',
        'create_registry',
        'construct_from_registry',
        'import_file',
        'save_registry',
    ),
    'streaming.base.constant': meaningless(
        'headrace has no shared memory, lock files and polling that these constants name. Time-outs are arguments: '
        '`download_timeout`, and those in docs/stores.md.',
        'BARRIER',
        'BARRIER_FILELOCK',
        'CACHE_FILELOCK',
        'CACHE_USAGE',
        'DEFAULT_TIMEOUT',
        'EPOCH_DATA',
        'EPOCH_SHAPE',
        'LOCALS',
        'NEXT_EPOCH',
        'RESUME',
        'SHARD_ACCESS_TIMES',
        'SHARD_STATES',
        'SHM_TO_CLEAN',
        'TICK',
    ),
}
