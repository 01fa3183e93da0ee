"""The files of a run: records and statuses of its ranks."""

from __future__ import annotations

from pathlib import Path

from headrace.watching import RunRecorder
from headrace.watching.live import live_text, read_live
from tests.support.trainers.watched_ranks import Rank


def test_a_plain_loop_is_watched_on_every_rank(data: Path, tmp_path: Path) -> None:
    now = [0.0]
    ranks = [Rank(data, tmp_path / 'other', rank) for rank in range(2)]
    records = [RunRecorder(tmp_path / 'run', clock=lambda: now[0]) for _ in ranks]
    for record, rank in zip(records, ranks, strict=True):
        record.begin({'': rank.loader}, step=7)
        assert [each['state'] for each in read_live(tmp_path / 'run')['ranks']][-1] == 'starting'
        for _ in zip(range(3), rank.loader, strict=False):
            now[0] += 1
            record.batch_done()
        record.pause()
    live = read_live(tmp_path / 'run')
    assert (live['missing'], [rank['state'] for rank in live['ranks']]) == ([], ['evaluating'] * 2)
    for record in records:
        record.resume()
        record.end()
    live = read_live(tmp_path / 'run')
    assert [(rank['state'], rank['step']) for rank in live['ranks']] == [('ended', 10)] * 2
    assert 'step 10, 2 of 2 ranks' in live_text(live)
    RunRecorder(tmp_path / 'quiet', status_every=None).begin({'': ranks[0].loader})
    assert not (tmp_path / 'quiet' / 'headrace-status').exists()
