"""Numbers of a property's examples in the tiers of tests."""

from __future__ import annotations

from hypothesis import settings

__all__ = ['USUAL', 'scaled']

USUAL = 15
"""Examples in `make test` of a property that asks for no number."""


def scaled(examples: int, *, in_all: int | None = None) -> int:
    """So many examples where the usual number is 30: half of them in `make test`, and many more in `make test-all`.

    `in_all`: the number in `make test-all`, and under ``--hypothesis-profile=many``.
    """
    if in_all is not None and settings.default.max_examples > USUAL:
        return in_all
    return max(2, round(examples * settings.default.max_examples / 30))
