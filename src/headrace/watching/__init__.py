"""The record of a run, and the page and the table that show the run while it lasts.

1. `recorder.RunRecorder` writes the record of a run, lines in a file of its folder (`record_file`). `loader_config` and
   `versions` give the content.
2. `history.RunHistory` reads it: segments between kills and resumes, and the place of each step in the data.
3. `explain.RecordedRun` gives the samples of a step, and the steps of a sample.
4. `status.RankStatus` writes a small file of each rank's rates and waits, beside the record. `live` reads them, and
   `server` and `table` show them.
5. `run_files.RunFiles` calls `RunRecorder` and `RankStatus` together, for the callbacks `RunRecord` of both trainers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names
from headrace.watching.recorder import RunRecorder
from headrace.watching.status import RankStatus

if TYPE_CHECKING:
    from headrace.watching.explain import ExplainedStep, RecordedRun, SampleSeen
    from headrace.watching.history import RecordedPass, RunHistory, Segment, TrainedStep

__all__ = [
    'ExplainedStep',
    'RankStatus',
    'RecordedPass',
    'RecordedRun',
    'RunHistory',
    'RunRecorder',
    'SampleSeen',
    'Segment',
    'TrainedStep',
]

if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(('ExplainedStep', 'RecordedRun', 'SampleSeen'), 'headrace.watching.explain'),
            **dict.fromkeys(('RecordedPass', 'RunHistory', 'Segment', 'TrainedStep'), 'headrace.watching.history'),
        },
    )
