"""A single clip is opened by its bytes."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from headrace.audio import AudioTensor, open_clip
from headrace.errors import FormatError


def test_a_clip_is_decoded_into_an_array_of_its_shape() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.linspace(-0.5, 0.5, 800, dtype=np.float32), 8000, format='WAV', subtype='FLOAT')
    clip = open_clip(file.getvalue(), AudioTensor(sample_rate=8000))
    samples = np.zeros(clip.shape, np.float32)
    clip.read_into(samples, None)
    assert np.array_equal(samples, np.linspace(-0.5, 0.5, 800, dtype=np.float32)[None])


def test_a_damaged_clip_is_refused() -> None:
    with pytest.raises(FormatError):
        open_clip(b'RIFF', AudioTensor(sample_rate=8000))
