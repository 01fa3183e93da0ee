"""The inputs of a source, by its type, or by the names of its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from headrace.convert.inputs.hugging_face import HuggingFaceInputs, is_hugging_face, is_transformed
from headrace.convert.inputs.image_folder import ImageFolder, list_images
from headrace.convert.inputs.parts import open_parts
from headrace.convert.inputs.programs import FunctionInputs, IterableSamples, RowInputs
from headrace.convert.inputs.records import RecordInputs
from headrace.convert.inputs.torch_loaders import dataset_of_loader, is_data_module, is_loader, loader_of_module
from headrace.convert.inputs.torchvision import images_of, is_vision_dataset
from headrace.convert.protocol import Inputs
from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.sources.formats import FORMATS
from headrace.sources.source_store import has_glob
from headrace.storage import Retry, StoreOptions, local_path, open_store

__all__ = ['choose_inputs']


def choose_inputs(
    source: Any,
    *,
    function: Callable[[Any], Any] | None,
    columns: list[str] | None,
    format: str | None,  # noqa: A002 - as in `convert`
    split: str | None,
    limit: int | None,
    allow_unsafe_types: bool,
    options: StoreOptions,
    retry: Retry,
) -> Inputs | IterableSamples:
    """See `convert` for the arguments.

    Raises:
        ConfigError: nothing can be converted from it.
        ObjectNotFoundError: the folder or URL holds no data of a known format.
    """
    names = columns or []
    if is_data_module(source) and function is None:
        source, split = loader_of_module(source, split), None
    if is_loader(source) and function is None:
        source = dataset_of_loader(source)
    if split is not None and (function is not None or not isinstance(source, str | os.PathLike)):
        raise ConfigError(
            f'`split` of convert chooses files of a path or URL, or a loader of a data module, but the source is '
            f'{source!r:.100}.'
        )
    if function is not None:
        if isinstance(source, str | bytes) or not isinstance(source, Iterable):
            raise ConfigError(
                f'With `function`, the source is a sequence of inputs, such as a list of paths, but is {source!r:.100}.'
            )
        return FunctionInputs(function, list(islice(cast('Iterable[Any]', source), limit)), names=names)
    if isinstance(source, str | os.PathLike):
        return _of_place(
            os.fspath(cast('str', source)), columns, format, split, limit, allow_unsafe_types, options, retry
        )
    if isinstance(source, RecordInputs):
        return source.first(limit)
    if is_hugging_face(source) and not is_transformed(source):
        return HuggingFaceInputs(source, columns=columns, limit=limit)
    if is_vision_dataset(source):
        names = columns or ['image', 'label']
        images = images_of(source, columns=columns, limit=limit, retry=retry)
        if images is not None:
            return images
    is_sequence = hasattr(source, '__getitem__') and hasattr(source, '__len__') and not _is_iterable_dataset(source)
    if is_sequence and not isinstance(source, Mapping | bytes):
        return RowInputs(source, names=names, rows=min(len(source), limit or len(source)))
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        return IterableSamples(islice(cast('Iterable[Any]', source), limit), names=names)
    raise ConfigError(
        f'A source is a folder, a URL, a map-style dataset, or an iterable of samples, but got '
        f'{type(source).__name__}. Pass the splits of a dict one by one, and a list of inputs with `function=` for '
        f'everything else.'
    )


def _is_iterable_dataset(source: object) -> bool:
    """Whether it is torch's, whose rows have no numbers although it has `__getitem__`."""
    return any(kind.__name__ == 'IterableDataset' for kind in type(source).__mro__)


def _of_place(
    url: str,
    columns: list[str] | None,
    format: str | None,  # noqa: A002
    split: str | None,
    limit: int | None,
    allow_unsafe_types: bool,
    options: StoreOptions,
    retry: Retry,
) -> Inputs:
    names = [ImageFolder.kind, *(name for name in FORMATS if name != 'mds')]
    if format is not None and format not in names:
        raise ConfigError(f'`format` of convert is one of {", ".join(names)}, but is {format!r:.80}.')
    path = local_path(url)
    is_folder = not has_glob(url) and (path is None or not Path(path).is_file())
    if is_folder and format in (None, ImageFolder.kind):
        store = open_store(f'{url.rstrip("/")}/{split}' if split else url, options)
        images, ledger = list_images(store, retry, is_known=format is not None)
        if images:
            return ImageFolder(store, images[:limit], columns=columns, retry=retry, ledger=ledger)
        if format is not None:
            raise ObjectNotFoundError(f'An ImageFolder holds images, but {url} holds none. Check the path.')
    return open_parts(
        url,
        options,
        format_name=format,
        split=split,
        columns=columns,
        limit=limit,
        allow_unsafe_types=allow_unsafe_types,
        retry=retry,
    )
