"""The options of a stream's store, from the stream's arguments."""

from __future__ import annotations

from dataclasses import replace

from headrace.dataset.streams.stream import Stream
from headrace.errors import StreamError
from headrace.storage import StoreOptions

__all__ = ['store_options_of']


def store_options_of(stream: Stream) -> StoreOptions:
    """The options with which a stream's store is opened.

    Raises:
        StreamError: a time-out in `store_options` is no number of seconds above 0.
    """
    extra = dict(stream.store_options or {})
    options = StoreOptions(
        endpoint_url=stream.endpoint_url,
        region=stream.region,
        anonymous=bool(stream.anonymous),
        requester_pays=bool(stream.requester_pays),
        read_timeout=float(stream.download_timeout or 60),
    )
    times = {name: extra.pop(name) for name in ('connect_timeout', 'request_timeout') if name in extra}
    for name, seconds in times.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise StreamError(
                f'`{name}` in `store_options` of stream {stream.title} must be a number of seconds above 0, but '
                f'is {seconds!r}.'
            )
    return replace(options, **{name: float(seconds) for name, seconds in times.items()}, extra=extra)
