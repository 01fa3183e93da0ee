"""A folder of shards as a map-style dataset."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from headrace.dataset.dataset import StreamingDataset

__all__ = ['LocalDataset']


class LocalDataset(Dataset[Any]):
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
        self.local, self.split = local, split
        self._dataset = StreamingDataset(local=local, split=split, allow_unsafe_types=allow_unsafe_types)

    def __len__(self) -> int:
        return self._dataset.num_samples

    def __getitem__(self, at: Any) -> Any:
        """One sample, or a list of samples for a slice, list or array of numbers."""
        return self._dataset[at]
