"""The state of a run, put together from its ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.watching.live import read_live
from headrace.watching.table import live_text
from tests.support.trainers.watched_ranks import ODD, Rank


def test_the_ranks_are_put_together(ranks: list[Rank], tmp_path: Path) -> None:
    live = read_live(tmp_path)
    assert [(rank['rank'], rank['step'], rank['state']) for rank in live['ranks']] == [
        (0, 102, 'training'),
        (1, 101, 'training'),
    ]
    assert (live['world_size'], live['missing'], live['total']['step']) == (2, [], 102)
    counts = {stream['stream']: stream['count'] for stream in live['mix']}
    assert sum(counts.values()) == 20  # two steps of ten samples; rank 0 knows those of all ranks
    assert counts.keys() == {'code', ODD}
    waits = [rank['figures']['data/wait_share'] for rank in live['ranks']]
    assert live['total']['wait_share'] == pytest.approx(sum(waits) / 2)
    assert live['total']['slowest_rank'] == waits.index(max(waits))
    # A damaged file is a rank that is missing; one of an earlier run on more ranks is left out.
    (tmp_path / 'headrace-status' / 'rank-00001.json').write_text('{"figures"')
    (tmp_path / 'headrace-status' / 'rank-00007.json').write_text(json.dumps({**live['ranks'][0], 'rank': 7}))
    live = read_live(tmp_path)
    assert ([rank['rank'] for rank in live['ranks']], live['missing']) == ([0], [1])
    later = read_live(tmp_path, clock=lambda: live['time'] + 90)
    assert later['ranks'][0]['is_stale']
    assert 'silent for 9' in live_text(later)
    assert 'without a status: ranks 1' in live_text(later)
