"""Lance datasets, written by Lance in another process: this one must not import it, since it forks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import StreamingDataset

pytest.importorskip('pyarrow')
if importlib.util.find_spec('lance') is None:
    pytest.skip('needs pylance', allow_module_level=True)

WRITE = """
import datetime, sys
import lance, numpy as np, pyarrow as pa

def table(first, last):
    ids = range(first, last)
    tokens = np.arange(first * 8, last * 8, dtype=np.int32)
    return pa.table({
        'id': pa.array(ids, pa.int64()),
        'text': [f'ä "{n}"' for n in ids],
        'tokens': pa.FixedSizeListArray.from_arrays(pa.array(tokens), 8),
        'maybe': [None if n % 3 else n for n in ids],
        'words': [[f'w{n}'] * (n % 4) for n in ids],
        'numbers': [[(n + k) << 40 for k in range(n % 90 + 1)] for n in ids],
        'deep': [{'a': n, 'b': [str(n)]} for n in ids],
        'data': [np.random.default_rng(n).bytes(50 + n % 100 + 8000 * (n >= 100)) for n in ids],
    })

path, version, rows, of_file = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
batches = table(0, rows).to_reader(500)
dataset = lance.write_dataset(batches, path, data_storage_version=version, max_rows_per_file=of_file)
exec(sys.argv[5])
"""


def write_lance(path: Path, rows: int, of_file: int = 1 << 20, then: str = '', version: str = '2.1') -> Path:
    """A dataset; `then` are statements about the variable `dataset`."""
    arguments = [str(path), version, str(rows), str(of_file), then]
    subprocess.run([sys.executable, '-c', WRITE, *arguments], check=True, capture_output=True)
    return path


def expected(ids: Any) -> list[dict[str, Any]]:
    return [
        {
            'id': n,
            'text': f'ä "{n}"',
            'tokens': list(range(8 * n, 8 * n + 8)),
            'maybe': None if n % 3 else n,
            'words': [f'w{n}'] * (n % 4),
            'numbers': [(n + k) << 40 for k in range(n % 90 + 1)],
            'deep': {'a': n, 'b': [str(n)]},
            'data': np.random.default_rng(n).bytes(50 + n % 100 + 8000 * (n >= 100)),
        }
        for n in ids
    ]


def opened(data: Path, cache: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(remote=str(data), local=str(cache), batch_size=4, **options)
