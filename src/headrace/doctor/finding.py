"""One answer of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ['Finding']


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    level: Literal['ok', 'note', 'problem']
    """`problem`: a run will fail or be slow. `note`: worth knowing. `ok`: as it should be."""
    what: str
    """The thing that was looked at, such as a package or a stream."""
    text: str
    """The answer, with its numbers."""
    fix: str = ''
    """The change to make."""
