"""Datasets of other formats, read without conversion.

1. `formats` finds the format of a listing. Each has a module, which keeps to `protocol`: it indexes the objects into a
   `Source` of columns and parts, and turns the bytes of a part into batches of columns.
2. `source_index` is the index as a file of the cache folder, and names the shards that parts become.
3. `source_store` offers the index and the parts as objects of a store. The cache fetches them like shards.
4. `source_index.unpack_part` writes a part as an MDS shard.
"""

from headrace.sources.formats import choose_columns, register_format
from headrace.sources.protocol import Part, Source, SourceFormat
from headrace.sources.source_bytes import dump_index, load_index

__all__ = ['Part', 'Source', 'SourceFormat', 'choose_columns', 'dump_index', 'load_index', 'register_format']
