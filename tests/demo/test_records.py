from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo.records import Recorder, Step, last_step, read_run


def record(folder: Path, *, ranks: int, steps: range, start: int = 0, last: dict[int, int] | None = None) -> None:
    """Each rank records one id a step; ``last`` says after which step a rank died."""
    for rank in range(ranks):
        recorder = Recorder(folder, rank)
        recorder.start(step=start, world_size=ranks)
        for step in steps:
            if step <= (last or {}).get(rank, step):
                recorder.trained(step=step, epoch=0, ids=[10 * step + rank], loss=float(rank))


def test_a_step_joins_the_rows_and_the_losses_of_all_ranks(tmp_path: Path) -> None:
    record(tmp_path, ranks=2, steps=range(1, 3))

    run = read_run(tmp_path)

    assert run.start == 0
    assert run.steps == {1: Step(0, (10, 11), 0.5), 2: Step(0, (20, 21), 0.5)}


def test_a_step_that_a_rank_did_not_finish_does_not_count(tmp_path: Path) -> None:
    record(tmp_path, ranks=2, steps=range(1, 6), last={1: 3})

    assert list(read_run(tmp_path).steps) == [1, 2, 3]


def test_a_line_that_the_kill_tore_does_not_count(tmp_path: Path) -> None:
    record(tmp_path, ranks=1, steps=range(1, 4))
    path = tmp_path / 'rank0.jsonl'
    path.write_text(path.read_text()[:-7])

    assert list(read_run(tmp_path).steps) == [1, 2]
    assert last_step(tmp_path) == (2, 0.0)


def test_a_resumed_run_says_where_it_started(tmp_path: Path) -> None:
    record(tmp_path, ranks=1, steps=range(21, 23), start=20)

    run = read_run(tmp_path)

    assert run.start == 20
    assert list(run.steps) == [21, 22]


def test_a_rank_without_records_is_an_error(tmp_path: Path) -> None:
    record(tmp_path, ranks=2, steps=range(1, 3))
    (tmp_path / 'rank1.jsonl').unlink()

    with pytest.raises(FileNotFoundError, match=r'rank1\.jsonl'):
        read_run(tmp_path)


def test_before_the_first_step_there_is_none(tmp_path: Path) -> None:
    assert last_step(tmp_path) is None

    Recorder(tmp_path, 0).start(step=0, world_size=1)

    assert last_step(tmp_path) is None
