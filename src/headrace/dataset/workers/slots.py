"""Workers hand batches to the trainer in slots: regions of shared memory that are used again and again.

Each worker has a ring: a memfd with some slots, and a pipe through which free slots come back. The worker copies the
tensors of a batch into a free slot, and sends a message of some hundred bytes. The trainer maps the slots once. Its
tensors are views of the slot, which returns to the worker when the last of them is gone. So a batch costs no
descriptor, no connection and no fresh pages. PyTorch sends each tensor through a file in /dev/shm. A worker that is
killed leaves the file there, and a container often has 64 MB of /dev/shm.

- A worker never waits for a slot. If the trainer keeps many batches, further ones come through the pipe of messages.
- PyTorch sends the tensors that are more than values in memory: sparse, nested, shared, with a gradient, on a device.
- Slots are numbered for the life of a ring, over passes and resumes, so a number cannot mean two batches. New workers
  get new rings.
- Slots of a generation have one size. A larger batch begins a generation of larger ones, and the older slots are used
  no more.
- A forked child shares the slots of the batches that its parent holds. Such a slot is not used again before the child
  has ended. Python knows children of `multiprocessing`, and not those of a bare `os.fork`.
- No lock is in shared memory, so a killed process leaves nothing behind. A slot's content counts only once its message
  has been read from a pipe.
- `posix_fallocate` gives memory to a slot before it is mapped. A machine without memory so gives an error and no bus
  error, and the batch comes through the pipe.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import multiprocessing
import os
import pickle
import struct
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from headrace.errors import CollateError

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


def stack_without_sharing() -> None:
    """Have `default_collate` stack tensors in this worker's memory, not in /dev/shm. A user's replacement stays."""
    if can_use_slots() and default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = _stack


def _stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    if all(map(_is_dense, batch)):
        return torch.stack(list(batch))
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is no more than values in the memory of this process."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.device.type != 'cpu':
        return False
    return not (tensor.is_nested or tensor.is_quantized or tensor.requires_grad)


def _is_gapless(tensor: torch.Tensor) -> bool:
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


_NUMPY: Final = {
    torch.from_numpy(np.zeros(0, dtype)).dtype: np.dtype(dtype)
    for dtype in ('?', 'u1', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8', 'c8', 'c16')
}


class Packer(ForkingPickler):
    """Pickles a value without the bytes of its tensors and arrays, which `fill` copies."""

    def __init__(self) -> None:
        self.out = io.BytesIO()
        super().__init__(self.out, pickle.HIGHEST_PROTOCOL)
        self.size = 0
        """Bytes of all arrays, with gaps."""
        self._arrays: list[tuple[int, Bytes]] = []

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
        return NotImplemented

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if not _is_dense(tensor) or tensor.is_conj() or tensor.is_neg() or tensor.untyped_storage().is_shared():
            return NotImplemented
        if not tensor.numel():
            return _empty, (tuple(tensor.shape), tensor.dtype)
        if not _is_gapless(tensor):
            tensor = tensor.clone()
        dtype, flat = _NUMPY.get(tensor.dtype), tensor.as_strided((tensor.numel(),), (1,))
        if dtype is not None:
            strides = None if tensor.is_contiguous() else tensor.numpy().strides
            return _tensor, (self._place(flat.numpy().view(np.uint8)), dtype, tuple(tensor.shape), strides)
        array = flat.view(torch.uint8).numpy()
        return _other_tensor, (self._place(array), len(array), tensor.dtype, tuple(tensor.shape), tensor.stride())

    def _place(self, array: Bytes) -> int:
        at = self.size
        self._arrays.append((at, array))
        self.size = aligned(at + len(array))
        return at


FREE: Final = struct.Struct('<BB')
"""A free slot in the pipe: generation and slot."""

Place = tuple[int, int]
"""A slot: its generation, and its number there."""


class Ring:
    """The memory of one worker, and the pipe of its free slots."""

    def __init__(self, memory: int, free_reader: int, free_writer: int) -> None:
        self.memory, self.free_reader, self.free_writer = memory, free_reader, free_writer
        # In the trainer:
        self.process = os.getpid()
        self._maps: dict[int, mmap.mmap] = {}  # by generation
        self._in_use: dict[Place, int] = {}  # tensors that view a slot
        self._shared: dict[Place, frozenset[int | None]] = {}  # slots in use at a fork: older children, which cannot
        self._waiting: list[Place] = []  # shared slots that are free here
        self._lock = threading.RLock()  # a garbage collection may free a slot anywhere
        self._close = weakref.finalize(self, _close_all, (memory, free_reader, free_writer))
        self._close.atexit = False

    @classmethod
    def make(cls) -> Ring:
        """A ring without slots."""
        memory = os.memfd_create('headrace')
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        return cls(memory, reader, writer)

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(DupFd(descriptor) for descriptor in (self.memory, self.free_reader, self.free_writer))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        Ring.__init__(self, *(duplicate.detach() for duplicate in state))

    # -- the trainer's side ----------------------------------------------------------------------------------------

    def map(self, generation: int, size: int, offset: int) -> mmap.mmap:
        """The memory of a generation of slots: its bytes, from an offset on."""
        found = self._maps.get(generation)
        if found is None:
            found = self._maps[generation] = mmap.mmap(self.memory, size, offset=offset)
        return found

    def hold(self, place: Place, count: int) -> None:
        """Note that `count` tensors view a slot."""
        with self._lock:
            self._in_use[place] = count
            if self._waiting:
                self._free_unshared()
        if not count:
            self.release(place)

    def release(self, place: Place) -> None:
        """Note that a tensor of a slot is gone; with the last one the slot is free. A forked child changes nothing."""
        if os.getpid() != self.process:
            return
        with self._lock:
            self._in_use[place] -= 1
            if self._in_use[place] > 0:
                return
            del self._in_use[place]
            if place in self._shared:
                self._waiting.append(place)
                self._free_unshared()
            else:
                self._free(place)

    def _free(self, place: Place) -> None:
        if self._close.alive:
            with contextlib.suppress(OSError):  # the worker is gone
                os.write(self.free_writer, FREE.pack(*place))

    def end(self) -> None:
        """Close all that tensors do not need, which may be kept for long: the worker is gone."""
        if os.getpid() == self.process:
            with self._lock:
                self._close()
                self._maps.clear()

    def before_fork(self, children: frozenset[int | None]) -> None:
        """Note that a child is going to share the slots that are in use."""
        if os.getpid() == self.process:
            with self._lock:  # a thread that pins batches may receive one
                for place in list(self._in_use):  # a garbage collection may free one
                    self._shared.setdefault(place, children)

    def _free_unshared(self) -> None:
        """Free the waiting slots whose sharers have ended."""
        running = children()
        # A garbage collection may come here again, so a place leaves the list before anything else happens.
        waiting, self._waiting = self._waiting, []
        while waiting:
            place = waiting.pop()
            if running <= self._shared[place]:
                del self._shared[place]
                self._free(place)
            else:
                self._waiting.append(place)


def children() -> frozenset[int | None]:
    """The ids of this process' children of `multiprocessing` that run."""
    return frozenset(child.pid for child in multiprocessing.active_children())


