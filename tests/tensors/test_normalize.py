"""The normalisation of images."""

from __future__ import annotations

import pytest
import torch

from headrace import NormalizeImages
from headrace.errors import ConfigError
from headrace.tensors.normalize import IMAGENET_MEAN, IMAGENET_STD


def images(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def expected(chw):
    mean, std = (torch.tensor(values, dtype=torch.float64).reshape(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (chw.double() / 255 - mean) / std


@pytest.mark.parametrize('shape', [(4, 3, 5, 6), (3, 5, 6), (2, 2, 3, 5, 6)])
def test_numbers(shape):
    batch = images(*shape)
    torch.testing.assert_close(NormalizeImages()(batch).double(), expected(batch), atol=1e-5, rtol=0)


def test_layouts_give_the_same_and_the_memory_stays_channels_last():
    batch = images(4, 5, 6, 3)
    one = NormalizeImages(layout='HWC')(batch)
    other = NormalizeImages()(batch.permute(0, 3, 1, 2))
    assert one.shape == (4, 3, 5, 6)
    assert one.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(one, other)


def test_types():
    batch = images(1, 3, 4, 4)
    half = NormalizeImages(dtype=torch.bfloat16)(batch)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), expected(batch), atol=0.01, rtol=0.01)
    assert not NormalizeImages().state_dict()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'mean': [0.5]}, 'one number for each channel'),
        ({'std': [0.1, 0.0, 0.1]}, 'greater than 0'),
        ({'layout': 'WHC'}, "'CHW' or 'HWC'"),
        ({'dtype': torch.int32}, 'floating-point'),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        NormalizeImages(**options)


def test_wrong_images_are_refused():
    with pytest.raises(ConfigError, match=r'uint8, but got torch\.float32'):
        NormalizeImages()(torch.zeros(1, 3, 2, 2))
    with pytest.raises(ConfigError, match=r"3 channels in layout 'CHW', but got the shape \[1, 2, 2, 3\]"):
        NormalizeImages()(images(1, 2, 2, 3))
