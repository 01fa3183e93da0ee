"""Indexes of few shards, entry by entry."""

from __future__ import annotations

import json
from typing import Any

from headrace.format import parse_index


def mds_entry(number: int = 0) -> dict[str, Any]:
    name = f'shard.{number:05}.mds'
    return {
        'column_encodings': ['int', 'str'],
        'column_names': ['id', 'text'],
        'column_sizes': [8, None],
        'compression': 'zstd:7',
        'format': 'mds',
        'hashes': ['sha1'],
        'raw_data': {'basename': name, 'bytes': 500, 'hashes': {'sha1': 'aa'}},
        'samples': 10,
        'size_limit': 67108864,
        'version': 2,
        'zip_data': {'basename': name + '.zstd', 'bytes': 30, 'hashes': {}},
    }


def csv_entry(number: int = 0) -> dict[str, Any]:
    name = f'shard.{number:05}.csv'
    return {
        'column_encodings': ['int', 'str'],
        'column_names': ['id', 'text'],
        'compression': None,
        'format': 'csv',
        'hashes': [],
        'newline': '\n',
        'raw_data': {'basename': name, 'bytes': 500, 'hashes': {}},
        'raw_meta': {'basename': name + '.meta', 'bytes': 500, 'hashes': {}},
        'samples': 10,
        'size_limit': None,
        'version': 2,
        'zip_data': None,
        'zip_meta': None,
    }


def index(*entries: Any, **extra: Any) -> bytes:
    return json.dumps({'shards': list(entries), 'version': 2, **extra}).encode()


def parse(data: bytes, **options: Any) -> Any:
    return parse_index(data, source='there/index.json', **options)
