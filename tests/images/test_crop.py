"""The boxes of crops."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace import ImageTensor
from headrace.images import NUM_DRAWS
from headrace.images.crop import choose_box, is_flipped

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
