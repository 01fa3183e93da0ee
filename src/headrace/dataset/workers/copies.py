"""The error for objects that cannot be pickled, where workers get copies."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, cast

from headrace.errors import ConfigError

__all__ = ['refusal']

_DEPTH = 4


def refusal(method: str, sent: Mapping[str, Any]) -> ConfigError | None:
    """The error for the objects that cannot be pickled; None if all can.

    Args:
        method: how processes are started, such as 'spawn'.
        sent: the objects that each worker gets, by the names that users know.
    """
    found = [path for name, value in sent.items() for path in _culprits(name, value, _DEPTH)]
    if not found:
        return None
    return ConfigError(
        f"Workers that are started by '{method}' get copies by pickle, and {'; '.join(found[:4])} cannot be pickled. "
        f"Define functions and classes at the top level of a module. Or set multiprocessing_context='fork', or "
        f'num_workers=0.'
    )


def _culprits(path: str, value: Any, depth: int) -> Iterator[str]:
    """The innermost attributes that cannot be pickled, as their path and their beginning."""
    if _can_be_pickled(value):
        return
    inside: list[str] = []
    if depth:
        for name, part in _parts(value):
            inside += _culprits(f'{path}{name}', part, depth - 1)
    yield from inside or [f'{path} ({value!r:.120})']


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f'[{key!r:.40}]', part) for key, part in cast('Mapping[Any, Any]', value).items()]
    if isinstance(value, (list, tuple)):
        return [(f'[{number}]', part) for number, part in enumerate(cast('list[Any]', value))]
    if callable(getattr(value, '__getstate__', None)) and hasattr(value, '__dict__'):
        state = value.__getstate__()  # Python 3.10 has it only where a class defines it
    else:
        state = getattr(value, '__dict__', {})
    return [(f'.{name}', part) for name, part in state.items()] if isinstance(state, dict) else []


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # of any class that a `__reduce__` raises
        return False
    return True
