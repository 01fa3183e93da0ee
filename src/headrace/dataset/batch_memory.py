"""Batches go from workers to the trainer in memory that has no name.

PyTorch gives each tensor that a worker hands on a file in /dev/shm, and removes its name once it is mapped. A worker
that is killed in between leaves the file there until the machine restarts; and containers often have 64 MB of
/dev/shm, beyond which a worker ends with a bus error. A memfd (memfd_create(2)) is shared memory that goes with its
last user, and that no mount bounds. It is written to and not mapped, so that the worker has no page faults: the copy
takes half the time.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Final

import torch
import torch.multiprocessing
from torch.multiprocessing.reductions import reduce_tensor

__all__ = ['hand_on_without_names']

_NAME: Final = 'headrace'  # in /proc/<pid>/maps: /memfd:headrace


def hand_on_without_names() -> None:
    """Have this process, a worker, hand on its tensors so. May be called again.

    Tensors arrive as they were, but for two things: those that share memory arrive each with its own, and the strides
    of what is a part of other memory are those of a copy. What is not plain memory of the processor (sparse, on a
    device, expanded, with a gradient) or is shared already goes on as PyTorch does it, as all does with the sharing
    strategy `file_system`.
    """
    if hasattr(os, 'memfd_create'):
        ForkingPickler.register(torch.Tensor, _reduce)


def _reduce(tensor: torch.Tensor) -> tuple[Any, ...]:
    if not _is_plain(tensor):
        return reduce_tensor(tensor)
    dense = tensor if tensor.is_contiguous() else tensor.clone()  # channels last stay last
    try:
        descriptor = _written(dense.as_strided((dense.numel(),), (1,)).view(torch.uint8))
    except OSError:  # not here; what PyTorch does may be possible still
        return reduce_tensor(tensor)
    try:
        return _rebuild, (DupFd(descriptor), tensor.dtype, tuple(dense.shape), dense.stride())
    finally:
        os.close(descriptor)


def _is_plain(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type != 'cpu' or tensor.is_quantized:
        return False
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        return False
    if torch.multiprocessing.get_sharing_strategy() != 'file_descriptor':
        return False
    storage = tensor.untyped_storage()
    return not storage.is_shared() and tensor.numel() * tensor.element_size() <= storage.nbytes()


def _written(flat: torch.Tensor) -> int:
    """A descriptor of new memory that holds those bytes."""
    descriptor = os.memfd_create(_NAME)
    try:
        left = flat.numpy().data
        while left:
            left = left[os.write(descriptor, left) :]  # 2 GB at most in one call
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _rebuild(duplicate: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    descriptor = duplicate.detach()
    try:
        memory = mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride)
