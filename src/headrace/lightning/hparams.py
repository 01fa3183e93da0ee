"""A data module's arguments as hyperparameters for loggers and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from headrace.dataset.dataset import StreamingDataset
from headrace.mixing import Config, LoaderConfig, to_mapping
from headrace.redaction import redact_value

if TYPE_CHECKING:
    from headrace.lightning.sources import LoaderSource

__all__ = ['hyperparameters']


def hyperparameters(sources: Mapping[str, Iterable[LoaderSource]], **options: Any) -> dict[str, Any]:
    """The sources by section, and the options that are not None: plain values without secrets."""
    described = {
        section: {source.name: source.source for source in given} if len(given) > 1 else given[0].source
        for section, given in ((section, list(given)) for section, given in sources.items())
        if given
    }
    return redact_value(_plain({**described, **{name: value for name, value in options.items() if value is not None}}))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Config, LoaderConfig)):
        return _plain(to_mapping(value))
    if isinstance(value, StreamingDataset):
        # The dataset is ready-made, so its arguments are unknown; the places of its data say most.
        streams = [{'name': stream.name, 'remote': stream.remote, 'local': stream.local} for stream in value.streams]
        return {'streams': _plain(streams), 'shuffle_seed': value.shuffle_seed}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast('Mapping[Any, Any]', value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast('list[Any]', value)]
    return getattr(value, '__qualname__', None) or str(value)
