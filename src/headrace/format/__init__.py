"""Shards as bytes: their encoding, index and readers; no network, no torch.

1. ``IndexFile`` reads an ``index.json`` (``index``), which ``parse_index`` checks (``entries`` has the rules). It gives
   a ``ShardTable`` (``table``), a sequence of ``ShardInfo`` (``shards``).
2. The cache checks files with ``verify_file`` (``checksum``) and unpacks them with ``unpack_file`` (``compression``).
3. ``open_shard`` gives the reader of a shard's mapped files (``reader``; ``mds``, ``jsonl``, ``xsv``).
4. ``info.schema.allocate(n)`` makes room for a batch, ``reader.gather`` fills rows of it, ``reader.sample`` gives one.
5. The other way, an encoder turns samples into finished shards (``encoder``), and ``dump_index`` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.format.checksum import get_hash, get_hashes, hash_file, is_hash, verify_file
from headrace.format.compression import (
    Compression,
    compress,
    decompress,
    get_compression_extension,
    get_compressions,
    is_compression,
    register_compression,
    unpack_file,
    unpack_stream,
)
from headrace.format.encodings.encoding import Encoding, do_stack
from headrace.format.encodings.registry import (
    get_mds_encodings,
    is_mds_encoding,
    mds_decode,
    mds_encode,
    register_encoding,
)
from headrace.format.human_size import bytes_to_int, number_abbrev_to_int
from headrace.format.index import IndexFile, dump_index, parse_index
from headrace.format.mds import FixedLayout
from headrace.format.reader import ShardReader, open_shard
from headrace.format.shards import ColumnBatch, Columns, FileInfo, Schema, ShardFile, ShardInfo
from headrace.format.table import JoinedShards, ShardTable
from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.format.encoder import CollectedShard, EncodedShard, ShardEncoder, ShardPieces
    from headrace.format.jsonl import JSONEncoder
    from headrace.format.mds_encoder import MDSEncoder
    from headrace.format.xsv import XSVEncoder

__all__ = [
    'CollectedShard',
    'ColumnBatch',
    'Columns',
    'Compression',
    'EncodedShard',
    'Encoding',
    'FileInfo',
    'FixedLayout',
    'IndexFile',
    'JSONEncoder',
    'JoinedShards',
    'MDSEncoder',
    'Schema',
    'ShardEncoder',
    'ShardFile',
    'ShardInfo',
    'ShardPieces',
    'ShardReader',
    'ShardTable',
    'XSVEncoder',
    'bytes_to_int',
    'compress',
    'decompress',
    'do_stack',
    'dump_index',
    'get_compression_extension',
    'get_compressions',
    'get_hash',
    'get_hashes',
    'get_mds_encodings',
    'hash_file',
    'is_compression',
    'is_hash',
    'is_mds_encoding',
    'mds_decode',
    'mds_encode',
    'number_abbrev_to_int',
    'open_shard',
    'parse_index',
    'register_compression',
    'register_encoding',
    'unpack_file',
    'unpack_stream',
    'verify_file',
]

if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(('CollectedShard', 'EncodedShard', 'ShardPieces'), 'headrace.format.encoder'),
            'JSONEncoder': 'headrace.format.jsonl',
            'ShardEncoder': 'headrace.format.encoder',
            'MDSEncoder': 'headrace.format.mds_encoder',
            'XSVEncoder': 'headrace.format.xsv',
        },
    )
