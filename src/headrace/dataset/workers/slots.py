"""Workers hand batches to the trainer in slots: regions of shared memory that are used again and again.

Each worker has a ring: a memfd with some slots, and a pipe through which free slots come back. The worker copies the
tensors of a batch into a free slot, and sends a message of some hundred bytes. The trainer maps the slots once. Its
tensors are views of the slot, which returns to the worker when the last of them is gone. So a batch costs no
descriptor, no connection and no fresh pages, as it does in PyTorch's way (`memfd`).

- A worker never waits for a slot. If the trainer keeps many batches, further ones come through memfds of their own.
- Slots are numbered for the life of a ring, over passes and resumes, so a number cannot mean two batches. New workers
  get new rings.
- Slots of a generation have one size. A larger batch begins a generation of larger ones, and the older slots are not
    used again.
- A forked child shares the slots of the batches that its parent holds. Such a slot is not used again before the child
  has ended. Python knows children of `multiprocessing`, and not those of a bare `os.fork`.
- No lock is in shared memory, so a killed process leaves nothing behind. A slot's content counts only once its message
  has been read from a pipe.
- `posix_fallocate` gives memory to a slot before it is mapped. A machine without memory so gives an error and no bus
  error, and the batch takes the other way.
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
from collections.abc import Callable
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.reading.batch_memory import batch_memory
from headrace.dataset.workers.memfd import dense_bytes, is_dense, is_gapless
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


class _OtherTensorError(Exception):
    """A tensor that slots do not hold."""


_NUMPY: Final = {
    torch.from_numpy(np.zeros(0, dtype)).dtype: np.dtype(dtype)
    for dtype in ('?', 'u1', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8', 'c8', 'c16')
}


class Packer(pickle.Pickler):
    """Pickles a value without the bytes of its tensors and arrays, which `fill` copies.

    `memory`: where the value is going to be. Its first `used` bytes may be of such arrays already, which stay there.
    """

    def __init__(self, memory: Bytes | None = None, used: int = 0) -> None:
        self.out = io.BytesIO()
        super().__init__(self.out, pickle.HIGHEST_PROTOCOL)
        self.size = used  # Bytes of all arrays, with gaps.
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


FREE: Final = struct.Struct('<BB')  # A free slot in the pipe: generation and slot.

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
        memory = self._maps.get(generation)
        if memory is None:
            memory = self._maps[generation] = mmap.mmap(self.memory, size, offset=offset)
        return memory

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
_REST: Final = 1 << 16  # bytes for the rest of a batch, beside an array that is made in its slot


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
    def __init__(self, ring: Ring, token: int, worker: int, *, slots: int) -> None:
        self._ring, self._token, self._worker, self._most = ring, token, worker, slots
        self._generation = -1
        self._offset = self._size = 0  # of the generation, and of each slot
        self._slots: list[Bytes] = []
        self._backed: list[int] = []  # bytes of each slot that have memory
        self._free: list[int] = []
        self._held: int | None = None  # the slot of the next batch, if arrays have been made in it
        self._used = 0  # bytes of these arrays
        self.not_in_slots = 0  # Batches that had no slot, or that slots cannot hold.

    def send(self, read: Callable[[], Any]) -> _Message:
        """Read a batch, with its large arrays made in their slot, and `pack` it."""
        try:
            with batch_memory(self.array):
                value = read()
        except BaseException:
            self.drop()
            raise
        return self.pack(value)

    def array(self, size: int) -> Bytes | None:
        """Memory for `size` bytes of the next batch, in its slot; None if there is none.

        `pack` then copies these bytes nowhere. They are arbitrary, and belong to that batch only.
        """
        begin, end = self._used, self._used + size
        if self._held is None:
            self._held = self._take(end + _REST)
        elif not self._back(self._held, end + _REST):
            return None
        if self._held is None:
            return None
        self._used = aligned(end)
        return self._slots[self._held][begin:end]

    def drop(self) -> None:
        """Give the arrays of the next batch up: it could not be read."""
        if self._held is not None:
            self._free.append(self._held)
        self._held, self._used = None, 0

    def pack(self, value: Any) -> _Message:
        """A small message for the trainer, which is `value` when it is unpickled there."""
        held, generation = self._held, self._generation
        message = None if held is None else self._packed_there(held, value)
        self._held, self._used = None, 0
        if message is not None:
            return message
        try:
            return self._copied(value)  # which may read from the slot that was held
        finally:
            if held is not None and generation == self._generation:
                self._free.append(held)

    def _packed_there(self, slot: int, value: Any) -> _Slot | None:
        """The message of a value with arrays that are in a slot already; None if the rest does not fit."""
        packer = Packer(self._slots[slot], self._used)
        if not packer.takes(value) or not self._back(slot, packer.size + packer.out.tell()):
            return None
        return self._filled(slot, packer)

    def _copied(self, value: Any) -> _Message:
        packer = Packer()
        if not packer.takes(value):
            return self._pickled(value)
        pickled = packer.out.getbuffer()
        begin = packer.size
        end = begin + len(pickled)
        if end <= _INLINE:
            memory = bytearray(end)
            packer.fill(np.frombuffer(memory, np.uint8))
            memory[begin:] = pickled
            return _Inline(bytes(memory), begin)
        slot = self._take(end)
        return self._pickled(value) if slot is None else self._filled(slot, packer)

    def _filled(self, slot: int, packer: Packer) -> _Slot:
        """Copy a value into a slot that has room for it."""
        pickled, memory = packer.out.getbuffer(), self._slots[slot]
        begin, end = packer.size, packer.size + len(pickled)
        packer.fill(memory)
        memory[begin:end] = pickled
        return _Slot(
            self._token, self._worker, self._generation, self._offset, len(self._slots), self._size, slot, begin, end
        )

    def _pickled(self, value: Any) -> _Pickled:
        self.not_in_slots += 1
        try:
            return _Pickled(bytes(ForkingPickler.dumps(value)))
        except Exception as error:
            raise CollateError(
                f'A worker sends its batches by pickle, and this batch cannot be pickled: {error}. Return tensors, '
                f'numbers, texts and collections of them from `collate_fn`, or set num_workers=0.'
            ) from error

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
        """Give memory to the first bytes of a slot; False if it has no room for them, or the machine has none."""
        if size > self._backed[slot]:
            if size > self._size:
                return False
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


class _Pickled(NamedTuple):
    data: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.data,)


class _Inline(NamedTuple):
    """A small value: the bytes of its arrays, and its pickle from `begin` on."""

    data: bytes
    begin: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, tuple(self)


class _Slot(NamedTuple):
    """A value in a slot: the bytes of its arrays, and its pickle from `begin` to `end`."""

    token: int
    worker: int
    generation: int
    offset: int  # Of the generation in the memory.
    slots: int  # Of the generation.
    size: int  # Of each slot.
    slot: int
    begin: int
    end: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_slot, tuple(self)


_Message = _Pickled | _Inline | _Slot


def _from_bytes(data: bytes, begin: int) -> Any:
    return unpacked(bytearray(data), 0, begin, len(data))[0]  # tensors are writable


def _from_slot(*fields: int) -> Any:
    message = _Slot(*fields)
    rings = _known.get((os.getpid(), message.token))
    # Nobody waits for a batch of workers that are gone, but a thread of PyTorch's may still read it.
    return None if rings is None else rings.receive(message)
