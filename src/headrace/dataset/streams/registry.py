"""Classes of streams by name, for `StreamingDataset(stream_name=...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from headrace.dataset.streams.stream import Stream
from headrace.errors import ConfigError, UnknownNameError

__all__ = ['StreamsRegistry', 'streams_registry']

_ENTRY_POINTS = 'streaming_streams_registry'
"""The group of entry points by which installed packages name classes of streams, as for MosaicML Streaming."""


class StreamsRegistry:
    """Classes of streams, or functions that make streams, by name."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[..., Any]] = {'stream': Stream}

    def register(self, name: str, *, func: Callable[..., Any] | None = None) -> Any:
        """Register a class under a name, which a second call replaces. Without `func`, it decorates the class.

        Args:
            name: as `stream_name` gives it.
            func: takes the arguments of `Stream` and those of `stream_config`, by name; returns a `Stream`.
        """
        if func is None:
            return lambda found: self.register(name, func=found)
        self._makers[name] = func
        return func

    register_class = register

    def get(self, name: str) -> Callable[..., Any]:
        """The class of a name: a registered one, or an installed package's entry point.

        Raises:
            UnknownNameError: there is none.
        """
        if name not in self._makers:
            for point in entry_points(group=_ENTRY_POINTS, name=name):
                self._makers[name] = point.load()
        if name not in self._makers:
            raise UnknownNameError(
                f'`stream_name` is one of {sorted(self._makers)}, but got {name!r}. Import the module that calls '
                f'streams_registry.register({name!r}, func=...) first.'
            )
        return self._makers[name]

    def get_all(self) -> dict[str, Callable[..., Any]]:
        """The registered classes by name."""
        return dict(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def make(self, name: str, config: Mapping[str, Any] | None, **place: Any) -> Stream:
        """The stream that the class of a name makes.

        Args:
            name: as `stream_name` gives it.
            config: more arguments of the class.
            place: its `remote`, `local` and `split`.

        Raises:
            UnknownNameError: there is no such class.
            ConfigError: it made something else.
        """
        made = self.get(name)(**{**(config or {}), **place})
        if not isinstance(made, Stream):
            raise ConfigError(f'The stream class {name!r} must make a Stream, but made a {type(made).__name__}.')
        return made


streams_registry = StreamsRegistry()
"""The registry that `StreamingDataset` asks."""
