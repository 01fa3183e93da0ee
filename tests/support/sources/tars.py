"""Tars of samples."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import numpy as np


def pack(members: list[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w', format=kind) as file:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return out.getvalue()


def pairs(count: int, size: int = 20, first: int = 0) -> list[tuple[str, bytes]]:
    return [
        member
        for n in range(first, first + count)
        for member in ((f'{n:06}.bin', bytes([n % 256]) * size), (f'{n:06}.txt', f'text {n}'.encode()))
    ]


def npy(array: Any, **how: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **how)
    return out.getvalue()
