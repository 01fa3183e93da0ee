"""The five verbs of a store, as calls."""

from __future__ import annotations

from headrace.testing.stores import put_bytes, read_bytes


def everything(store):
    return (
        lambda: read_bytes(store, 'x'),
        lambda: store.head('x'),
        lambda: list(store.list('')),
        lambda: put_bytes(store, 'y', b'1'),
        lambda: store.delete('y'),
    )
