"""A recorded run, explained with its data."""

from __future__ import annotations

import pytest

from headrace.errors import ResumeError
from headrace.watching import RecordedRun
from tests.support.trainers.recorded_runs import Process


def test_other_data_than_the_runs_are_refused(folders, tmp_path, make_dataset) -> None:
    Process(folders, tmp_path / 'run', 1).train(2)
    other = make_dataset('other', 60)
    run = RecordedRun(tmp_path / 'run', overrides=[f'train.streams.a.local={other}'])
    with pytest.raises(ResumeError, match='samples'):
        run.step(1)
