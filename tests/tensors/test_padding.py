"""Settings of `pad`. `dataset/reading/test_padded.py` pads columns and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.tensors.padding import Pad, can_hold


@pytest.mark.parametrize(
    ('pad', 'message'),
    [
        ({}, 'must be a mapping from columns'),
        ('tokens', 'must be a mapping from columns'),
        ({1: 0}, 'must be the name of a column: quote it'),
        ({'x': 'zero'}, r"`pad\['x'\]` must be the number that fills the column up, but is 'zero'"),
        ({'x': True}, 'must be the number'),
        ({'x': {'mask': True}}, r"`pad\['x'\]\['value'\]` must be the number .* but is None"),
        ({'x': {'value': 0, 'mask': 3}}, "must be true, for the key 'x_mask' of the batch, another key, or false"),
        ({'x': {'value': 0, 'length': ''}}, "must be true, for the key 'x_length' of the batch, another key, or false"),
        ({'x': {'value': 0, 'multiple': 8}}, 'is no setting; .*did you mean multiple_of'),
        ({'x': {'value': 0, 'multiple_of': 0}}, 'whole number of at least 1, but is 0'),
        ({'x': {'value': 0, 'to': 2.5}}, 'whole number of at least 1, but is 2.5'),
        ({'x': {'value': 0, 'to': 8, 'multiple_of': 8}}, '`multiple_of` has no effect'),
        ({'x': {'value': 0, 'axis': 'last'}}, 'must be the number of an axis'),
        ({'x': {'value': 0, 'length': 'm', 'mask': 'm'}}, "adds 'm' to the batch"),
        ({'x': {'value': 0, 'mask': 1}}, 'must be true'),
        ({'x': 0, 'x_length': 0}, "adds 'x_length' to the batch, which `pad` has already"),
        ({'x': {'value': 0, 'mask': 'm'}, 'y': {'value': 0, 'mask': 'm'}}, "adds 'm' to the batch"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_by_key(pad: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pad.of(pad)


@pytest.mark.parametrize(
    ('value', 'dtype', 'fits'),
    [
        (0, 'uint8', True),
        (255, 'uint8', True),
        (256, 'uint8', False),
        (-100, 'int64', True),
        (-100, 'uint16', False),
        (0.5, 'int64', False),
        (0.1, 'float16', True),
        (1e9, 'float16', False),
        (float('nan'), 'float32', True),
        (float('-inf'), 'float32', True),
        (float('nan'), 'int32', False),
        (1, 'bool', True),
        (2, 'bool', False),
    ],
)
def test_dtypes_hold_values(value: float, dtype: str, fits: bool) -> None:
    assert can_hold(np.dtype(dtype), value) == fits
