"""The names of MosaicML Streaming 0.13, module by module, and their counterparts. The documentation is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ['ABSENT_MODULES', 'MEMBERS', 'TABLES', 'Absent', 'Alias', 'Entry']


@dataclass(frozen=True, slots=True)
class Alias:
    target: str  # Module and name of the object, as 'headrace.format:get_hash'. It is imported when it is first used.
    difference: str = ''  # sentences on differences for users; empty: there are none

    @property
    def status(self) -> str:
        """For the documentation: 'works' or 'differs'."""
        return 'differs' if self.difference else 'works'


@dataclass(frozen=True, slots=True)
class Absent:
    status: str  # for the documentation: 'absent' or 'no meaning'
    reason: str  # sentences on why, and what to use


Entry: TypeAlias = Alias | Absent
Tables: TypeAlias = Mapping[str, Mapping[str, Entry]]  # by module of `streaming`, the entries of its names


def alias(home: str, names: str, difference: str = '') -> dict[str, Entry]:
    """Entries of names, separated by spaces, that a module of headrace has under the same names."""
    return {name: Alias(f'{home}:{name}', difference) for name in names.split()}


def absent(reason: str, names: str) -> dict[str, Entry]:
    return {name: Absent('absent', reason) for name in names.split()}


def meaningless(reason: str, names: str) -> dict[str, Entry]:
    """Entries of names for things that headrace does without."""
    return {name: Absent('no meaning', reason) for name in names.split()}


# -- `streaming`, and the modules of datasets, streams, writers and functions around them

_DATASET = alias(
    'headrace.dataset',
    'StreamingDataset',
    difference="Without `shuffle_algo` a new run has headrace's order, which is equal on any number of ranks; a loaded "
    "checkpoint of MosaicML Streaming makes it 'py1e'. Pass shuffle_algo='py1e' for MosaicML Streaming's.",
)
_LOADER = alias('headrace.dataset', 'StreamingDataLoader')
_STREAM = alias('headrace.dataset', 'Stream')
_LOCAL = alias('headrace.dataset', 'LocalDataset')
_MDS_WRITER = alias('headrace.dataset', 'MDSWriter')
_JSON_WRITER = alias('headrace.dataset', 'JSONWriter')
_XSV_WRITERS = alias('headrace.dataset', 'CSVWriter TSVWriter XSVWriter')
_WRITERS = {**_MDS_WRITER, **_JSON_WRITER, **_XSV_WRITERS}
_ALL = {**_DATASET, **_LOADER, **_STREAM, **_LOCAL, **_WRITERS}

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
    **absent('Call `infer_dataframe_schema`, which says what a column becomes.', 'is_json_compatible SPARK_TO_MDS'),
}

_PACKAGE: Tables = {
    'streaming': _ALL,
    'streaming._version': alias('headrace.compat.finder', '__version__'),
    'streaming.base': _ALL,
    'streaming.base.dataset': _DATASET,
    'streaming.base.dataloader': _LOADER,
    'streaming.base.stream': {
        **_STREAM,
        **alias(
            'headrace.dataset',
            'streams_registry',
            difference='`register`, `register_class`, `get`, `get_all` and `in`; no other method of catalogue.',
        ),
    },
    'streaming.base.local': _LOCAL,
    'streaming.base.array': {
        'Array': Alias('headrace.dataset.attributes:SamplesById', 'An index out of range is always an IndexError.')
    },
    'streaming.base.util': {
        **alias(
            'headrace.compat.functions',
            'clean_stale_shared_memory',
            difference='Returns at once: headrace leaves nothing in shared memory.',
        ),
        **alias('headrace.compat.functions', 'get_list_arg wait_for_file_to_exist retry'),
        **alias('headrace.compat.functions', 'get_import_exception_message', difference="Names headrace's extra."),
        **alias('headrace.format', 'bytes_to_int number_abbrev_to_int'),
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
        'TypedRegistry create_registry construct_from_registry import_file save_registry',
    ),
    'streaming.base.constant': meaningless(
        'headrace has no shared memory, lock files and polling that these constants name. Time-outs are arguments: '
        '`download_timeout`, and those in docs/stores.md.',
        'BARRIER BARRIER_FILELOCK CACHE_FILELOCK CACHE_USAGE DEFAULT_TIMEOUT EPOCH_DATA EPOCH_SHAPE LOCALS '
        'NEXT_EPOCH RESUME SHARD_ACCESS_TIMES SHARD_STATES SHM_TO_CLEAN TICK',
    ),
}


# -- `streaming.base.format`, `.compression` and `.hashing`: readers, writers and encodings of shards

_READER_DIFFERENCE = (
    'One class reads shards of all formats. It is made by `reader_from_json` or `from_json`, and reads raw files only: '
    'the dataset or `headrace.format.unpack_file` decompresses.'
)
_READER = alias('headrace.compat.formats', 'Reader', difference=_READER_DIFFERENCE)


def _reader(name: str) -> dict[str, Alias]:
    return {name: Alias('headrace.compat.formats:Reader', _READER_DIFFERENCE)}


_INDEX = alias('headrace.compat.functions', 'get_index_basename')
_FILE_INFO = alias('headrace.format', 'FileInfo')
_READER_CLASSES = absent(
    'The readers of headrace are in `headrace.format`; derive from `headrace.format.ShardReader`.',
    'JointReader SplitReader',
)
_XSV_READERS = {**_reader('CSVReader'), **_reader('TSVReader'), **_reader('XSVReader')}

_FORMATS: Tables = {
    'streaming.base.format': {
        **_WRITERS,
        **_FILE_INFO,
        **_INDEX,
        **_READER,
        **alias('headrace.compat.formats', 'reader_from_json'),
    },
    'streaming.base.format.index': _INDEX,
    'streaming.base.format.base': {**_FILE_INFO, **_READER},
    'streaming.base.format.base.reader': {**_FILE_INFO, **_READER, **_READER_CLASSES},
    'streaming.base.format.base.writer': {
        **alias('headrace.dataset', 'Writer', difference='Takes an encoder of `headrace.format`, which makes shards.'),
        **absent(
            'A format of your own is an encoder: derive from `headrace.format.ShardEncoder`, and give it to `Writer`.',
            'JointWriter SplitWriter',
        ),
    },
    'streaming.base.format.mds': {**_reader('MDSReader'), **_MDS_WRITER},
    'streaming.base.format.mds.reader': _reader('MDSReader'),
    'streaming.base.format.mds.writer': _MDS_WRITER,
    'streaming.base.format.mds.encodings': {
        **alias('headrace.compat.formats', 'Encoding'),
        '_encodings': Alias(
            'headrace.compat.formats:ENCODING_CLASSES',
            "An assignment registers a class, or replaces headrace's own encoding of that name. Nothing is deleted.",
        ),
        **alias('headrace.format.encodings.arrays', 'NDArray'),
        **alias('headrace.format.encodings.images', 'JPEG JPEGArray JPEGList PIL PILList PNG PNGList'),
        **alias(
            'headrace.format.encodings.scalars',
            'Float16 Float32 Float64 Int Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64',
        ),
        **alias('headrace.format.encodings.texts', 'Bytes JSON Pickle Str StrDecimal StrFloat StrInt'),
        **alias(
            'headrace.format.encodings.registry',
            'get_mds_encoded_size get_mds_encodings is_mds_encoding mds_decode mds_encode',
        ),
        **alias(
            'headrace.format.encodings.registry', 'is_mds_encoding_safe', difference='An unknown name is a ValueError.'
        ),
        **absent('Derive from `Encoding`.', 'List Scalar StrEncoding'),
    },
    'streaming.base.format.json': {**_reader('JSONReader'), **_JSON_WRITER},
    'streaming.base.format.json.reader': _reader('JSONReader'),
    'streaming.base.format.json.writer': _JSON_WRITER,
    'streaming.base.format.json.encodings': {
        **alias('headrace.format.jsonl', 'Float Int Str is_json_encoded is_json_encoding'),
        **absent('JSONL has the encodings str, int and float; use MDS for others.', 'Encoding'),
    },
    'streaming.base.format.xsv': {**_XSV_READERS, **_XSV_WRITERS},
    'streaming.base.format.xsv.reader': _XSV_READERS,
    'streaming.base.format.xsv.writer': _XSV_WRITERS,
    'streaming.base.format.xsv.encodings': {
        **alias('headrace.format.xsv', 'Float Int Str is_xsv_encoding xsv_decode xsv_encode'),
        **absent('Separated text has the encodings str, int and float; use MDS for others.', 'Encoding'),
    },
    'streaming.base.compression': {
        **alias(
            'headrace.format',
            'Compression compress decompress get_compression_extension get_compressions is_compression',
        ),
        **alias('headrace.format.compression', 'Brotli Bzip2 Gzip Snappy Zstandard'),
        **absent('Derive from `headrace.format.Compression`; its `levels` lists the levels.', 'LevelledCompression'),
    },
    'streaming.base.hashing': alias('headrace.format', 'get_hash get_hashes is_hash'),
}


# -- `streaming.base.storage`: single files from and to stores


def _each(target: str, difference: str, names: str) -> dict[str, Entry]:
    return {name: Alias(f'headrace.compat.cloud:{target}', difference) for name in names.split()}


_DOWNLOADERS: dict[str, Entry] = {
    **alias(
        'headrace.compat.cloud',
        'CloudDownloader',
        difference='One class downloads from all stores. To add one, call `headrace.storage.register_store`.',
    ),
    **_each(
        'CloudDownloader',
        'The same class as `CloudDownloader`; the URL tells the store.',
        'AzureDataLakeDownloader AzureDownloader DBFSDownloader DatabricksUnityCatalogDownloader '
        'GCSDownloader HFDownloader LocalDownloader OCIDownloader S3Downloader SFTPDownloader',
    ),
}
_UPLOADERS: dict[str, Entry] = {
    **alias(
        'headrace.compat.cloud',
        'CloudUploader',
        difference='One class uploads to all stores. A missing bucket shows at the first upload.',
    ),
    **_each(
        'CloudUploader',
        'The same class as `CloudUploader`; the URL tells the store.',
        'AzureDataLakeUploader AzureUploader DBFSUploader DatabricksUnityCatalogUploader GCSUploader '
        'HFUploader LocalUploader OCIUploader S3Uploader',
    ),
}
_ALIPAN = 'headrace has no store for Alipan. Register one for alipan://: headrace.storage.register_store.'
_ALIPAN_DOWNLOADER = absent(_ALIPAN, 'AlipanDownloader')
_ALIPAN_UPLOADER = absent(_ALIPAN, 'AlipanUploader')
_CREDENTIALS = absent('The environment says how requests are signed: see docs/stores.md.', 'GCSAuthentication')
_DATABRICKS = absent('Use `CloudUploader`.', 'DatabricksUploader')

_OLD = alias('headrace.compat.cloud', 'download_file', difference='A name of earlier versions.')

_STORES: Tables = {
    'streaming.base.storage': {**_OLD, **_DOWNLOADERS, **_UPLOADERS, **_ALIPAN_DOWNLOADER},
    'streaming.base.storage.download': {**_OLD, **_DOWNLOADERS, **_ALIPAN_DOWNLOADER},
    'streaming.base.storage.upload': {**_UPLOADERS, **_ALIPAN_UPLOADER, **_CREDENTIALS, **_DATABRICKS},
}


# -- the steps of MosaicML Streaming's orders, and what its processes share

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
_SHARED_NAMES = 'SharedArray SharedBarrier SharedMemory SharedScalar get_shm_prefix'

_ORDERS: Tables = {
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
    'streaming.base.world': alias('headrace.compat.functions', 'World'),
    'streaming.base.distributed': {
        **alias(
            'headrace.compat.functions',
            'all_gather all_gather_object barrier broadcast get_local_rank get_local_world_size get_rank '
            'get_world_size',
        ),
        **meaningless('headrace needs no process group. Your trainer, or you, make it.', 'maybe_init_dist'),
    },
    'streaming.base.shared': meaningless(_SHARED, _SHARED_NAMES),
    'streaming.base.shared.array': meaningless(_SHARED, 'SharedArray'),
    'streaming.base.shared.barrier': meaningless(_SHARED, 'SharedBarrier'),
    'streaming.base.shared.memory': meaningless(_SHARED, 'SharedMemory'),
    'streaming.base.shared.prefix': meaningless(_SHARED, 'get_shm_prefix'),
    'streaming.base.shared.scalar': meaningless(_SHARED, 'SharedScalar'),
}


# -- ready-made datasets: `streaming.text`, `.vision` and `.multimodal`

_TOKENS = (
    'Samples are arrays of int64, not lists in a `BatchEncoding`. `group_method` may also be `best_fit` or '
    '`concatenate`, which pack.'
)
_BERT = 'Unused places of masked tokens have no label; MosaicML Streaming gives token 0 the label 0 for them.'
_ARTICLES = (
    'Use `headrace convert enwiki`, which reads dumps of Wikipedia, or `headrace convert` for other texts. Shards that '
    "MosaicML Streaming's scripts write can be read."
)

_NO_VISION_DATASET = "Not a subclass of torchvision's `VisionDataset`; torchvision need not be installed."
_AHEAD = 'The videos of a next batch are fetched ahead under `StreamingDataLoader` only.'
_MAIN = 'Takes the arguments of the command line as a list; None: those of the process.'

_VISION: dict[str, dict[str, Entry]] = {
    'ade20k': alias('headrace.vision', 'StreamingADE20K'),
    'cifar10': alias('headrace.vision', 'StreamingCIFAR10', difference=_NO_VISION_DATASET),
    'coco': alias('headrace.vision', 'StreamingCOCO'),
    'imagenet': alias('headrace.vision', 'StreamingImageNet', difference=_NO_VISION_DATASET),
}
_TEXTS: dict[str, dict[str, Entry]] = {
    'c4': alias('headrace.text', 'StreamingC4', difference=_TOKENS),
    'enwiki': alias('headrace.text', 'StreamingEnWiki', difference=_BERT),
    'pile': alias('headrace.text', 'StreamingPile', difference=_TOKENS),
}
_VIDEOS: dict[str, Entry] = {
    **alias('headrace.multimodal', 'StreamingInsideWebVid'),
    **alias('headrace.multimodal', 'StreamingOutsideDTWebVid', difference=_AHEAD),
    **alias('headrace.multimodal', 'StreamingOutsideGIWebVid'),
}


def _modules(folder: str, modules: dict[str, dict[str, Entry]]) -> dict[str, dict[str, Entry]]:
    together = {name: entry for entries in modules.values() for name, entry in entries.items()}
    return {f'streaming.{folder}': together, **{f'streaming.{folder}.{name}': modules[name] for name in modules}}


_DATASETS: Tables = {
    **_modules('text', _TEXTS),
    **_modules('vision', _VISION),
    'streaming.vision.base': {
        **alias('headrace.vision', 'StandardTransform'),
        **alias('headrace.vision', 'StreamingVisionDataset', difference=_NO_VISION_DATASET),
    },
    'streaming.text.convert': {},
    **{
        f'streaming.text.convert.{name}': alias(f'headrace.text.convert.{name}', 'main', difference=_MAIN)
        for name in ('c4', 'pile')
    },
    'streaming.vision.convert': {},
    **{
        f'streaming.vision.convert.{name}': alias(f'headrace.vision.convert.{name}', 'main', difference=_MAIN)
        for name in ('ade20k', 'cifar10', 'coco', 'imagenet')
    },
    **_modules('multimodal', {'webvid': _VIDEOS}),
    'streaming.multimodal.convert': {},
    'streaming.multimodal.convert.webvid': {},
    **{
        f'streaming.multimodal.convert.webvid.{name}': alias(
            f'headrace.multimodal.convert.webvid.{name}', 'main', difference=_MAIN
        )
        for name in ('crawl_webvid', 'extract_webvid_videos')
    },
}

ABSENT_MODULES = {
    'streaming.text.convert.enwiki': Absent('absent', _ARTICLES),
    'streaming.text.convert.enwiki_text': Absent('absent', _ARTICLES),
    'streaming.multimodal.convert.laion': Absent('absent', 'Use `headrace convert laion400m`, which also downloads.'),
    'streaming.multimodal.convert.webvid.crawl_webvid_subsets': Absent(
        'absent', 'Write the rows of each subset to a table of its own, and convert each table.'
    ),
}
"""Modules that headrace does not have."""


# -- methods and attributes of MosaicML Streaming's classes


def _same(cls: str, names: str, difference: str = '') -> dict[str, Entry]:
    return {name: Alias(f'headrace.dataset:{cls}.{name}', difference) for name in names.split()}


_WRITER_MEMBERS = {
    **_same('MDSWriter', 'finish get_config write'),
    'format': Absent('absent', "Read `get_config()['format']`."),
    **meaningless(
        'It is a step inside of the writer.',
        'cancel_future_jobs encode_joint_shard encode_sample exception_callback extra_bytes_per_sample '
        'flush_shard reset_cache',
    ),
}

MEMBERS: Mapping[str, Mapping[str, Entry]] = {
    'StreamingDataset': {
        **_same(
            'StreamingDataset',
            'allow_unsafe_types batch_size batching_method cache_limit epoch_size evict_shard get_item '
            'initial_physical_nodes length load_state_dict next_epoch num_canonical_nodes num_samples num_shards '
            'num_streams partition_algo predownload replication sample_offset_per_shard sample_offset_per_stream '
            'samples_per_shard samples_per_stream sampling_granularity sampling_method shard_offset_per_stream '
            'shards_per_stream shuffle shuffle_algo shuffle_block_size shuffle_seed size spanner state_dict '
            'stream_per_shard streams',
        ),
        **_same('StreamingDataset', 'cache_usage', difference='Unpacked bytes of the present shards. It is not set.'),
        **_same('StreamingDataset', 'prepare_shard', difference='It always waits for the shard.'),
        **_same('StreamingDataset', 'resample_streams', difference="For MosaicML Streaming's orders only."),
        **_same('StreamingDataset', 'shards', difference='Entries of the index; `dataset[i]` reads samples.'),
        **meaningless('Errors of prefetches are raised where the data are read.', 'on_exception'),
        **absent('Set `cache_limit`, or call `evict_shard`.', 'evict_coldest_shard'),
    },
    'StreamingDataLoader': _same('StreamingDataLoader', 'load_state_dict state_dict'),
    'Stream': {
        **_same(
            'Stream',
            'choose download_retry download_timeout keep_zip local proportion remote repeat split validate_hash',
        ),
        **meaningless(
            'The dataset does it when it opens its streams.',
            'apply_default apply_weights get_index_size get_shards prepare_shard set_up_local validate_weights',
        ),
    },
    'LocalDataset': _same('LocalDataset', 'get_item num_samples shards size'),
    'MDSWriter': _WRITER_MEMBERS,
}
"""By class, the entries of its members."""


TABLES: Tables = {**_PACKAGE, **_FORMATS, **_STORES, **_ORDERS, **_DATASETS}  # by module, the entries of its names
