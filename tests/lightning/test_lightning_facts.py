"""The repr of a data module."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import StreamingDataset
from headrace.lightning import StreamingDataModule
from tests.support.pages.shown import html_of

pytestmark = [pytest.mark.filterwarnings('ignore')]


def test_its_repr_names_the_loaders_and_their_data(make_dataset: Any) -> None:
    folder = make_dataset()
    dataset = StreamingDataset(local=str(folder), batch_size=4)
    module = StreamingDataModule(train=dataset, val={'local': str(folder)}, batch_size=4)
    for text in (str(module), repr(module)):
        assert text.startswith('StreamingDataModule\n')
        assert 'StreamingDataset: 100 samples of 1 stream' in text
        assert 'not opened before `setup`' in text
    assert '<table>' in html_of(module)
    assert 'not ready' in repr(StreamingDataModule.__new__(StreamingDataModule))
