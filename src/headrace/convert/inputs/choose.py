"""The inputs that a source means, by its type, or by the names of its files.

A loader of torch gives collated batches in an order of its own. So the samples come from its dataset, in the dataset's
order. The loader's sampler only tells which of them it reads. An `ImageFolder` of torchvision without transforms gives
its files, whose bytes are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from headrace.convert.inputs.files import ImageFolder, list_images, open_parts
from headrace.convert.inputs.programs import (
    FunctionInputs,
    HuggingFaceInputs,
    IterableSamples,
    RowInputs,
    is_hugging_face,
    is_transformed,
)
from headrace.convert.inputs.records import Inputs, RecordInputs
from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.sources.formats import known_formats
from headrace.sources.source_store import has_glob
from headrace.storage import Retry, StoreOptions, local_path, open_store
from headrace.storage.stores.local import LocalStore

_LOADERS: Final = {'train': 'fit', 'val': 'fit', 'test': 'test', 'predict': 'predict'}
"""The stage to set up for each loader of a data module."""


def choose_inputs(
    source: Any,
    *,
    function: Callable[[Any], Any] | None,
    columns: list[str] | None,
    format: str | None,  # noqa: A002 - as in `convert`
    format_options: Mapping[str, Any] | None,
    split: str | None,
    limit: int | None,
    allow_unsafe_types: bool,
    options: StoreOptions,
    retry: Retry,
) -> Inputs | IterableSamples:
    names = columns or []
    if _is_a(source, 'LightningDataModule', 'lightning', 'pytorch_lightning') and function is None:
        source, split = _loader_of_module(source, split), None
    if _is_a(source, 'DataLoader', 'torch') and function is None:
        source = _dataset_of_loader(source)
    if split is not None and (function is not None or not isinstance(source, str | os.PathLike)):
        raise ConfigError(
            f'`split` of convert chooses files of a path or URL, or a loader of a data module, but the source is '
            f'{source!r:.100}.'
        )
    if format_options and not isinstance(source, str | os.PathLike):
        raise ConfigError(f'`format_options` of convert are for a path or URL, but the source is {source!r:.100}.')
    if function is not None:
        if isinstance(source, str | bytes) or not isinstance(source, Iterable):
            raise ConfigError(
                f'With `function`, the source is a sequence of inputs, such as a list of paths, but is {source!r:.100}.'
            )
        return FunctionInputs(function, list(islice(cast('Iterable[Any]', source), limit)), names=names)
    if isinstance(source, str | os.PathLike):
        url = os.fspath(cast('str', source))
        images = _images_at(url, format, split, options, columns=columns, limit=limit, retry=retry)
        return images or open_parts(
            url,
            options,
            format_name=format,
            format_options=format_options,
            split=split,
            columns=columns,
            limit=limit,
            allow_unsafe_types=allow_unsafe_types,
            retry=retry,
        )
    if isinstance(source, RecordInputs):
        return source.first(limit)
    if is_hugging_face(source) and not is_transformed(source):
        return HuggingFaceInputs(source, columns=columns, limit=limit)
    if _is_a(source, 'VisionDataset', 'torchvision'):
        names = columns or ['image', 'label']
        images = _images_of(source, columns=columns, limit=limit, retry=retry)
        if images is not None:
            return images
    # One of torch has no numbers of rows, although it has `__getitem__`.
    is_iterable = any(kind.__name__ == 'IterableDataset' for kind in type(source).__mro__)
    is_sequence = hasattr(source, '__getitem__') and hasattr(source, '__len__') and not is_iterable
    if is_sequence and not isinstance(source, Mapping | bytes):
        return RowInputs(source, names=names, rows=min(len(source), limit or len(source)))
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        return IterableSamples(islice(cast('Iterable[Any]', source), limit), names=names)
    raise ConfigError(
        f'A source is a folder, a URL, a map-style dataset, or an iterable of samples, but got '
        f'{type(source).__name__}. Pass the splits of a dict one by one, and a list of inputs with `function=` for '
        f'everything else.'
    )


def _is_a(source: object, name: str, *packages: str) -> bool:
    """Whether it is of a class of one of these packages, without an import of them."""
    return any(kind.__name__ == name and kind.__module__.split('.')[0] in packages for kind in type(source).__mro__)


def _images_at(
    url: str,
    format: str | None,  # noqa: A002
    split: str | None,
    options: StoreOptions,
    *,
    columns: Collection[str] | None,
    limit: int | None,
    retry: Retry,
) -> ImageFolder | None:
    """The images of a folder; None if it holds none, and may hold other data."""
    names = [ImageFolder.kind, *(name for name in known_formats() if name != 'mds')]
    if format is not None and format not in names:
        raise ConfigError(f'`format` of convert is one of {", ".join(names)}, but is {format!r:.80}.')
    path = local_path(url)
    is_folder = not has_glob(url) and (path is None or not Path(path).is_file())
    if not is_folder or format not in (None, ImageFolder.kind):
        return None
    store = open_store(f'{url.rstrip("/")}/{split}' if split else url, options)
    images, ledger = list_images(store, retry, is_known=format is not None)
    if images:
        return ImageFolder(store, images[:limit], columns=columns, retry=retry, ledger=ledger)
    if format is not None:
        raise ObjectNotFoundError(f'An ImageFolder holds images, but {url} holds none. Check the path.')
    return None


def _images_of(source: Any, *, columns: Collection[str] | None, limit: int | None, retry: Retry) -> ImageFolder | None:
    """The files of torchvision's `ImageFolder`; None if it changes images, or lists them in another way."""
    is_folder = _is_a(source, 'ImageFolder', 'torchvision')
    if not is_folder or source.transform is not None or source.target_transform is not None:
        return None
    store = LocalStore(source.root)
    images, ledger = list_images(store, retry, is_known=True)
    folder = ImageFolder(store, images, columns=columns, retry=retry, ledger=ledger)
    paths = (os.path.join(source.root, info.key) for info in images)  # noqa: PTH118 - as there
    if list(zip(paths, folder.labels, strict=True)) != source.samples:
        return None
    return folder if limit is None else ImageFolder(store, images[:limit], columns=columns, retry=retry, ledger=ledger)


def _loader_of_module(module: Any, split: str | None) -> Any:
    """The loader of a data module, which is prepared and set up now."""
    which = split or 'train'
    if which not in _LOADERS:
        raise ConfigError(f'`split` of a data module is one of {", ".join(_LOADERS)}, but is {split!r:.80}.')
    module.prepare_data()
    module.setup(_LOADERS[which])
    loader = getattr(module, f'{which}_dataloader')()
    if _is_a(loader, 'DataLoader', 'torch'):
        return loader
    several = isinstance(loader, Mapping | list | tuple) or type(loader).__name__ == 'CombinedLoader'
    fix = 'Convert them one by one: convert(loader, out)' if several else 'Pass its samples: convert(samples, out)'
    raise ConfigError(
        f'`{which}_dataloader` of {type(module).__name__} gives a {type(loader).__name__}, not one DataLoader. {fix}.'
    )


def _dataset_of_loader(loader: Any) -> Any:
    """The dataset of a loader; ConfigError: its sampler repeats samples, or does not tell which ones it reads."""
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
