"""The repr of a data module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.facts import dataset_facts
from headrace.display import Facts
from headrace.lightning.sources import LoaderSource

__all__ = ['module_facts']


def module_facts(name: str, batch_size: int | None, sources: Mapping[str, Iterable[LoaderSource]]) -> Facts:
    """The loaders of each section; of opened datasets the streams, too.

    Args:
        name: the data module's class.
        batch_size: samples per device, if known.
        sources: the loaders by section.
    """
    rows: list[tuple[str, str]] = []
    if batch_size is not None:
        rows.append(('batch', f'{batch_size:,} samples per device'))
    for section, given in sources.items():
        for source in given:
            label = f'{section}.{source.name}' if source.name else section
            dataset = source.source if source.dataset is None else source.dataset
            if not isinstance(dataset, StreamingDataset):
                rows.append((label, 'not opened before `setup`'))
                continue
            title, facts = dataset_facts(dataset)
            rows += [(label, title), *((f'  {name}', value) for name, value in facts)]
    return Facts(name, rows)
