"""Shows interpolations in messages as they are written, never their resolved values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from headrace.config.problems import Path
from headrace.redaction import SHORTEST

__all__ = ['as_written', 'variables_in', 'written_at']


def written_at(values: Any, path: Path, value: object) -> object:
    """The raw value at `path` if it holds an interpolation; else `value`."""
    found: Any = values
    for part in path:
        if isinstance(found, str) and '${' in found:
            return found
        key: Any = part
        if isinstance(found, dict) and part not in found and str(part).isdecimal():
            key = int(part)
        try:
            found = found[key]
        except (LookupError, TypeError):
            return value
    return found if any(_interpolations_in(found)) else value


def variables_in(values: Any) -> Iterator[str]:
    """Environment variables that interpolations name, anywhere in raw values."""
    for text in _interpolations_in(values):
        yield from re.findall(r'oc\.env:\s*([^,}\s]+)', text)


def as_written(text: str, variables: Iterable[str]) -> str:
    """A text with the values of these variables replaced by the interpolations that they came from."""
    for name in sorted(variables):
        if len(value := os.environ.get(name, '')) >= SHORTEST:
            text = text.replace(value, f'${{oc.env:{name}}}')
    return text


def _interpolations_in(values: Any) -> Iterator[str]:
    """The texts among raw values that hold interpolations."""
    if isinstance(values, dict):
        values = list(cast('dict[Any, Any]', values).values())
    if isinstance(values, list):
        for item in cast('list[Any]', values):
            yield from _interpolations_in(item)
    elif isinstance(values, str) and '${' in values:
        yield values
