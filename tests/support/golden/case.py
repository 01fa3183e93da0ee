"""Recorded cases and arrays, and the comparison with ours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ['Case', 'Outcome', 'array_problem', 'expect_error', 'read_arrays', 'read_json']

Case: TypeAlias = dict[str, Any]
Outcome: TypeAlias = tuple[str, str]
"""A vector's name, and the difference of our result; empty if there is none."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text('utf-8'))


def read_arrays(path: Path) -> dict[str, NDArray[np.int64]]:
    """Return the arrays of an npz file as int64; none if there is no such file."""
    if not path.exists():
        return {}
    with np.load(path) as arrays:
        return {name: arrays[name].astype(np.int64) for name in arrays.files}


def array_problem(got: NDArray[np.int64], case: Case, arrays: dict[str, NDArray[np.int64]]) -> str:
    """Say how an array differs from a case's ``shape``, ``sha256``, head and tail, or from its stored array."""
    if list(got.shape) != case['shape']:
        return f'shape {list(got.shape)} instead of {case["shape"]}'
    wanted = arrays.get(case['id'])
    if wanted is not None and not np.array_equal(got, wanted) and 'cpu_variants' not in case:
        first = int(np.flatnonzero(got.ravel() != wanted.ravel())[0])
        return f'entry {first} is {got.ravel()[first]} instead of {wanted.ravel()[first]}'
    digest = hashlib.sha256(np.ascontiguousarray(got, '<i8').tobytes()).hexdigest()
    # If MosaicML Streaming's order depends on the CPU, the stable one is right.
    expected = case.get('cpu_variants', {}).get('stable_argsort', case['sha256'])
    if digest != expected:
        return 'the values differ'
    flat = got.ravel()
    for name, part in (('head', flat[:64]), ('tail', flat[-64:])):
        if name in case and part.tolist() != case[name]:
            return f'the {name} differs'
    return ''


def expect_error(case: Case, call: Callable[[], Any], *, instead: tuple[type[Exception], ...] = ()) -> str:
    """Say what is wrong with the error that a call raises; ``instead`` are other allowed classes."""
    names = {case['raises'], case.get('raises_real_dataset', case['raises'])}
    try:
        call()
    except Exception as error:
        if isinstance(error, instead) or names & {kind.__name__ for kind in type(error).__mro__}:
            return ''
        return f'{type(error).__name__} instead of {case["raises"]} ({case.get("reason")}): {error}'
    return f'no error, instead of {case["raises"]} ({case.get("reason")})'