def _close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


_PAGE: Final = mmap.ALLOCATIONGRANULARITY
_INLINE: Final = 2048  # bytes; smaller batches travel in their message
_MOST_SLOTS: Final = 64
_MOST_GENERATIONS: Final = 256
_SPARE: Final = 4  # slots beyond those of prefetched batches: for the batches that a trainer holds


def can_use_slots() -> bool:
    return hasattr(os, 'memfd_create')


def _end_all(rings: list[Ring]) -> None:
    for ring in rings:
        ring.end()


_tokens: Final = itertools.count(1)
_known: Final[weakref.WeakValueDictionary[tuple[int, int], SlotRings]] = weakref.WeakValueDictionary()
"""The rings of this process' workers, by process and token."""


class SlotRings:
    """The rings of some workers that start together. The trainer makes it, and each worker has a copy."""

    def __init__(self, workers: int) -> None:
        self.token = next(_tokens)
        self._rings = [Ring.make() for _ in range(workers)]
        _known[os.getpid(), self.token] = self
        weakref.finalize(self, _end_all, self._rings).atexit = False

    def writer(self, worker: int, *, prefetched: int) -> SlotWriter:
        """The side of a worker, which sends at most `prefetched` batches ahead."""
        return SlotWriter(self._rings[worker], self.token, worker, slots=min(prefetched + _SPARE, _MOST_SLOTS))

    def receive(self, message: _Slot) -> Any:
        ring = self._rings[message.worker]
        place, first = (message.generation, message.slot), message.slot * message.size
        count = 0
        try:
            value, arrays = unpacked(
                ring.map(message.generation, message.slots * message.size, message.offset),
                first,
                first + message.begin,
                first + message.end,
            )
            for array in arrays:
                weakref.finalize(array, ring.release, place).atexit = False
            count = len(arrays)
        finally:
            ring.hold(place, count)
        return value

    def before_fork(self) -> None:
        """Keep the slots that a forked child is going to share."""
        running = children()
        for ring in self._rings:
            ring.before_fork(running)


