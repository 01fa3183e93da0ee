"""Small datasets for the tests that build one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@pytest.fixture
def write_shards() -> Callable[..., Path]:
    """Writes `samples` samples with increasing `id` as MDS shards into a folder."""

    def write(folder: Path, *, samples: int, hashes: Sequence[str] = (), first: int = 0) -> Path:
        from headrace.dataset.writing.writer import MDSWriter

        with MDSWriter(columns={'id': 'int'}, out=str(folder), hashes=list(hashes), size_limit=1024) as writer:
            for number in range(first, first + samples):
                writer.write({'id': number})
        return folder

    return write
