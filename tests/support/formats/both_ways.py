"""Both ways to read an index."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from headrace.format import index as index_module


@pytest.fixture(autouse=True, scope='module', params=[math.inf, 0], ids=['one by one', 'fast path'])
def way_of_parsing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to read an index follow the same rules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, 'LARGE', request.param)
        yield
