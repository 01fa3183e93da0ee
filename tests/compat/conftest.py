"""The alias, for one test: it is removed at the end, since other tests import MosaicML Streaming itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from headrace.format.encodings.encoding import ENCODINGS
from headrace.format.encodings.registry import get_mds_encoding


def loaded() -> list[str]:
    return [name for name in sys.modules if name.partition('.')[0] == 'streaming']


@pytest.fixture
def alias() -> Iterator[None]:
    """`import streaming` gives headrace."""
    others = {name: sys.modules.pop(name) for name in loaded()}
    import headrace.compat

    headrace.compat.install()
    yield
    headrace.compat.uninstall()
    assert not loaded()
    sys.modules.update(others)


@pytest.fixture
def own_encodings() -> Iterator[None]:
    """Registered encodings are forgotten after the test."""
    before = dict(ENCODINGS)
    yield
    ENCODINGS.clear()
    ENCODINGS.update(before)
    get_mds_encoding.cache_clear()
    from headrace.compat.formats import ENCODING_CLASSES

    vars(ENCODING_CLASSES)['_assigned'].clear()
