"""Samples, and the ids that a selection keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace import StreamingDataset

SAMPLES = 130


def ids(dataset: StreamingDataset) -> list[int]:
    return [int(dataset[i]['id']) for i in range(dataset.num_samples)]


def bits(folder: Path) -> list[Path]:
    return sorted(folder.rglob('*.bits'))


def without_column(batch: Any, name: str) -> Any:
    batch.columns.pop(name, None)
    return batch
