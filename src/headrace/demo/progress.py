"""Progress bars that are also legible in a log file."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm
from typing_extensions import Self

__all__ = ['Bar']

_LOG_SECONDS = 10.0
"""Where nobody watches, a bar is a line in a log now and then."""


class Bar:
    """A named bar that is told where the work stands."""

    def __init__(self, name: str, *, total: int, unit: str) -> None:
        watched = sys.stdout.isatty()
        self._bar = tqdm(
            total=total,
            desc=name,
            unit=f' {unit}',
            file=sys.stdout,
            mininterval=0.1 if watched else _LOG_SECONDS,
            maxinterval=_LOG_SECONDS,
            ascii=None if watched else ' #',
            ncols=None if watched else 110,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bar.close()

    def show(self, done: int, note: str = '') -> None:
        """``done`` of the total is done."""
        if done != self._bar.n:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)
