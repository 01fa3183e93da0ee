"""Files of tokens of Megatron-LM, llm.c, datatrove and numpy; those of the first were compared with its builder's."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

DTYPES = ['uint8', 'int8', 'int16', 'int32', 'int64', 'float64', 'float32', 'uint16']
"""By the code of Megatron-LM, from 1 on."""


def megatron(documents: Sequence[Sequence[Sequence[float]]], dtype: str = 'uint16') -> tuple[bytes, bytes]:
    """The .bin and the .idx of documents of sequences of tokens."""
    sequences = [np.array(tokens, dtype) for document in documents for tokens in document]
    lengths = [len(tokens) for tokens in sequences]
    offsets = [0, *accumulate(tokens.nbytes for tokens in sequences)][: len(sequences)]
    ends = [0, *accumulate(map(len, documents))]
    head = struct.pack('<9sQBQQ', b'MMIDIDX\0\0', 1, DTYPES.index(dtype) + 1, len(sequences), len(ends))
    arrays = (np.array(lengths, '<i4'), np.array(offsets, '<i8'), np.array(ends, '<i8'))
    return b''.join(tokens.tobytes() for tokens in sequences), head + b''.join(array.tobytes() for array in arrays)


def llm_c(tokens: Sequence[int], dtype: str = 'uint16') -> bytes:
    """A file of tokens of llm.c."""
    magic, version = (20240520, 1) if dtype == 'uint16' else (20240801, 7)
    return struct.pack('<III', magic, version, len(tokens)).ljust(1024, b'\0') + np.array(tokens, dtype).tobytes()


def datatrove(name: str, documents: Sequence[Sequence[int]], dtype: str = 'uint16') -> dict[str, bytes]:
    """The three files of datatrove."""
    size = np.dtype(dtype).itemsize
    return {
        name: raw(list(chain.from_iterable(documents)), dtype),
        f'{name}.index': np.array([*accumulate(map(len, documents))], '<u8').tobytes(),
        f'{name}.metadata': f'gpt2|{size}\n{sum(map(len, documents))}\n1'.encode(),
    }


def raw(tokens: Any, dtype: str = 'uint16') -> bytes:
    return np.array(tokens, dtype).tobytes()
