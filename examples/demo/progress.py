"""Progress bars for a terminal, and lines for a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm
from typing_extensions import Self

__all__ = ['Bar']

_LOG_SECONDS = 10.0


class Bar:
    """A named progress bar."""

    def __init__(self, name: str, *, total: int, unit: str) -> None:
        self._is_watched = sys.stdout.isatty()
        self._bar = tqdm(total=total, desc=name, unit=f' {unit}', file=sys.stdout, disable=not self._is_watched)
        self._name, self._total, self._unit = name, total, unit
        self._done, self._note = 0, ''
        self._start = self._logged = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bar.close()
        if not self._is_watched:
            self._log()

    def show(self, done: int, note: str = '') -> None:
        """``done`` of the total is done."""
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._done)
        self._done, self._note = done, note
        if not self._is_watched and time.monotonic() - self._logged > _LOG_SECONDS:
            self._log()

    def _log(self) -> None:
        self._logged = time.monotonic()
        seconds = f'{self._logged - self._start:.0f} s'
        parts = [f'{self._done}/{self._total} {self._unit}', self._note, seconds]
        print(f'{self._name}: {", ".join(filter(None, parts))}', flush=True)
