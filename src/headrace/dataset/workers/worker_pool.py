"""Batches of worker processes in the order of their keys; PyTorch's loader runs the processes.

Workers get keys, so any worker can read any batch. Prefetched batches that were never used are not part of a position.
"""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

import torch
from torch.autograd import profiler
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from headrace.dataset.progress import Progress, ending_here
from headrace.dataset.reading.batch_reader import Reader
from headrace.dataset.statistics import WorkerBatch, WorkerReads
from headrace.dataset.workers.memfd import use_memfd_for_tensors
from headrace.dataset.workers.shutdown import end_at_once, end_with_rank, signals_held
from headrace.dataset.workers.slots import SlotRings, SlotWriter, can_use_slots
from headrace.dataset.workers.worker_context import PipeQueue, worker_context
from headrace.errors import ConfigError
from headrace.order import BatchSpec, Decision


class WorkerPool:
    """The workers of one reader; they live on from pass to pass with `persistent_workers`."""

    def __init__(self, reader: Reader[Any], like: DataLoader[Any], progress: Progress, changed: ReadFor) -> None:
        import_module('numpy.random')  # PyTorch seeds it in each worker: imported once, before they are forked

        self._keys = _Keys()
        self._context = worker_context(like.multiprocessing_context)
        self._passes = 0
        self._sent = {**reader.sent_to_workers, 'worker_init_fn': like.worker_init_fn}
        # A copy has no plan of a pass, which could hold a permutation as long as the workers live.
        self._reader = _WorkerReader(copy.copy(reader), changed, prefetch_factor=like.prefetch_factor or 2)
        self._first = changed
        self._workers = like.num_workers
        self._loader = _Loader(
            self._reader,
            batch_size=None,
            sampler=self._keys,
            num_workers=like.num_workers,
            collate_fn=_as_it_is,
            pin_memory=like.pin_memory,
            timeout=like.timeout,
            worker_init_fn=_Start(like.worker_init_fn, progress),
            multiprocessing_context=self._context,
            generator=like.generator,
            prefetch_factor=like.prefetch_factor,
            persistent_workers=like.persistent_workers,
            pin_memory_device=like.pin_memory_device,
        )

    def batches(
        self, keys: Iterator[Any], read_for: ReadFor, running: Iterator[WorkerBatch] | None = None
    ) -> Iterator[WorkerBatch]:
        """Begin a pass. A rescale ended the pass `running`: its processes go on, and what they have read is dropped."""
        self._passes += 1
        # The workers have keys in turns, so that each that reads for the pass has one of the first.
        changed = itertools.repeat(None if read_for == self._first else read_for, self._workers)
        changed = itertools.chain(changed, itertools.repeat(None))
        self._keys.keys = map(_PassKey, itertools.repeat(self._passes), keys, changed)
        if isinstance(running, _Batches) and running.runs:
            running.current.value = self._passes
            running._reset(self._loader)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
            return running
        if self._passes == 1 or not self._loader.persistent_workers:  # new workers know of no slots in use
            self._reader.rings = SlotRings(self._workers) if can_use_slots() else None
            self._reader.current = self._context.RawValue('q', 0)
        self._reader.current.value = self._passes
        batches: _Batches | None = None
        try:
            with signals_held(self._context.get_start_method()):
                batches = iter(self._loader)  # pyright: ignore[reportAssignmentType]
            assert batches is not None
        except BaseException as error:
            if batches is not None:  # a signal that was held back
                batches._shutdown_workers()
                raise
            refused = self._refusal_of_copies()
            if refused is None:
                raise
            raise refused from error
        batches.rings, batches.current = self._reader.rings, self._reader.current  # they live as long
        return batches

    def _refusal_of_copies(self) -> ConfigError | None:
        method = self._context.get_start_method()
        return None if method == 'fork' else refusal(method, self._sent)


_queues: Final[dict[int, Any]] = {}
"""The queues of running workers, by the id of their iterator. It ends the workers through them.

A traceback often makes a cycle of a pass that an error ended. A garbage collection would close the queues of such a
cycle before it ends the iterator.
"""


class _Batches(_MultiProcessingDataLoaderIter):
    """PyTorch's iterator, but its end waits for no worker that sends a large batch, which nobody is going to read."""

    rings: SlotRings | None
    current: Any  # The number of the pass that the workers read for, which they see.
    runs = True  # Whether the workers wait for keys.

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._ends_here = ending_here()
        super().__init__(loader)
        _queues[id(self)] = getattr(self, '_worker_result_queue', None), getattr(self, '_index_queues', None)

    def _shutdown_workers(self) -> None:
        if not self._ends_here():  # PyTorch's would end the workers of the parent
            return
        self.runs = False
        results = getattr(self, '_worker_result_queue', None)  # a constructor may have failed
        if isinstance(results, PipeQueue):
            pinning = getattr(self, '_pin_memory_thread_done_event', None)
            if pinning is not None:
                pinning.set()  # else the thread would ask an ended queue again and again
            results.end()
        try:
            super()._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
        finally:
            _queues.pop(id(self), None)
            for worker in getattr(self, '_workers', ()):
                worker.kill()  # one that has not ended in time: it leaves SIGTERM to this rank


