"""Small originals of LAION-400M, whose images are on a server of loopback."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.support.servers.image_server import ImageServer, jpeg

__all__ = ['BAD', 'make_laion', 'of_laion', 'write']

BAD = dict.fromkeys(('/status/404', '/page/', '/circle/0', '/refused/noai', '/cut/')) | {'/image/5': '0' * 32}
"""Paths that give no image, with their hash."""


def write(path: Path, rows: list[dict[str, Any]], group: int = 40) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)


def of_laion(server: ImageServer, number: int, path: str | None = None) -> dict[str, Any]:
    data = jpeg(number)
    return {
        'SAMPLE_ID': float(number), 'URL': f'{server.url}{path or f"/image/{number}"}', 'TEXT': f'caption {number}',
        'HEIGHT': 9, 'WIDTH': 12, 'LICENSE': '?', 'NSFW': 'UNLIKELY' if number % 2 else None,
        'similarity': 0.3 + number / 1000, 'md5': hashlib.md5(data).hexdigest() if path is None else BAD.get(path),
    }  # fmt: skip


def make_laion(root: Path, server: ImageServer, count: int) -> list[dict[str, Any]]:
    """Two files with `count` rows, of which six have no image; returns the others."""
    rows = [of_laion(server, i) for i in range(count)]
    for place, path in zip((3, 30, 41, 55, 80, 99), BAD, strict=True):
        rows[place] = of_laion(server, place, path)
    cut = count * 3 // 5
    write(root / 'part-00000.snappy.parquet', rows[:cut])
    write(root / 'part-00001.snappy.parquet', rows[cut:])
    return [row for number, row in enumerate(rows) if number not in (3, 30, 41, 55, 80, 99)]
