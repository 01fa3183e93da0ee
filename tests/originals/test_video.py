"""Frames of videos."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import FormatError
from headrace.multimodal import (
    decode_frames,
)
from headrace.originals.video import check_video

pytest.importorskip('av')
from tests.support.originals.webvid_originals import video


def test_a_video_opens_no_files_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'ffconcat version 1.0\nfile other.mp4\n'
    (tmp_path / 'other.mp4').write_bytes(video(1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match='A video must be whole'):
        check_video(data)
    with pytest.raises(FormatError, match='A video must be whole'):
        decode_frames(data, 1)
