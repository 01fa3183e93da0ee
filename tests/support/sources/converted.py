"""Conversions without a progress bar, and what they convert."""

from __future__ import annotations

from functools import partial

import numpy as np

from headrace.convert import convert as convert_with_bar

convert = partial(convert_with_bar, progress_bar=False)


def pixels(image):
    return np.asarray(image.convert('RGB')).tolist()


def squares(number):
    """Several samples, one, or none."""
    if number % 3 == 0:
        return None
    if number % 3 == 1:
        return {'n': number, 'square': number**2, 'part': 0}
    return ({'n': number, 'square': number**2, 'part': part} for part in range(3))


KILL: dict[str, int] = {}
