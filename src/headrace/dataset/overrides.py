"""Methods that subclasses override for MosaicML Streaming, and that headrace would silently never call."""

from __future__ import annotations

from headrace.errors import ConfigError

__all__ = ['refuse_unused_overrides']

_STORE = 'Register a store for the scheme of the URLs: headrace.storage.register_store.'
_COMPRESSION = 'Register a compression: headrace.format.register_compression.'
_INDEX = 'Write an index.json to the remote, or to `local` before the dataset is made.'
_PLAN = 'The order is `dataset.plan(epoch=...)`: read it there, or pass `shuffle_algo` and `batching_method`.'

_UNUSED = {
    'Stream': {
        '_decompress_shard_part': _COMPRESSION,
        '_download_file': _STORE,
        '_prepare_shard_part': _STORE,
        'get_shards': _INDEX,
        'prepare_shard': _STORE,
    },
    'StreamingDataset': {
        '_each_sample_id': _PLAN,
        '_get_work': _PLAN,
        '_resume': 'Override `load_state_dict`.',
        'prepare_shard': _STORE,
        'resample_streams': _PLAN,
    },
}
"""By class and method, a sentence that names the replacement."""


def refuse_unused_overrides(cls: type, own: type) -> None:
    """Refuse a subclass that overrides a method which is never called.

    Args:
        cls: the class of an object that is made.
        own: `Stream` or `StreamingDataset`, whose methods may be overridden.

    Raises:
        ConfigError: it overrides such a method.
    """
    unused = _UNUSED[own.__name__]
    for base in cls.__mro__[: cls.__mro__.index(own)]:
        for name in sorted(vars(base).keys() & unused.keys()):
            raise ConfigError(
                f'{base.__module__}.{base.__qualname__} overrides `{name}`, which headrace never calls. {unused[name]}'
            )
