"""Sources that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError, ObjectNotFoundError
from tests.support.sources.converted import convert


@pytest.mark.parametrize('source', [7, b'bytes', {'a': 1}])
def test_sources_that_are_none(tmp_path: Path, source: object) -> None:
    with pytest.raises(ConfigError, match='A source is'):
        convert(source, tmp_path / 'out')


def test_a_folder_without_known_data(tmp_path: Path) -> None:
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'notes.md').write_text('nothing')
    with pytest.raises(ObjectNotFoundError, match='No data of a known format'):
        convert(tmp_path / 'data', tmp_path / 'out')
    with pytest.raises(ObjectNotFoundError, match=r'No data of a known format is at .*/data/notes\.md:'):
        convert(tmp_path / 'data' / 'notes.md', tmp_path / 'out')
    with pytest.raises(ObjectNotFoundError, match='absent'):
        convert(tmp_path / 'absent', tmp_path / 'out')
