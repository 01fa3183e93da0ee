"""The code of docs/composer.md runs as it is pasted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages.page_code import DOCS, run_page


@pytest.mark.once
def test_the_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_page((DOCS / 'composer.md').read_text(), tmp_path, monkeypatch)

    assert names['trainer'].state.timestamp.batch == 2 * 16  # the last one: 1,000 samples in batches of 64
    assert {'loss/code', 'loss/prose'} <= names['ByStream']().get_metrics(is_train=True).keys()
    assert [*Path('checkpoints').glob('ep1-ba30-*.pt')]
