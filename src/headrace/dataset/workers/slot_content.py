"""The content of a slot: the bytes of tensors and arrays side by side, then a pickle that places them."""

from __future__ import annotations

import io
import pickle
import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.workers.memfd import dense_bytes, is_dense, is_gapless

__all__ = ['Bytes', 'Packer', 'aligned', 'unpacked']

_ALIGNMENT: Final = 64  # bytes: a cache line
_LEAST_ARRAY: Final = 1024  # bytes; smaller numpy arrays are pickled

Bytes = npt.NDArray[np.uint8]


def aligned(size: int) -> int:
    """The next offset at which an array may begin."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class _Arriving(threading.local):
    """The state of the functions below, which pickle calls."""

    memory: Any = None
    first = 0
    arrays: list[npt.NDArray[Any]]


_arriving: Final = _Arriving()


def unpacked(memory: Any, first: int, begin: int, end: int) -> tuple[Any, list[npt.NDArray[Any]]]:
    """A value whose pickle is at [begin, end) of memory, and its arrays, which view the memory from `first` on."""
    _arriving.memory, _arriving.first, _arriving.arrays = memory, first, []
    try:
        return pickle.loads(memoryview(memory)[begin:end]), _arriving.arrays  # noqa: S301 - from this process' worker
    finally:
        _arriving.memory, _arriving.arrays = None, []


def _array(at: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...] | None) -> npt.NDArray[Any]:
    array = np.ndarray(shape, dtype, _arriving.memory, _arriving.first + at, strides)
    _arriving.arrays.append(array)
    return array


def _tensor(at: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...] | None) -> torch.Tensor:
    return torch.from_numpy(_array(at, dtype, shape, strides))


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device='cpu')  # the default device may be another one


def _other_tensor(at: int, size: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    """A tensor of a type that numpy lacks, or of another layout."""
    flat = torch.from_numpy(_array(at, np.dtype(np.uint8), (size,), None))
    return flat.view(dtype).as_strided(shape, stride)


class _OtherTensorError(Exception):
    """A tensor that slots do not hold."""


_NUMPY: Final = {
    torch.from_numpy(np.zeros(0, dtype)).dtype: np.dtype(dtype)
    for dtype in ('?', 'u1', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8', 'c8', 'c16')
}


class Packer(pickle.Pickler):
    """Pickles a value without the bytes of its tensors and arrays, which `fill` copies.

    Args:
        memory: where the value is going to be. Arrays that are there already are not copied.
        used: bytes of it, from the first on, that such arrays may have.
    """

    def __init__(self, memory: Bytes | None = None, used: int = 0) -> None:
        self.out = io.BytesIO()
        super().__init__(self.out, pickle.HIGHEST_PROTOCOL)
        self.size = used
        """Bytes of all arrays, with gaps."""
        self._first = 0 if memory is None else memory.ctypes.data
        self._end = self._first + used
        self._arrays: list[tuple[int, Bytes]] = []

    def takes(self, value: Any) -> bool:
        """Pickle a value, unless slots cannot hold it."""
        try:
            self.dump(value)
        except Exception:  # tensors of other kinds, and objects that only multiprocessing's pickler knows
            return False
        return True

    def fill(self, memory: Bytes) -> None:
        """Copy the bytes into memory of `size` bytes or more."""
        for at, array in self._arrays:
            memory[at : at + len(array)] = array

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle an object; called for all but Python's own simple types."""
        kind = type(obj)
        if kind is torch.Tensor:
            return self._reduce_tensor(obj)
        if kind is np.ndarray and obj.nbytes >= _LEAST_ARRAY and obj.flags.c_contiguous and obj.dtype.kind in 'biufc':
            return _array, (self._place(obj.reshape(-1).view(np.uint8)), obj.dtype, obj.shape, None)
        if issubclass(kind, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            raise _OtherTensorError
        return NotImplemented

    def _reduce_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        if not is_dense(tensor) or tensor.is_conj() or tensor.is_neg() or tensor.untyped_storage().is_shared():
            raise _OtherTensorError
        if not tensor.numel():
            return _empty, (tuple(tensor.shape), tensor.dtype)
        dtype = _NUMPY.get(tensor.dtype)
        if dtype is not None and is_gapless(tensor):
            array, flat = tensor.numpy(), tensor.as_strided((tensor.numel(),), (1,)).numpy()
            strides = None if tensor.is_contiguous() else array.strides
            return _tensor, (self._place(flat.view(np.uint8)), dtype, array.shape, strides)
        dense, content = dense_bytes(tensor)
        array = np.frombuffer(content, np.uint8)
        return _other_tensor, (self._place(array), len(array), tensor.dtype, tuple(dense.shape), dense.stride())

    def _place(self, array: Bytes) -> int:
        if self._first and self._first <= (address := array.ctypes.data) <= self._end - len(array):
            return address - self._first
        at = self.size
        self._arrays.append((at, array))
        self.size = aligned(at + len(array))
        return at
