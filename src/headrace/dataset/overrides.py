"""Methods that subclasses override for MosaicML Streaming, and that headrace would silently never call."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import ConfigError

__all__ = ['refuse_unused_overrides']


def refuse_unused_overrides(cls: type, own: type, unused: Mapping[str, str]) -> None:
    """Refuse a subclass that overrides a method which is never called.

    Args:
        cls: the class of an object that is made.
        own: headrace's class, whose methods may be overridden.
        unused: by method, a sentence that names the replacement.

    Raises:
        ConfigError: it overrides one of them.
    """
    for base in cls.__mro__[: cls.__mro__.index(own)]:
        for name in vars(base).keys() & unused.keys():
            raise ConfigError(
                f'{base.__module__}.{base.__qualname__} overrides `{name}`, which headrace never calls. {unused[name]}'
            )
