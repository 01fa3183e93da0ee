"""The progress bar of a writer."""

from __future__ import annotations

import io

from headrace import MDSWriter, StreamingDataset


def test_the_progress_bar_shows_samples_bytes_and_the_time_left(tmp_path, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr('sys.stderr', shown)
    with MDSWriter(
        out=str(tmp_path / 'data'), columns={'id': 'int'}, size_limit=1000, progress_bar=True, total=500
    ) as writer:
        writer.write_batch({'id': range(250)})
        for i in range(250):
            writer.write({'id': i})
    last = shown.getvalue().split('\r')[-1]
    assert '500/500' in last
    assert 'samples/s' in last
    assert 'shards' in last
    assert 'B/s' in last
    assert len(StreamingDataset(local=str(tmp_path / 'data'))) == 500
