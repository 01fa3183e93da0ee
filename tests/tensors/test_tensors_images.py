"""The settings of columns of images."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ImageTensor
from headrace.errors import StreamError
from headrace.tensors.decoding import Decode
from headrace.tensors.images import NUM_DRAWS, choose_box, is_flipped


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'layout': 'WHC'}, "`layout` of an ImageTensor must be one of 'CHW', 'HWC', but is 'WHC'"),
        ({'mode': 'RGBA'}, 'mode'),
        ({'mode': None}, 'mode'),
        ({'size': 0}, 'size'),
        ({'size': (8, 0)}, 'size'),
        ({'size': (8, 8, 8)}, 'size'),
        ({'size': 2.5}, 'size'),
        ({'size': True}, 'size'),
        ({'size': 1 << 17}, 'size'),
        ({'crop': 'random'}, '`crop` of an ImageTensor needs `size`'),
        ({'size': 8, 'crop': 'centre'}, "must be one of 'random', 'center'"),
        ({'size': 8, 'crop': ['random']}, 'crop'),
        ({'scale': (0, 1)}, 'scale'),
        ({'scale': (0.5, 0.4)}, 'scale'),
        ({'scale': (0.5, 1.4)}, 'scale'),
        ({'scale': (float('nan'), 1.0)}, 'scale'),
        ({'scale': 0.5}, 'scale'),
        ({'ratio': (2, 1)}, 'ratio'),
        ({'ratio': ('a', 'b')}, 'ratio'),
        ({'center_fraction': 0}, 'center_fraction'),
        ({'flip': 1.5}, 'flip'),
        ({'flip': True}, 'flip'),
        ({'interpolation': 'cubic'}, 'interpolation'),
        (
            {'interpolation': 'bilinear', 'mode': 'P', 'size': 8},
            "`interpolation` of an ImageTensor must be 'nearest' with `mode` 'P'",
        ),
        ({'scaled': True, 'size': 8, 'interpolation': 'nearest'}, '`scaled` of an ImageTensor must be false with'),
        ({'scaled': True}, '`scaled` of an ImageTensor needs `size`'),
        ({'scaled': 'yes', 'size': 8}, 'scaled'),
        ({'max_pixels': 0}, 'max_pixels'),
        ({'max_pixels': 1e6}, 'max_pixels'),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(StreamError, match=message):
        ImageTensor(**options)
    with pytest.raises(StreamError, match=r"decode\['image'\]\['(" + '|'.join(options) + r")'\]"):
        Decode.of({'image': options})


SIDES = st.integers(1, 3000)
DRAWS = st.lists(st.floats(0, 1, exclude_max=True), min_size=NUM_DRAWS, max_size=NUM_DRAWS)
SHARES = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(lambda pair: tuple(sorted(pair)))


@given(SIDES, SIDES, DRAWS, SHARES, st.floats(0.01, 1), st.sampled_from(['random', 'center', None]))
def test_boxes_are_inside_and_not_empty(height, width, draws, scale, fraction, crop):
    image = ImageTensor(size=(3, 5), crop=crop, scale=scale, center_fraction=fraction)
    for given_draws in (draws, None):
        box = choose_box(image, height, width, given_draws)
        assert 0 <= box.top < box.top + box.height <= height
        assert 0 <= box.left < box.left + box.width <= width


def test_random_boxes_have_the_areas_and_shapes_that_are_asked_for():
    image = ImageTensor(size=224, crop='random', scale=(0.2, 0.5), ratio=(0.5, 2.0))
    rng = np.random.default_rng(0)
    boxes = [choose_box(image, 400, 500, rng.random(NUM_DRAWS).tolist()) for _ in range(2000)]
    shares = np.array([box.height * box.width / (400 * 500) for box in boxes])
    ratios = np.array([math.log2(box.width / box.height) for box in boxes])
    assert 0.19 < shares.min() < 0.21
    assert 0.49 < shares.max() < 0.51
    assert abs(shares.mean() - 0.35) < 0.01  # uniform; all areas fit into this picture
    assert np.abs(ratios).max() < 1.02
    assert abs(np.median(ratios)) < 0.1
    assert {box.top == 0 for box in boxes} == {False, True}
    assert max(box.top + box.height for box in boxes) == 400
    assert max(box.left + box.width for box in boxes) == 500


def test_a_long_picture_gives_the_largest_allowed_shape_of_its_centre():
    image = ImageTensor(size=224, crop='random', scale=(1.0, 1.0))
    assert choose_box(image, 100, 1000, [0.5] * NUM_DRAWS) == (0, 433, 100, 133)
    assert choose_box(image, 1000, 100, [0.5] * NUM_DRAWS) == (433, 0, 133, 100)


def test_central_boxes():
    assert choose_box(ImageTensor(size=224, crop='center'), 256, 320, None) == (16, 48, 224, 224)
    wide = ImageTensor(size=(100, 200), crop='center', center_fraction=1.0)
    assert choose_box(wide, 400, 400, None) == (100, 0, 200, 400)
    assert choose_box(ImageTensor(size=(10, 20)), 400, 500, None) == (0, 0, 400, 500)


def test_flips():
    assert not is_flipped(ImageTensor(flip=1.0), None)
    assert is_flipped(ImageTensor(flip=1.0), [0.99] * NUM_DRAWS)
    assert not is_flipped(ImageTensor(), [0.0] * NUM_DRAWS)
