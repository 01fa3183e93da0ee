"""Samples in a terminal."""

from __future__ import annotations

import pytest

from headrace.cli.previews import print_preview
from headrace.inspect import describe_decoded


def test_a_preview_says_the_size_of_a_picture_once(capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip('PIL.Image')

    print_preview('Row 0', {'image': describe_decoded(image.new('RGB', (40, 20))), 'label': describe_decoded(3)})

    assert capsys.readouterr().out.splitlines()[:3] == ['Row 0', '  image: picture, 40 x 20 RGB', '  label: 3']
