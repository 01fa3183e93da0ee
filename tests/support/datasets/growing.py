"""Datasets that grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import MDSWriter
from headrace.dataset import growth

if TYPE_CHECKING:  # a rank of a training needs it not
    import pytest


def append(
    folder: Path,
    first: int,
    samples: int,
    sample: Callable[[int], dict[str, Any]] = lambda number: {'id': number},
    **options: Any,
) -> None:
    """Add samples with the ids `first` and following, by default 10 in a shard."""
    options = {'columns': {'id': 'int'}, 'size_limit': 280, 'append': True, **options}
    with MDSWriter(out=str(folder), **options) as writer:
        for number in range(first, first + samples):
            writer.write(sample(number))


def growing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: Mapping[str, str],
    sample: Callable[[int], dict[str, Any]],
    *,
    first: int,
    later: int,
) -> str:
    """Write a dataset of `first` samples, which gets `later` more at each look but the first; returns its folder."""
    there, looks, look = 0, 0, growth.look_at_indexes

    def append(samples: int) -> None:
        nonlocal there
        with MDSWriter(out=str(folder), columns=dict(columns), size_limit=600, append=True) as writer:
            for number in range(there, there + samples):
                writer.write(sample(number))
        there += samples

    def look_later(*args: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks > 1:
            append(later)
        return look(*args, **options)

    append(first)
    monkeypatch.setattr(growth, 'look_at_indexes', look_later)
    return str(folder)
