"""Converters of known datasets of text. Each module has the description `ORIGINAL`, and is a program.

The descriptions are here. Their import loads no numpy.
"""

from __future__ import annotations

from typing import Final

from headrace.originals import Original

__all__ = ['C4', 'ENWIKI', 'PILE']

C4: Final = Original(
    'c4',
    'C4: c4-train.*.json.gz and c4-validation.*.json.gz',
    'headrace.text.convert.c4',
    splits=('train', 'val'),
    size_limit=1 << 27,
)
"""C4, the Colossal Clean Crawled Corpus."""

ENWIKI: Final = Original(
    'enwiki',
    'English Wikipedia: a dump enwiki-*-pages-articles*.xml.bz2',
    'headrace.text.convert.enwiki',
    reader='StreamingEnWiki',
)
"""English Wikipedia."""

PILE: Final = Original(
    'pile',
    'the Pile: train/*.jsonl.zst, val.jsonl.zst and test.jsonl.zst',
    'headrace.text.convert.pile',
    splits=('train', 'val', 'test'),
    size_limit=1 << 27,
)
"""The Pile."""
