"""The text that a notebook shows of an object."""

from __future__ import annotations

from typing import Any


def html_of(value: Any) -> str:
    """The HTML that IPython asks an object for."""
    return value._repr_html_()
