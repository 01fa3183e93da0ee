"""Batches on a GPU before the step asks for them: the next one is copied while the step computes."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from headrace.dataset.progress import ending_here
from headrace.dataset.statistics import WorkerBatch
from headrace.dataset.workers.memfd import is_dense
from headrace.errors import ConfigError

Device = str | int | torch.device


def gpu_of(device: Device | None) -> torch.device | None:
    """The GPU that `device` names, without an index for that of the process; None if batches stay in memory."""
    if device is None:
        return None
    try:
        gpu = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"`device` must be a device of PyTorch, such as 'cuda', but is {device!r}: {error}") from None
    if gpu.type not in ('cuda', 'cpu'):
        raise ConfigError(
            f"`device` copies batches to 'cuda', but is {device!r}. Leave it out: the trainer, or `.to`, copies there."
        )
    return gpu if gpu.type == 'cuda' else None


def check_trainers_device(device: Device | None, trainers: torch.device) -> None:
    """Check that the trainer would not copy batches once more, to a device of its own."""
    gpu = gpu_of(device)
    if gpu is None:
        return
    # PyTorch's stub says int, but a device without an index has None: that of the process, as Accelerate's.
    indices: set[int | None] = {gpu.index, trainers.index}
    if gpu.type != trainers.type or len(indices - {None}) > 1:
        raise ConfigError(
            f'`device` is {device!r}, but the trainer puts batches on {str(trainers)!r}. Leave `device` out, or set it '
            f'to {trainers.type!r}, the device of each process.'
        )


def _mapped(part: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A batch with its tensors changed. Objects of other types than dicts, lists and tuples stay as they are."""
    if isinstance(part, torch.Tensor):
        return change(part)
    if isinstance(part, dict):
        made = copy.copy(cast('dict[Any, Any]', part))
        made.update({key: _mapped(value, change) for key, value in made.items()})
        return made
    if isinstance(part, tuple) and hasattr(part, '_fields'):
        return cast('Any', type(part))(*(_mapped(value, change) for value in part))
    if type(part) in (list, tuple):
        return type(part)(_mapped(value, change) for value in part)
    return part


class GpuCopies:
    """Copies batches to a GPU on a stream of their own, and keeps each source until its copy has ended."""

    def __init__(self, gpu: torch.device) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(
                f"`device` is '{gpu}', but PyTorch finds no GPU here. Leave `device` out, or set it to 'cpu'."
            )
        self._gpu = gpu
        self._stream: Any = None  # made in the first copy: workers are forked before
        self._sources: deque[tuple[Any, Any]] = deque()

    def copy(self, batch: Any) -> tuple[Any, Any]:
        """Begin to copy the tensors of a batch; returns it on the GPU, and the event after which its values are there.

        Tensors in objects of other types than dicts, lists and tuples stay in memory, for the trainer to copy.
        """
        if self._stream is None:
            if self._gpu == torch.device('cuda'):
                self._gpu = torch.device('cuda', torch.cuda.current_device())
            self._stream = torch.cuda.Stream(self._gpu)
        while self._sources and self._sources[0][0].query():
            self._sources.popleft()
        with torch.cuda.stream(self._stream):
            copied = _mapped(batch, self._to_gpu)
            event = self._stream.record_event()
        self._sources.append((event, batch))
        return copied, event

    def _to_gpu(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._gpu, non_blocking=True) if is_dense(tensor) else tensor

    def receive(self, batch: Any, event: Any) -> None:
        """Have this thread's later work on the GPU wait for a copy, and the copy's memory for that work.

        The memory belongs to the stream of copies, which would use it again while the step still reads it.
        """
        stream = torch.cuda.current_stream(self._gpu)
        stream.wait_event(event)
        _mapped(batch, lambda tensor: tensor.record_stream(stream) if tensor.is_cuda else None)

    def end(self) -> None:
        """Wait for the copies that are under way: workers may use the memory of their sources again."""
        while self._sources:
            self._sources.popleft()[0].synchronize()


def copies_to(device: Device | None) -> GpuCopies | None:
    gpu = gpu_of(device)
    return None if gpu is None else GpuCopies(gpu)


def pinned(batches: Iterator[WorkerBatch]) -> Iterator[WorkerBatch]:
    if not torch.cuda.is_available():
        return batches
    return map(torch.utils.data._utils.pin_memory.pin_memory, batches)  # pyright: ignore[reportAttributeAccessIssue]


def copied_ahead(batches: Iterator[WorkerBatch], copies: GpuCopies) -> Iterator[WorkerBatch]:
    """Batches on a GPU. The copy of each begins before the batch ahead of it is given.

    An error of reading one comes after the batches ahead of it, as it does without copies.
    """
    ends_here = ending_here()
    ahead: tuple[WorkerBatch, Any] | None = None
    failed: Exception | None = None
    try:
        while True:
            try:
                received = next(batches, None)
            except Exception as error:  # of any class: of a user's code
                failed, received = error, None
            following = None
            if received is not None:
                batch, event = copies.copy(received.batch)
                following = received._replace(batch=batch), event
            if ahead is not None:
                copies.receive(ahead[0].batch, ahead[1])
                yield ahead[0]
            if following is None:
                break
            ahead = following
        if failed is not None:
            raise failed
    finally:
        failed = None  # its traceback holds this frame
        if ends_here():
            copies.end()
