"""The code of docs/metrics.md runs as it is pasted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages.page_code import DOCS, run_page


@pytest.mark.once
@pytest.mark.lightning
def test_the_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('lightning', 'torchmetrics', 'prometheus_client', 'opentelemetry'):
        pytest.importorskip(name)
    names = run_page((DOCS / 'metrics.md').read_text(), tmp_path, monkeypatch)

    assert names['stats'].stream_samples == {'code': 400, 'prose': 600}
    assert {name: count.samples for name, count in names['loader'].mix().items()} == {'code': 800, 'prose': 1200}
    assert names['loss'].compute().keys() == {'loss/code', 'loss/prose'}