def _before_fork() -> None:
    for (process, _), rings in list(_known.items()):
        if process == os.getpid():
            rings.before_fork()


os.register_at_fork(before=_before_fork)


class SlotWriter:
    """Puts the batches of a worker into slots."""

    def __init__(self, ring: Ring, token: int, worker: int, *, slots: int) -> None:
        self._ring, self._token, self._worker, self._most = ring, token, worker, slots
        self._generation = -1
        self._offset = self._size = 0  # of the generation, and of each slot
        self._slots: list[Bytes] = []
        self._backed: list[int] = []  # bytes of each slot that have memory
        self._free: list[int] = []

    def pack(self, value: Any) -> _Message:
        """A small message for the trainer, which is `value` when it is unpickled there; a large one without a slot.

        Raises:
            CollateError: the value cannot be pickled.
        """
        packer = Packer()
        try:
            packer.dump(value)
        except Exception as error:
            raise CollateError(
                f'A worker sends its batches by pickle, and this batch cannot be pickled: {error}. Return tensors, '
                f'numbers, texts and collections of them from `collate_fn`, or set num_workers=0.'
            ) from error
        pickled, begin = packer.out.getbuffer(), packer.size
        end = begin + len(pickled)
        slot = None if end <= _INLINE else self._take(end)
        memory = np.empty(end, np.uint8) if slot is None else self._slots[slot]
        packer.fill(memory)
        memory[begin:end] = pickled
        if slot is None:
            return _Inline(memory.tobytes(), begin)
        return _Slot(
            self._token, self._worker, self._generation, self._offset, len(self._slots), self._size, slot, begin, end
        )

    def _take(self, size: int) -> int | None:
        """A free slot of at least `size` bytes; None if there is none."""
        with contextlib.suppress(BlockingIOError):
            returned = FREE.iter_unpack(os.read(self._ring.free_reader, _MOST_SLOTS * FREE.size))
            self._free += [slot for generation, slot in returned if generation == self._generation]
        try:
            if size > self._size:
                self._begin_generation(size)
            if not self._free and len(self._backed) < len(self._slots):
                self._free.append(len(self._backed))
                self._backed.append(0)
            if not self._free:
                return None
        except (OSError, ValueError):  # no memory
            return None
        return self._free.pop() if self._back(self._free[-1], size) else None

    def _back(self, slot: int, size: int) -> bool:
        """Give memory to the first bytes of a slot; False if the machine has none."""
        if size > self._backed[slot]:
            try:
                os.posix_fallocate(self._ring.memory, self._offset + slot * self._size, size)
            except OSError:
                return False
            self._backed[slot] = size
        return True

    def _begin_generation(self, size: int) -> None:
        """Map slots of `size` bytes or some more; later batches are often a little larger."""
        if self._generation + 1 == _MOST_GENERATIONS:
            raise ValueError
        offset = self._offset + len(self._slots) * self._size
        size = -(-(size + size // 4) // _PAGE) * _PAGE
        os.ftruncate(self._ring.memory, offset + self._most * size)
        memory = np.frombuffer(mmap.mmap(self._ring.memory, self._most * size, offset=offset), np.uint8)
        self._slots = [memory[slot * size : (slot + 1) * size] for slot in range(self._most)]
        self._generation, self._offset, self._size = self._generation + 1, offset, size
        self._backed, self._free = [], []


class _Inline(NamedTuple):
    """A value in its message: the bytes of its arrays, and its pickle from `begin` on."""

    data: bytes
    begin: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, tuple(self)


class _Slot(NamedTuple):
    """A value in a slot: the bytes of its arrays, and its pickle from `begin` to `end`."""

    token: int
    worker: int
    generation: int
    offset: int
    """Of the generation in the memory."""
    slots: int
    """Of the generation."""
    size: int
    """Of each slot."""
    slot: int
    begin: int
    end: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_slot, tuple(self)


_Message = _Inline | _Slot


def _from_bytes(data: bytes, begin: int) -> Any:
    return unpacked(bytearray(data), 0, begin, len(data))[0]  # tensors are writable


def _from_slot(*fields: int) -> Any:
    message = _Slot(*fields)
    rings = _known.get((os.getpid(), message.token))
    # Nobody waits for a batch of workers that are gone, but a thread of PyTorch's may still read it.
    return None if rings is None else rings.receive(message)
