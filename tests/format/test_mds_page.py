"""The page that specifies MDS: its reader reads what the writer writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headrace import MDSWriter
from headrace.format import get_hashes, get_mds_encodings

PAGE = (Path(__file__).parents[2] / 'docs' / 'mds.md').read_text()


def test_the_reader_of_the_page_reads_what_the_writer_writes(tmp_path: Path) -> None:
    (program,) = re.findall(r'```python\n(.*?)```', PAGE, re.DOTALL)
    assert len(program.splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(program, names)
    samples = [{'a': i, 'text': 'ü' * (i % 7), 'z': bytes(i % 5), 'b': i * i} for i in range(100)]
    columns = {'text': 'str', 'z': 'bytes', 'a': 'int', 'b': 'int'}
    with MDSWriter(out=str(tmp_path / 'data'), columns=columns, size_limit=2000) as writer:
        for sample in samples:
            writer.write(sample)
    assert len(list((tmp_path / 'data').glob('*.mds'))) > 1
    assert list(names['read'](tmp_path / 'data')) == samples


def test_the_page_names_each_encoding_and_hash() -> None:
    rows = PAGE.partition('## Values')[2].partition('**Arrays.**')[0]
    ranges = {f'{kind}int{bits}' for kind in ('', 'u') for bits in (8, 16, 32, 64)}
    assert {name for name in get_mds_encodings() if f'`{name}`' not in rows} <= ranges
    between = {'sha3_256', 'sha3_384'}
    assert {name for name in get_hashes() if f'`{name}`' not in PAGE} <= between
