"""Numbers of a property's examples in the tiers of tests."""

from __future__ import annotations

from hypothesis import settings

__all__ = ['USUAL', 'scaled']

USUAL = 30
"""Examples in `make test` of a property that asks for no number."""


def scaled(examples: int) -> int:
    """So many examples in `make test`; fewer in a tier with few examples, and more in one with many."""
    return max(2, round(examples * settings.default.max_examples / USUAL))
