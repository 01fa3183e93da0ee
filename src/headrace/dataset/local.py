"""A folder of shards as a map-style dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.items import SamplesById
from headrace.dataset.streams.facts import stream_facts
from headrace.display import Facts, FactsRepr
from headrace.format import ShardInfo

__all__ = ['LocalDataset']


class LocalDataset(SamplesById, Dataset[Any], FactsRepr):
    """Samples of a local folder by number, for a `torch.utils.data.DataLoader` with a sampler of your own.

    Args:
        local: the folder.
        split: its sub-folder that holds index.json.
        allow_unsafe_types: whether to open data with pickled columns, which can run code.

    Raises:
        RuntimeError: no index there, or no samples.
        ValueError: the index breaks the format's rules.
    """

    def __init__(self, local: str, split: str | None = None, *, allow_unsafe_types: bool = False) -> None:
        self.local, self.split = local, split or ''
        self._dataset = StreamingDataset(local=local, split=split, allow_unsafe_types=allow_unsafe_types)

    def _facts(self) -> Facts:
        _, rows = stream_facts(self._dataset.streams[0])
        return Facts(type(self).__name__, [row for row in rows if row[0] != 'weight'])

    def __len__(self) -> int:
        return self._dataset.num_samples

    @property
    def size(self) -> int:
        """The number of samples."""
        return self._dataset.num_samples

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self._dataset.num_samples

    @property
    def shards(self) -> Sequence[ShardInfo]:
        """The shards' entries in the index."""
        return self._dataset.shards

    def get_item(self, sample_id: int) -> Any:
        """One sample, by a number from 0 to `size` - 1. Override it to change samples; `dataset[i]` calls it."""
        return self._dataset.get_item(sample_id)
