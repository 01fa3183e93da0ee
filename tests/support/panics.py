"""The panic of a library in Rust, as pyo3 raises it."""

from __future__ import annotations

PanicException = type('PanicException', (BaseException,), {'__module__': 'pyo3_runtime'})


def encode(texts: list[str]) -> list[list[int]]:
    """A tokenizer that panics at a text with a tab; others have a token for each letter."""
    if any('\t' in text for text in texts):
        raise PanicException('called `Result::unwrap()` on an `Err` value')
    return [[byte - ord('a') for byte in text.encode()] for text in texts]
