"""Files of the folder `.headrace`, by names that headrace makes."""

from __future__ import annotations

LOCK, PART = f'{"ab" * 16}.lock', f'{"ab" * 16}.0.0123abcd.raw'