class _Loader(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        self.check_worker_number_rationality()
        return _Batches(self)


def each(batches: Iterator[WorkerBatch]) -> Iterator[WorkerBatch]:
    """The batches of `WorkerPool.batches`, without PyTorch's mark for a profiler unless one runs.

    The mark takes a third of the processor time that a batch costs the trainer.
    """
    following = getattr(batches, '_next_data', batches.__next__)
    try:
        yield next(batches)  # begins the pass
        while True:
            yield next(batches) if profiler._is_profiler_enabled else following()
    except StopIteration:
        return


class _Start:
    """A `worker_init_fn` that sets up memfds and the worker's end, and calls the user's."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None, progress: Progress) -> None:
        self._worker_init_fn, self._progress = worker_init_fn, progress

    def __call__(self, worker: int) -> None:
        end_with_rank(self._progress)
        end_at_once()
        use_memfd_for_tensors()
        if self._worker_init_fn is not None:
            try:
                self._worker_init_fn(worker)
            except StopIteration as error:
                # PyTorch raises it again in the trainer's process, where the pass would end without a batch.
                raise RuntimeError(
                    'A `worker_init_fn` raised StopIteration. Give `next` a default, or catch it.'
                ) from error


def _as_it_is(received: Any) -> Any:
    return received


class _Keys:
    keys: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.keys


class ReadFor(NamedTuple):
    batches: BatchSpec  # The rank, and its batches.
    decisions: tuple[Decision, ...]
    nodes: Any = None  # `Peers.nodes`; None if nodes do not share their caches.


class _PassKey(NamedTuple):
    pass_number: int  # Counted from 1.
    key: Any
    read_for: ReadFor | None  # Of a worker's first key in a pass; None for that of the first pass.


class _WorkerReader(Dataset[Any]):
    """The reader in a worker. Each batch takes the counters of reads along that have changed since the last one."""

    def __init__(self, reader: Reader[Any], read_for: ReadFor, *, prefetch_factor: int) -> None:
        self._reader, self._first, self._read_for = reader, read_for, read_for
        self._prefetch_factor = prefetch_factor
        self._pass_number = 1
        self.rings: SlotRings | None = None  # Memory for the batches of the workers that start next.
        self.current: Any = None  # The number of the pass that these workers read for; of evaluation, several may run.
        self._writer: SlotWriter | None = None
        self._reads: WorkerReads | None = None

    def __getitem__(self, request: _PassKey) -> Any:
        if request.pass_number < self.current.value:
            return None  # nobody gets it
        if request.pass_number != self._pass_number:
            self._pass_number, read_for = request.pass_number, request.read_for or self._first
            if read_for != self._read_for:
                self._read_for = read_for
                self._reader.change(read_for.batches, read_for.decisions)
                if self._reader.peers is not None:
                    self._reader.peers.know(*read_for.nodes)
        worker = torch.utils.data.get_worker_info()
        if self.rings is None or worker is None:
            return self._read(request)
        if self._writer is None:
            self._writer = self.rings.writer(worker.id, prefetched=self._prefetch_factor)
        return self._writer.send(partial(self._read, request))

    def _read(self, request: _PassKey) -> WorkerBatch:
        if self._reads is None:
            # A garbage collection writes to every object that it visits, and so copies the memory that a fork shares
            # with its parent. The parent's objects outlive the worker, so it need not visit them.
            gc.freeze()
            self._reads = WorkerReads(self._reader.counters)
        received = self._reader[request.key]
        changed = self._reads.changed(request.pass_number)
        return received if changed is None else received._replace(read=changed)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_writer': None, '_reads': None}


_DEPTH = 4


def refusal(method: str, sent: Mapping[str, Any]) -> ConfigError | None:
    """The error for the objects that cannot be pickled, by the names that users know; None if all can."""
    paths = [path for name, value in sent.items() for path in _culprits(name, value, _DEPTH)]
    if not paths:
        return None
    return ConfigError(
        f"Workers that are started by '{method}' get copies by pickle, and {'; '.join(paths[:4])} cannot be pickled. "
        f"Define functions and classes at the top level of a module. Or set multiprocessing_context='fork', or "
        f'num_workers=0.'
    )


def _culprits(path: str, value: Any, depth: int) -> Iterator[str]:
    """The innermost attributes that cannot be pickled, as their path and their beginning."""
    if _can_be_pickled(value):
        return
    inside: list[str] = []
    if depth:
        for name, part in _parts(value):
            inside += _culprits(f'{path}{name}', part, depth - 1)
    yield from inside or [f'{path} ({value!r:.120})']


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f'[{key!r:.40}]', part) for key, part in cast('Mapping[Any, Any]', value).items()]
    if isinstance(value, (list, tuple)):
        return [(f'[{number}]', part) for number, part in enumerate(cast('list[Any]', value))]
    if callable(getattr(value, '__getstate__', None)) and hasattr(value, '__dict__'):
        state = value.__getstate__()  # Python 3.10 has it only where a class defines it
    else:
        state = getattr(value, '__dict__', {})
    if is_dataclass(value) and not (state and isinstance(state, dict)):  # with slots
        state = {field.name: getattr(value, field.name) for field in fields(value)}
    return [(f'.{name}', part) for name, part in state.items()] if isinstance(state, dict) else []


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # of any class that a `__reduce__` raises
        return False
    return True
