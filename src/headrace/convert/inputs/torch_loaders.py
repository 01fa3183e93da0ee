"""The dataset behind a loader of torch, and behind a data module of Lightning.

A loader gives collated batches in an order of its own. So the samples come from its dataset, in the dataset's order.
The loader's sampler only tells which of them it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.errors import ConfigError

__all__ = ['dataset_of_loader', 'is_data_module', 'is_loader', 'loader_of_module']

_LOADERS: Final = {'train': 'fit', 'val': 'fit', 'test': 'test', 'predict': 'predict'}
"""The stage to set up for each loader of a data module."""


def is_data_module(source: object) -> bool:
    """Whether it is Lightning's, without an import of Lightning."""
    return _is_a(source, 'LightningDataModule', ('lightning', 'pytorch_lightning'))


def is_loader(source: object) -> bool:
    """Whether it is a `torch.utils.data.DataLoader`."""
    return _is_a(source, 'DataLoader', ('torch',))


def _is_a(source: object, name: str, packages: Sequence[str]) -> bool:
    return any(kind.__name__ == name and kind.__module__.split('.')[0] in packages for kind in type(source).__mro__)


def loader_of_module(module: Any, split: str | None) -> Any:
    """The loader of a data module, which is prepared and set up now.

    Args:
        module: a `LightningDataModule`.
        split: 'train', 'val', 'test' or 'predict'; None: 'train'.

    Raises:
        ConfigError: there is no such loader, or several in its place.
    """
    which = split or 'train'
    if which not in _LOADERS:
        raise ConfigError(f'`split` of a data module is one of {", ".join(_LOADERS)}, but is {split!r:.80}.')
    module.prepare_data()
    module.setup(_LOADERS[which])
    loader = getattr(module, f'{which}_dataloader')()
    if is_loader(loader):
        return loader
    several = isinstance(loader, Mapping | list | tuple) or type(loader).__name__ == 'CombinedLoader'
    fix = 'Convert them one by one: convert(loader, out)' if several else 'Pass its samples: convert(samples, out)'
    raise ConfigError(
        f'`{which}_dataloader` of {type(module).__name__} gives a {type(loader).__name__}, not one DataLoader. {fix}.'
    )


def dataset_of_loader(loader: Any) -> Any:
    """The samples that a loader reads in an epoch, each once, in the order of its dataset.

    Raises:
        ConfigError: its sampler repeats samples, or nobody knows which ones it reads.
    """
    from torch.utils.data import (
        BatchSampler,
        DistributedSampler,
        IterableDataset,
        RandomSampler,
        SequentialSampler,
        Subset,
        SubsetRandomSampler,
    )

    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return dataset
    batches = loader.batch_sampler
    if batches is None or type(batches) is BatchSampler:
        sampler = loader.sampler if batches is None else batches.sampler
        if isinstance(sampler, SequentialSampler | DistributedSampler):
            return dataset
        if isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(dataset):
            return dataset
        if isinstance(sampler, SubsetRandomSampler):
            return Subset(dataset, sorted(sampler.indices))
    else:
        sampler = batches
    raise ConfigError(
        f'A loader that is converted reads each sample once, in any order, but its sampler is a '
        f'{type(sampler).__name__}, whose choice is not known. Pass the samples that you mean, such as '
        f'convert(loader.dataset, out) for all, or a torch.utils.data.Subset.'
    )
