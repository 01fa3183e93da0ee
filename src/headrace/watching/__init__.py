"""The record of a run, and the page and the table that show the run while it lasts.

1. `record.RunRecorder` writes the record of a run, lines in a file of its folder, and the status of each rank.
2. `history.RunHistory` reads it: segments between kills and resumes, and the place of each step in the data.
   `history.RecordedRun` gives the samples of a step, and the steps of a sample.
3. `status.RankStatus` writes a small file of each rank's rates and waits, beside the record. `live` reads
   these files, and shows them as a table and as a page. `run_files.RunFiles` is a recorder for the trainers' callbacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names
from headrace.watching.record import RunRecorder
from headrace.watching.status import RankStatus

if TYPE_CHECKING:
    from headrace.watching.history import (
        ExplainedStep,
        RecordedPass,
        RecordedRun,
        RunHistory,
        SampleSeen,
        Segment,
        TrainedStep,
    )

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
    _OF_HISTORY = set(__all__) - {'RankStatus', 'RunRecorder'}
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(_OF_HISTORY, 'headrace.watching.history'))
