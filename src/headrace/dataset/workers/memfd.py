"""Workers send batches to the trainer through memfds: shared memory without a name.

PyTorch sends each tensor through a file in /dev/shm, and removes its name once it is mapped. A worker killed in between
leaves the file there until the machine restarts. Containers often have 64 MB of /dev/shm; beyond that a worker ends
with a bus error. A memfd (memfd_create(2)) ends with its last user, and no mount bounds it. The worker writes to it
without mapping it, so it has no page faults, and the copy takes half the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Final, cast

import torch
import torch.multiprocessing
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

_NAME: Final = 'headrace'  # in /proc/<pid>/maps: /memfd:headrace
_OPEN_FILES: Final = '/proc/self/fd/'


def use_memfd_for_tensors() -> None:
    """Send this worker's tensors through memfds. May be called again.

    Tensors arrive as with PyTorch, except that two views of one storage arrive as separate tensors. PyTorch sends all
    others: sparse, nested, shared, with a gradient, on a device, and views of a part of their storage. It sends all
    tensors under the sharing strategy `file_system`. `default_collate` no longer stacks into PyTorch's shared memory.
    A user's own replacement of either stays.
    """
    if hasattr(os, 'memfd_create'):
        _replace(torch.Tensor, reduce_tensor, _reduce)
        if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
            default_collate_fn_map[torch.Tensor] = _stack


def _replace(kind: type, theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Have this process send objects of a kind by `ours` instead of `theirs`."""
    if ForkingPickler._extra_reducers.get(kind) is theirs:  # pyright: ignore[reportAttributeAccessIssue] - no stub
        ForkingPickler.register(kind, ours)


def _stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """As `default_collate`, but without shared memory: a worker's would stack into it at once."""
    if _is_shared_by_name() or not all(is_dense(tensor) for tensor in batch):
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(list(batch))


def _reduce(tensor: torch.Tensor) -> tuple[Any, ...]:
    # A worker's thread does this: if it fails, the trainer waits for the batch for ever.
    try:
        return _reduce_plain(tensor) if _is_plain(tensor) else reduce_tensor(tensor)
    except (OSError, RuntimeError):  # PyTorch's way may work still
        return reduce_tensor(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    if not is_dense(tensor) or tensor.is_conj() or tensor.is_neg():
        return False
    if _is_shared_by_name() or get_spawning_popen() is not None:
        return False
    storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
    return not storage.is_shared() and 0 < size == storage.nbytes()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor consists only of values in the memory of this process."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.device.type != 'cpu':
        return False
    return not (tensor.is_nested or tensor.is_quantized or tensor.requires_grad)


def is_gapless(tensor: torch.Tensor) -> bool:
    """Whether the values fill a range of memory, in any order of the dimensions."""
    if tensor.is_contiguous():
        return True
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def _is_shared_by_name() -> bool:
    return torch.multiprocessing.get_sharing_strategy() != 'file_descriptor'


def dense_bytes(tensor: torch.Tensor) -> tuple[torch.Tensor, memoryview]:
    """The tensor, or a copy without gaps, and its bytes."""
    dense = tensor if is_gapless(tensor) else tensor.clone()
    return dense, dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().data


def _reduce_plain(tensor: torch.Tensor) -> tuple[Any, ...]:
    dense, content = dense_bytes(tensor)
    return _rebuild, (_written(content), len(content), tensor.dtype, tuple(dense.shape), dense.stride())


def _rebuild(
    duplicate: Any, size: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    empty = torch.empty(0, dtype=dtype, device='cpu')  # the default device may be another one
    return empty.set_(_mapped(duplicate, size), 0, shape, stride)  # pyright: ignore[reportArgumentType]


def _written(content: memoryview) -> Any:
    """A memfd of these bytes, for another process."""
    descriptor = os.memfd_create(_NAME)
    try:
        while content:
            content = content[os.write(descriptor, content) :]  # 2 GB at most in one call
        return DupFd(descriptor)
    finally:
        os.close(descriptor)


def _mapped(duplicate: Any, size: int) -> torch.UntypedStorage:
    """The storage over the memfd that `_written` sent."""
    descriptor = duplicate.detach()
    try:
        # Nothing stays open: batches of many tensors may be kept.
        storage = torch.UntypedStorage.from_file(f'{_OPEN_FILES}{descriptor}', shared=True, nbytes=size)
    finally:
        os.close(descriptor)
    _replace(torch.UntypedStorage, reduce_storage, _reduce_storage)
    return cast('torch.UntypedStorage', storage)


def _reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """A storage of `_mapped` has no descriptor left to send, so another process gets a copy."""
    if storage.device.type != 'cpu' or not (storage.filename or '').startswith(_OPEN_FILES):
        return reduce_storage(storage)
    content = torch.empty(0, dtype=torch.uint8, device='cpu').set_(storage).numpy().data
    if get_spawning_popen() is not None:  # it needs descriptors that stay open until it begins
        return _unpacked, (bytearray(content),)
    return _mapped, (_written(content), len(content))


def _unpacked(content: bytearray) -> torch.UntypedStorage:
    return torch.frombuffer(content, dtype=torch.uint8).untyped_storage()
