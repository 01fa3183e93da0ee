"""Keys of a stream, as the arguments of `Stream`."""

from __future__ import annotations

from schema_classes import fields, parameters

from headrace.mixing import (
    StreamConfig,
)


def test_a_stream_has_the_keys_of_stream() -> None:
    from headrace.dataset.streams.stream import Stream

    assert set(fields(StreamConfig)) == set(parameters(Stream))
