"""docs/mosaicml.md: its tables are those of the package, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.format import mds_decode

PAGE = Path(__file__).parents[2] / 'docs' / 'mosaicml.md'


@pytest.mark.usefixtures('alias')
def test_the_tables_are_up_to_date() -> None:
    from tests.support.pages.mosaicml_names import updated

    text = PAGE.read_text()

    assert updated(text) == text, 'run python -m tests.support.pages.mosaicml_names'
    with pytest.raises(ValueError, match='no table'):
        updated(text.replace('<!-- table: members -->', ''))


@pytest.mark.usefixtures('alias', 'own_encodings')
def test_the_examples_run(make_dataset: Any) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r'^```python\n(.*?)^```$', PAGE.read_text(), flags=re.MULTILINE | re.DOTALL):
        exec(block, names)

    assert mds_decode('uint8', b'ab').tolist() == [97, 98]
    labelled = names['StreamingDataset'](
        stream_name='labelled', stream_config={'label': 'a'}, local=str(make_dataset('data', 4)), batch_size=2
    )
    assert labelled.streams[0].label == 'a'
