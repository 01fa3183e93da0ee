"""The native order never changes: what it gave when it was frozen, it gives."""

from __future__ import annotations

import json

from native_vectors import FILE, cases, recorded


def test_the_order_is_what_it_was_when_it_was_frozen() -> None:
    frozen = json.loads(FILE.read_text())
    now = {name: recorded(*case) for name, *case in cases()}
    assert now.keys() == frozen.keys()
    differing = [name for name, found in now.items() if found != frozen[name]]
    assert not differing, f'{len(differing)} of {len(now)} orders changed, first: {differing[0]}'
