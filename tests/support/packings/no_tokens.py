"""Batches without tokens, whose lengths differ."""

from __future__ import annotations

import pytest

from tests.support.datasets.selected import without_column


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Arrays of differing lengths do not stack into a batch; no test here looks at them."""
    from headrace.dataset.reading import batch_reader

    collate = batch_reader.collate_columns
    monkeypatch.setattr(
        batch_reader, 'collate_columns', lambda batch, *rest: collate(without_column(batch, 'tokens'), *rest)
    )
