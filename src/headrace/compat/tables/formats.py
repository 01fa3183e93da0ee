"""`streaming.base.format`, `.compression` and `.hashing`: readers, writers and encodings of shards."""

from __future__ import annotations

from headrace.compat.names import Alias, Tables, absent, alias
from headrace.compat.tables.package import JSON_WRITER, MDS_WRITER, WRITERS, XSV_WRITERS

__all__ = ['TABLES']

_READER_DIFFERENCE = (
    'One class reads shards of all formats. It is made by `reader_from_json` or `from_json`, and reads raw files only: '
    'the dataset or `headrace.format.unpack_file` decompresses.'
)
_READER = alias('headrace.compat.readers', 'Reader', difference=_READER_DIFFERENCE)


def _reader(name: str) -> dict[str, Alias]:
    return {name: Alias('headrace.compat.readers:Reader', _READER_DIFFERENCE)}


_INDEX = alias('headrace.compat.functions', 'get_index_basename')
_FILE_INFO = alias('headrace.format', 'FileInfo')
_READER_CLASSES = absent(
    'The readers of headrace are in `headrace.format`; derive from `headrace.format.ShardReader`.',
    'JointReader',
    'SplitReader',
)
_XSV_READERS = {**_reader('CSVReader'), **_reader('TSVReader'), **_reader('XSVReader')}

TABLES: Tables = {
    'streaming.base.format': {
        **WRITERS,
        **_FILE_INFO,
        **_INDEX,
        **_READER,
        **alias('headrace.compat.readers', 'reader_from_json'),
    },
    'streaming.base.format.index': _INDEX,
    'streaming.base.format.base': {**_FILE_INFO, **_READER},
    'streaming.base.format.base.reader': {**_FILE_INFO, **_READER, **_READER_CLASSES},
    'streaming.base.format.base.writer': {
        **alias('headrace.dataset', 'Writer', difference='Takes an encoder of `headrace.format`, which makes shards.'),
        **absent(
            'A format of your own is an encoder: derive from `headrace.format.ShardEncoder`, and give it to `Writer`.',
            'JointWriter',
            'SplitWriter',
        ),
    },
    'streaming.base.format.mds': {**_reader('MDSReader'), **MDS_WRITER},
    'streaming.base.format.mds.reader': _reader('MDSReader'),
    'streaming.base.format.mds.writer': MDS_WRITER,
    'streaming.base.format.mds.encodings': {
        **alias('headrace.compat.encodings', 'Encoding'),
        '_encodings': Alias(
            'headrace.compat.encodings:ENCODING_CLASSES',
            "An assignment registers a class, or replaces headrace's own encoding of that name. Nothing is deleted.",
        ),
        **alias(
            'headrace.format.encodings',
            'Bytes',
            'Float16',
            'Float32',
            'Float64',
            'Int',
            'Int8',
            'Int16',
            'Int32',
            'Int64',
            'JPEG',
            'JPEGArray',
            'JPEGList',
            'JSON',
            'NDArray',
            'PIL',
            'PILList',
            'PNG',
            'PNGList',
            'Pickle',
            'Str',
            'StrDecimal',
            'StrFloat',
            'StrInt',
            'UInt8',
            'UInt16',
            'UInt32',
            'UInt64',
            'get_mds_encoded_size',
            'get_mds_encodings',
            'is_mds_encoding',
            'mds_decode',
            'mds_encode',
        ),
        **alias(
            'headrace.format.encodings',
            'is_mds_encoding_safe',
            difference='An unknown name is a ValueError.',
        ),
        **absent('Derive from `Encoding`.', 'List', 'Scalar', 'StrEncoding'),
    },
    'streaming.base.format.json': {**_reader('JSONReader'), **JSON_WRITER},
    'streaming.base.format.json.reader': _reader('JSONReader'),
    'streaming.base.format.json.writer': JSON_WRITER,
    'streaming.base.format.json.encodings': {
        **alias('headrace.format.jsonl', 'Float', 'Int', 'Str', 'is_json_encoded', 'is_json_encoding'),
        **absent('JSONL has the encodings str, int and float; use MDS for others.', 'Encoding'),
    },
    'streaming.base.format.xsv': {**_XSV_READERS, **XSV_WRITERS},
    'streaming.base.format.xsv.reader': _XSV_READERS,
    'streaming.base.format.xsv.writer': XSV_WRITERS,
    'streaming.base.format.xsv.encodings': {
        **alias('headrace.format.xsv', 'Float', 'Int', 'Str', 'is_xsv_encoding', 'xsv_decode', 'xsv_encode'),
        **absent('Separated text has the encodings str, int and float; use MDS for others.', 'Encoding'),
    },
    'streaming.base.compression': {
        **alias(
            'headrace.format',
            'Compression',
            'compress',
            'decompress',
            'get_compression_extension',
            'get_compressions',
            'is_compression',
        ),
        **alias('headrace.format.compression', 'Brotli', 'Bzip2', 'Gzip', 'Snappy', 'Zstandard'),
        **absent(
            'Derive from `headrace.format.Compression`; its `levels` lists the levels.',
            'LevelledCompression',
        ),
    },
    'streaming.base.hashing': alias('headrace.format', 'get_hash', 'get_hashes', 'is_hash'),
}
