"""What the record of a run holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError
from headrace.watching import RunHistory, RunRecorder
from tests.support.trainers.recorded_runs import Process


def test_a_record_has_no_credentials_and_is_no_url(folders, tmp_path) -> None:
    stream = Stream(
        remote=str(folders['a']), local=str(tmp_path / 'cache'), endpoint_url='https://user:pass1@host?sig=sig2'
    )
    loader = StreamingDataLoader(StreamingDataset(streams=[stream], batch_size=10))
    record = RunRecorder(tmp_path / 'run')
    record.begin({'': loader})
    for _ in loader:
        record.batch_done()
    record.end()
    text = (tmp_path / 'run' / 'headrace.record').read_text()
    assert 'https://user@host' in text
    assert 'pass1' not in text
    assert 'sig2' not in text
    for folder in ('s3://bucket/run', Path('gs:/bucket/run')):
        with pytest.raises(ConfigError, match='a folder of this machine'):
            RunRecorder(folder)


def test_the_step_is_written_now_and_then(folders, tmp_path) -> None:
    process = Process(folders, tmp_path, 1)
    now = 0.0

    def clock() -> float:
        return now

    process.record = record = RunRecorder(tmp_path, every=60, clock=clock)
    record.begin({'': process.loaders[0]})
    for step, _ in enumerate(process.loaders[0]):
        now += 25
        record.batch_done()
        if step == 7:
            break
    assert RunHistory.read(tmp_path).segments[0].reached == 7  # written at 25 (the pass), 100 and 175 s
