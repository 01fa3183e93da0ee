"""The random generators of a process, as values that `torch.load(weights_only=True)` reads."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ['random_state', 'restore_random_state']


def random_state() -> dict[str, Any]:
    """The states of the global generators of Python, NumPy, PyTorch and, if in use, the current GPU."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        'python': [version, list(words), gauss],
        'numpy': [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        'torch': torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set the generators to states that `random_state` gave."""
    version, words, gauss = state['python']
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state((name, np.asarray(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state['torch'])
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'])
