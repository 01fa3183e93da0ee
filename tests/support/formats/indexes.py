"""Random indexes that keep all rules, and what parsing gives, one way or the other."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.format import ShardTable, index, parse_index

texts = st.text(st.characters(), max_size=5)  # lone surrogates, too


# {} becomes a number that no other file of the index has.
names = st.sampled_from(
    ['shard.{}.mds', 'a/b/{}', '{}', '.{}', 'ü{}', 'a b{}', '{}"', '{}\n', '...{}', 'index.json/{}']
)


algorithms = st.lists(st.sampled_from(['sha1', 'md5', '"', '[', '', 'bytes']), unique=True, max_size=2)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Common parts of shards of one kind: the keys that are written unchanged, and how their files are made."""
    name = draw(st.sampled_from(['mds', 'json', 'csv', 'tsv', 'xsv']))
    columns = draw(st.dictionaries(st.text('ab"\\ü', max_size=3), st.sampled_from(['int', 'str']), max_size=3))
    common: dict[str, Any] = {
        'version': 2,
        'format': name,
        'compression': draw(st.sampled_from([None, 'zstd:7', 'gz'])),
        'hashes': draw(algorithms),
        'size_limit': draw(st.none() | st.integers(1, 1 << 40)),
    }
    if name == 'json':
        common['columns'] = columns
    else:
        common |= {'column_names': list(columns), 'column_encodings': list(columns.values())}
    if name == 'mds':
        common['column_sizes'] = [8 if encoding == 'int' else None for encoding in columns.values()]
    else:
        common['newline'] = draw(st.sampled_from(['\n', '\r\n']))
    if name == 'xsv':
        common['separator'] = draw(st.sampled_from([';', ',']))
    parts = ['data'] if name == 'mds' else ['data', 'meta']
    stored = [(f'raw_{part}', draw(names), draw(algorithms)) for part in parts]
    packed = [(f'zip_{part}', draw(names), draw(algorithms)) for part in parts]
    has_packed = [common['compression'] is not None and draw(st.booleans()) for _ in parts]
    files = stored + [file for file, there in zip(packed, has_packed, strict=True) if there]
    absent = [file[0] for file, there in zip(packed, has_packed, strict=True) if not there]
    return {'common': common, 'files': files, 'absent': absent}


@st.composite
def entries(draw: st.DrawFn, min_size: int = 0) -> list[dict[str, Any]]:
    """The shards of an index, as the JSON objects that `ShardInfo.entry` gives again."""
    kinds = draw(st.lists(configurations(), min_size=1, max_size=3))
    found: list[dict[str, Any]] = []
    for shard, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=min_size, max_size=8))):
        samples = draw(st.integers(0, 1000))
        entry = kind['common'] | {'samples': samples} | dict.fromkeys(kind['absent'])
        for number, (part, name, hashes) in enumerate(kind['files']):
            entry[part] = {
                'basename': name.format(10 * shard + number),
                'bytes': draw(st.integers(40_000, 50_000)),
                'hashes': {algorithm: draw(texts) for algorithm in hashes},
            }
        keys = sorted(entry, reverse=draw(st.booleans()))
        found.append({key: entry[key] for key in keys})
    return found


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `json.dumps`."""
    return {'indent': draw(st.sampled_from([None, None, 1, '\t'])), 'ensure_ascii': draw(st.booleans())}


def dumped(shards: list[dict[str, Any]], **layout: Any) -> bytes:
    return json.dumps({'shards': shards, 'version': 2}, **layout).encode()


def parsed(data: bytes, *, fast_path: bool, **options: Any) -> ShardTable:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, 'LARGE', 0 if fast_path else math.inf)
        return parse_index(data, source='there/index.json', **({'allow_empty': True} | options))


def outcome(data: bytes, *, fast_path: bool) -> Any:
    """The shards' JSON objects, or the error."""
    try:
        return [shard.entry() for shard in parsed(data, fast_path=fast_path)]
    except HeadraceError as error:
        return type(error), str(error)


def numbered(count: int, **change: Any) -> list[dict[str, Any]]:
    """Shards as a writer makes them."""
    return [
        {
            'column_encodings': ['int'],
            'column_names': ['id'],
            'column_sizes': [8],
            'compression': 'zstd',
            'format': 'mds',
            'hashes': ['sha1'],
            'raw_data': {'basename': f'shard.{i:05}.mds', 'bytes': 9000 + i, 'hashes': {'sha1': f'{i:040x}'}},
            'samples': 1 + i % 500,
            'size_limit': 1 << 26,
            'version': 2,
            'zip_data': {'basename': f'shard.{i:05}.mds.zstd', 'bytes': 100 + i, 'hashes': {}},
        }
        | change
        for i in range(count)
    ]
