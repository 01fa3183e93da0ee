"""The status of a rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.watching.live import read_live
from tests.support.trainers.watched_ranks import Rank


def test_a_status_is_written_seldom_and_whole(data: Path, tmp_path: Path) -> None:
    rank = Rank(data, tmp_path, 0, 1)
    path = tmp_path / 'headrace-status' / 'rank-00000.json'
    assert json.loads(path.read_text())['state'] == 'starting'
    steps = []
    for _ in range(6):
        rank.train(0.75)
        steps.append(json.loads(path.read_text())['step'])
    assert steps == [100, 100, 103, 103, 103, 106]
    assert json.loads(path.read_text())['figures']['data/samples_per_second'] == pytest.approx(15 / 2.25)
    rank.status.end()
    assert json.loads(path.read_text())['state'] == 'ended'
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_an_evaluation_is_not_silent_and_keeps_the_rates(data: Path, tmp_path: Path) -> None:
    rank = Rank(data, tmp_path, 0, 1)
    rank.train(3.0, 1.0)
    rank.status.pause()
    figures = read_live(tmp_path)['ranks'][0]['figures']
    assert figures['data/batch_seconds_p50'] == 1.0
    later = read_live(tmp_path, clock=lambda: read_live(tmp_path)['time'] + 600)
    assert (later['ranks'][0]['state'], later['ranks'][0]['is_stale']) == ('evaluating', False)
    rank.now += 600
    rank.status.resume()
    (after,) = read_live(tmp_path)['ranks']
    assert (after['state'], after['figures']) == ('training', figures)
    rank.train(2.0)
    (after,) = read_live(tmp_path)['ranks']
    assert after['figures']['data/samples_per_second'] == pytest.approx(5 / 2)
    (tmp_path / 'headrace-status' / 'rank-00001.json').write_text('{"figures": {}}')  # of another version
    assert [one['rank'] for one in read_live(tmp_path)['ranks']] == [0]


def test_a_full_disk_ends_no_training(data: Path, tmp_path: Path) -> None:
    (tmp_path / 'headrace-status').write_text('in the way of the folder')
    rank = Rank(data, tmp_path, 0, 1)
    rank.train(3.0, 3.0)
    rank.status.end()
