"""The example of shares by losses: killed, resumed on other ranks and workers, and repeated without losses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.online_mixture import EVERY, GLOBAL_BATCH, train, write_streams
from tests.support.trainers.ranks import run_ranks

PROGRAM = Path(__file__).parents[1] / 'support' / 'trainers' / 'online_run.py'


def ids_of(folder: Path, ranks: int) -> dict[int, list[int]]:
    """The ids of each step's global batch."""
    found: dict[int, list[int]] = {}
    for rank in range(ranks):
        for line in (folder / f'ids.{ranks}.{rank}.jsonl').read_text().splitlines():
            step, ids = json.loads(line)
            found.setdefault(step, []).extend(ids)
    return {step: sorted(ids) for step, ids in found.items() if len(ids) == GLOBAL_BATCH}


@pytest.mark.slow  # each rank imports torch and trains
def test_a_killed_run_resumes_on_other_ranks_and_is_repeated_without_losses(tmp_path: Path) -> None:
    write_streams(tmp_path, samples=300)
    with pytest.raises(AssertionError):
        run_ranks('torch', 2, PROGRAM, tmp_path, 40, 1, 17, folder=tmp_path)
    run_ranks('torch', 3, PROGRAM, tmp_path, 40, 0, 0, folder=tmp_path)
    first, second, third = ids_of(tmp_path, 2), ids_of(tmp_path, 3), dict[int, list[int]]()
    assert min(second) == EVERY + 1
    saved = train(tmp_path, 0)
    history = train(
        tmp_path, 40, repeat=True, workers=0, after_step=lambda n, b: third.update({n: sorted(b['id'].tolist())})
    )
    assert third == {**{step: ids for step, ids in first.items() if step <= EVERY}, **second}
    assert sorted(third) == list(range(1, 41))
    assert second[11] == first[11]
    for before, after in zip(saved, history[1:], strict=False):
        # 480 samples are drawn at random: this is four standard deviations.
        assert all(abs(after['seen'][name] - share) < 0.1 for name, share in before['decided'].items())
    assert history[-1]['seen']['noise'] < 0.2  # it began with a third, and is decided to be about a tenth
