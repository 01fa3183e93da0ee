"""docs/packing.md shows what its programs print, and what they name is what the batches hold."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from headrace.mixing import build_loader, load_config
from tests.support.pages.transcripts import with_transcripts

PAGE = Path(__file__).parents[2] / 'docs' / 'packing.md'


def test_the_transcripts_are_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If not, write them anew: python -m tests.support.pages.transcripts docs/packing.md."""
    page = PAGE.read_text()
    assert page.count('\n$ ') == 4
    assert with_transcripts(page, tmp_path) == page
    # The tokens of the page's documents say which document they are of.
    monkeypatch.chdir(tmp_path)
    train = load_config(tmp_path / 'run.yaml').train
    assert train is not None
    loader = build_loader(train)
    batches = list(itertools.islice(loader, 4))
    report = json.loads((tmp_path / 'loss-spike-batch3.json').read_text())
    rows = report['batches'][0]['rows']
    for row, tokens, used in zip(rows, *(batches[3][key].tolist() for key in ('input_ids', 'num_tokens')), strict=True):
        assert tokens[:used] == [
            1000 * document['id'] + 1 + place
            for document in row['documents']
            for place in range(document['begin'], document['end'])
        ]
    streams = {'code': 0, 'prose': 0}
    for token in (token for batch in batches for token in batch['input_ids'].flatten().tolist() if token):
        streams['code' if token < 8000 else 'prose'] += 1
    for name, tokens in streams.items():
        assert f'\nmix/{name}/tokens {tokens}\n' in page
    without = build_loader(
        load_config('run.yaml', overrides=['train.skip=[[1doc,2doc],[3doc,4doc],[11doc,12doc]]']).train
    )
    left = list(itertools.islice(without, 4))[3]['num_tokens']
    assert not left.any()  # of the batch of the spike
