"""Real text that every Python carries, cut into rows of bytes of one length.

Two corpora: the source code of the standard library, and prose, which is the language reference behind ``help()`` and
the docstrings of the same modules. The text depends on the Python version, the number of rows does not.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError

__all__ = ['CORPORA', 'columns', 'corpus_ids', 'corpus_rows', 'samples']

CORPORA = ('code', 'prose')
"""The corpora by name; a row's id is its corpus's place here times ``_ID_STRIDE``, plus its number."""

_ID_STRIDE = 1_000_000

_Rows = npt.NDArray[np.uint8]


def columns(row_bytes: int) -> dict[str, str]:
    """The MDS columns of a corpus: a unique id, so that a batch can be proved, and the bytes of one row."""
    return {'id': 'int', 'tokens': f'ndarray:uint8:{row_bytes}'}


def samples(corpus: str, rows: _Rows) -> Iterator[dict[str, Any]]:
    """The samples of a corpus, as a writer takes them."""
    for sample_id, row in zip(corpus_ids(corpus, len(rows)), rows, strict=True):
        yield {'id': sample_id, 'tokens': row}


def corpus_ids(corpus: str, rows: int) -> range:
    """The ids of the first ``rows`` rows of a corpus; no two corpora share one."""
    first = CORPORA.index(corpus) * _ID_STRIDE
    return range(first, first + rows)


def corpus_rows(corpus: str, *, rows: int, row_bytes: int) -> _Rows:
    """``rows`` rows of ``row_bytes`` bytes each, spread evenly over the whole text of the corpus.

    Raises:
        ConfigError: If this Python carries less text than that.
    """
    everything = np.concatenate([_cut(text, row_bytes) for text in _texts(corpus)])
    if len(everything) < rows:
        raise ConfigError(
            f'the demo needs {rows} rows of {row_bytes} bytes of {corpus}, and the standard library of this Python '
            f'({sysconfig.get_path("stdlib")}) has {len(everything)}: install its sources, or ask for fewer rows'
        )
    return everything[np.arange(rows) * len(everything) // rows]


def _cut(text: str, row_bytes: int) -> _Rows:
    """Whole rows of one text; the rest at its end is dropped, so that no row spans two texts."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    whole = len(data) // row_bytes
    return data[: whole * row_bytes].reshape(whole, row_bytes)


@cache
def _texts(corpus: str) -> tuple[str, ...]:
    return tuple(_code() if corpus == 'code' else _prose())


def _code() -> Iterator[str]:
    for path in _modules():
        yield path.read_text(encoding='utf-8')


def _prose() -> Iterator[str]:
    topics: dict[str, str] = import_module('pydoc_data.topics').topics
    yield from (topics[name] for name in sorted(topics))
    for source in _code():
        # The docstrings of one module make one text: most of them are shorter than a row.
        yield '\n\n'.join(_docstrings(ast.walk(ast.parse(source))))


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ''


def _modules() -> list[Path]:
    """The modules at the top of the standard library, in an order that does not depend on the file system."""
    return sorted(Path(sysconfig.get_path('stdlib')).glob('*.py'))
