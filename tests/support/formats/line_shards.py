"""Shards of lines, written and opened in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.format import JSONEncoder, XSVEncoder, open_shard

COLUMNS = {'n': 'int', 'x': 'float', 'text': 'str'}


def encoder_of(kind: str, **options: Any) -> Any:
    if kind == 'json':
        return JSONEncoder(COLUMNS, **options)
    return XSVEncoder(COLUMNS, shard_format=kind, separator='||', **options)


def encode(kind: str, samples: list[Any], **options: Any) -> list[Any]:
    encoder = encoder_of(kind, **options)
    return [shard for sample in samples for shard in encoder.add(sample)] + encoder.finish()


def opened(kind: str, data: bytes | None = None, meta: bytes | None = None) -> Any:
    (shard,) = encode(kind, [{'n': i, 'x': 0.5, 'text': 'abc'} for i in range(3)])
    contents = [content for _, content in shard.files]
    changed = [contents[0] if data is None else data, contents[1] if meta is None else meta]
    files = tuple(
        replace(file, raw=replace(file.raw, bytes=len(c))) for file, c in zip(shard.info.files, changed, strict=True)
    )
    return open_shard(replace(shard.info, files=files), [memoryview(c) for c in changed], source='here')
