"""The loader: batches of a dataset on this rank, from a position that checkpoints keep."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, default_collate

from headrace.dataset.arguments import check_kind, takes_plain_numbers
from headrace.dataset.batch_keys import PADDING_KEY, STREAM_KEY
from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.device import Device, copied_ahead, copies_to, gpu_of, pinned
from headrace.dataset.facts import loader_facts
from headrace.dataset.progress import Cursor, EpochHint, Place, ending_here
from headrace.dataset.reading.batch_reader import AHEAD, Collate, PassRequest, Reader
from headrace.dataset.sequence import Continuation
from headrace.dataset.statistics import LoaderCounters, LoaderStats, MixtureCounts, StreamCount, WorkerBatch
from headrace.dataset.workers.worker_pool import ReadFor, WorkerPool, each
from headrace.errors import ConfigError
from headrace.errors.display import Facts, FactsRepr
from headrace.errors.exclusions import refuse_exclusions
from headrace.order import BatchPlan, BatchSpec, Decision, Remainder, ResumeState, Topology
from headrace.tensors.padding import Pad

_TRAINER_EPOCH = 'trainer_epoch'  # key of the epoch that a trainer has set on the sampler, in its own count


class StreamingDataLoader(DataLoader[Any], FactsRepr):
    """A `torch.utils.data.DataLoader` of a `StreamingDataset` that knows and restores its position.

    The position is the number of samples of the epoch's global sequence that all ranks together have got. It is the
    same on every rank. A state continues on any number of ranks, nodes and workers that divides the global batch.

    Without `collate_fn`, and unless the dataset's class overrides `get_item` or `__getitem__`, batches are read column
    by column and equal what `torch.utils.data.default_collate` gives.

    Args:
        dataset: the dataset. Loaders that share one also share its position, so they cannot read it in turns.
        batch_size: samples per device; by default the dataset's.
        num_workers, collate_fn, pin_memory, timeout, worker_init_fn, multiprocessing_context, generator,
            prefetch_factor, persistent_workers, pin_memory_device: as PyTorch's.
        drop_last: drop the samples after the last full global batch, as `remainder='drop'` does.
        sampler, batch_sampler, shuffle: must be None or False; the dataset's plan decides.
        topology: rank and world size, if the dataset neither has nor finds them.
        fixed_epoch: read this epoch in every pass, for evaluation; None: each pass reads the next epoch.
        remainder: handling of the samples after the last full global batch, instead of the dataset's.
        max_epochs: number of epochs to read, counted from epoch 0; None: unknown. It ends nothing. With it, the last
            batches of an epoch prefetch the first shards of the next one, which a cache with a limit needs. It needs
            `persistent_workers`, or no workers.
        mark_streams: put the number of each row's stream into every batch that is a dict, under `headrace.STREAM`,
            int64[rows].
        pad: columns of arrays of different lengths that become tensors, with the value that fills their rows up. A
            mapping of `value`, `length`, `mask`, `multiple_of`, `to` and `axis` says more. The lengths come beside
            them, such as `tokens_length`, int64[rows]. See "Rows of different lengths" in the documentation.
        device: 'cuda', to give batches that are on the process' GPU: each is copied from pinned memory while the step
            before it computes. A batch that is there but was not given does not count for the position. None: memory.

    Raises:
        ValueError: two different batch sizes, or none; a sampler or shuffle; `drop_last` and ``remainder='exact'``; a
            column with the name of a mark; streams of different columns, and neither `collate_fn` nor `get_item`; a
            column that cannot be padded.
        TypeError: `dataset` is not a StreamingDataset.
    """

    dataset: StreamingDataset  # pyright: ignore[reportIncompatibleVariableOverride] - narrower, and never replaced

    @takes_plain_numbers
    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = '',
        topology: Topology | None = None,
        fixed_epoch: int | None = None,
        max_epochs: int | None = None,
        remainder: Remainder | None = None,
        mark_streams: bool = False,
        pad: Mapping[str, Any] | Pad | None = None,
        device: Device | None = None,
    ) -> None:
        if not isinstance(dataset, StreamingDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'A StreamingDataLoader reads a StreamingDataset, but got a {type(dataset).__name__}.')
        if type(dataset).__iter__ is not StreamingDataset.__iter__:
            raise TypeError(
                f'{type(dataset).__name__} overrides `__iter__`, so the loader cannot know which samples it yields. '
                f'Override `get_item`, or pass `collate_fn`; or use a torch.utils.data.DataLoader.'
            )
        if shuffle or batch_sampler is not None or not (sampler is None or isinstance(sampler, EpochHint)):
            raise ConfigError(
                f'The dataset decides the order: pass `shuffle=True` and its options to StreamingDataset instead of '
                f'shuffle={shuffle!r}, sampler={sampler!r}, batch_sampler={batch_sampler!r} to the loader.'
            )
        if not isinstance(num_workers, bool):  # PyTorch counts with truth values here
            check_kind('num_workers', num_workers, int)
        topology = None if topology is None else dataset.replicated(topology)
        batch_size = dataset.batch_size_of_loader(batch_size, topology)
        # Trainers that copy a loader pass PyTorch's default in place of None.
        self._collate = None if collate_fn is default_collate else collate_fn
        settings = {'loader.drop_last': drop_last, 'loader.pad': pad, 'loader.collate_fn': self._collate}
        settings |= {'remainder': remainder or dataset.remainder, 'stream_unit': dataset.stream_unit}
        refuse_exclusions(settings)
        if remainder == 'exact':
            dataset.check_columns(PADDING_KEY)
        if mark_streams:
            dataset.check_columns(STREAM_KEY)
        super().__init__(
            dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory or gpu_of(device) is not None,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,  # pyright: ignore[reportArgumentType]
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        if self._collate is None and batch_size > 1:
            dataset.require_equal_columns()
        self.pad = Pad.of(pad)
        if self.pad is not None:
            dataset.check_pad(self.pad)
        self.device, self.fixed_epoch = device, fixed_epoch
        self._check_fixed_epoch()
        self.max_epochs, self.mark_streams = max_epochs, mark_streams
        self.counts_skipped = False
        """Whether `len` is `longest_epoch`, for a trainer that asks once and caps a number of batches by it."""
        self.told_length = 0  # the `len` that a trainer was told last, under `counts_skipped`
        self.trainers_sampler: object = EpochHint(dataset.progress)
        """The `sampler` that trainers see; the loader never asks it."""
        self._worker_pool: WorkerPool | None = None
        self._worker_pool_key: object = None
        self._cursor = Cursor()
        # An attribute: trainers that copy a loader look for its arguments among those.
        self.remainder: Remainder = 'drop' if drop_last else remainder or dataset.remainder or 'repeat'
        self._peeked: tuple[object, Generator[Any], Any, list[object]] | None = None
        self._counters = LoaderCounters(dataset.stream_names, dataset.cache_counters, dataset.stream_unit)
        self._mixture_counts = MixtureCounts()
        if topology is not None:
            dataset.bind(topology)  # last: a loader that is refused leaves its dataset as it was

    @property
    def sampler(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Takes the epoch from Lightning and Fabric, if the loader has no position."""
        return self.trainers_sampler

    @sampler.setter
    def sampler(self, value: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """PyTorch's constructor sets one; it is never asked."""

    def _facts(self) -> Facts:
        return loader_facts(
            type(self).__name__,
            self.dataset,
            batch=f'{self.batch_size:,} samples per device',
            more=f'remainder {self.remainder!r}',
            workers=self.num_workers,
            places=lambda: (self._current(), self.next_pass()),
            fixed_epoch=self.fixed_epoch,
        )

    # -- sizes -----------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int | None:
        """Samples per device. With the dataset's `global_batch_size`, the most of any of the current ranks."""
        given = self.__dict__['batch_size']
        return self.dataset.batch_size if given is None else given

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        # Where trainers look that copy a loader.
        self.__dict__['batch_size'] = value if self.dataset.global_batch_size is None else None

    @property
    def global_batch_size(self) -> int:
        """Samples of a batch over all ranks."""
        return self._batches.global_batch_size

    @property
    def _batches(self) -> BatchSpec:
        return self.dataset.batch_spec(batch_size=self.batch_size, remainder=self.remainder)

    def plan(self, epoch: int | None = None, start: int = 0) -> BatchPlan:
        """The plan of an epoch's batches, by default of the current epoch from its start."""
        return self.dataset.run.plan(self._current()[0] if epoch is None else epoch, start, self._batches)

    @property
    def longest_epoch(self) -> int:
        """Batches of the current epoch without a range of ``skip``; only `batch_cost` makes epochs differ."""
        return self.plan().epoch_batches

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank.

        It belongs to the current pass until its last batch, and then to the next pass. Only `skip` and `batch_cost`
        make epochs differ. With `batch_cost` each machine counts an epoch once: about 2 s for 10 million samples.

        Raises:
            TypeError: the dataset's epoch has no end; or it has more than 100 million samples, and a `batch_cost`.
        """
        self.dataset.check_counted()
        if self.counts_skipped:
            self.told_length = self.longest_epoch
            return self.told_length
        return self.plan(self.next_pass()[0] if self._cursor.epoch is None else self._cursor.epoch).total_batches

    # -- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Batches of the next epoch, or the rest of a loaded or failed one. Nothing happens before the first `next`."""
        self._check_fixed_epoch()
        self.dataset.take_growth(evaluates=self.fixed_epoch is not None, remainder=self.remainder)
        turn = self.dataset.progress.take_turn(self._reader, evaluates=self.fixed_epoch is not None)
        peeked, self._peeked = self._peeked, None
        if peeked is not None:
            key, batches, _, turns = peeked
            if key == self._next_key():
                turns.append(turn)
                place = self._cursor.begin = self.next_pass()
                self.dataset.begin_pass(self._batches, place=place)
                self._cursor.begin_pass(place)
                yield from batches
                self._cursor.epoch, self._cursor.is_passing = None, False  # also of a pass without a batch
                return
            with self._place_kept():
                batches.close()
        yield from self._passes([turn])

    def peek(self) -> Any:
        """The first batch of the next `iter`, which hands the same object out; None if that has no batch.

        The position and the state stay as they are, on every rank. `next(iter(loader))` would begin a pass instead.
        Under `on_growth` it decides which samples that pass takes, so all ranks call it.

        Raises:
            ConfigError: a pass is under way.
        """
        if self._cursor.is_passing:
            raise ConfigError(
                'peek() looks at the first batch of the next pass, but a pass is under way. Call it before `iter`, or '
                'after the last batch; or take the next batch of the pass.'
            )
        self.dataset.take_growth(evaluates=self.fixed_epoch is not None, remainder=self.remainder)
        key = self._next_key()
        if self._peeked is None or self._peeked[0] != key:
            turns: list[object] = []
            with self._place_kept():
                if self._peeked is not None:
                    self._peeked[1].close()
                batches = self._passes(turns)
                self._peeked = key, batches, next(batches, None), turns
        return self._peeked[2]

    @contextmanager
    def _place_kept(self) -> Generator[None]:
        cursor = copy(self._cursor)
        try:
            with self.dataset.progress.kept():
                yield
        finally:
            self._cursor = cursor

    def _next_key(self) -> object:
        """The next pass: where it begins, and what decides its batches."""
        return self.next_pass(), self._batches, self.dataset.order_key, self.dataset.run.decisions

    def _passes(self, turns: list[object]) -> Generator[Any]:
        """Batches of the next pass, of one plan after another if it is rescaled."""
        progress, evaluates = self.dataset.progress, self.fixed_epoch is not None
        place, running = self.next_pass(), None
        try:
            while place is not None:
                place, running = yield from self._pass(turns, place, running)
                if place is not None:
                    self.dataset.take_growth(evaluates=evaluates)  # as ranks that join before batch 0
        except GeneratorExit:
            raise
        except BaseException:  # the next pass begins with the batch that failed
            if self._cursor.is_passing:  # it failed between two plans
                self._end_pass(self._current()[0], running)
            is_last_turn = bool(turns) and progress.turn is turns[0] and not evaluates
            if is_last_turn and (place := self._current()) != self.dataset.next_place:
                progress.load(*self._next_place(place))
            raise

    def _pass(
        self, turns: list[object], place: tuple[int, int], running: Iterator[WorkerBatch] | None
    ) -> Generator[Any, None, tuple[tuple[int, int] | None, Iterator[WorkerBatch] | None]]:
        """Batches of a plan from a place on; returns where the pass goes on with another plan, and what still runs.

        If `turns` is empty, the first batch is yielded twice: once for `peek`, once for the pass.
        """
        progress, evaluates, copies = self.dataset.progress, self.fixed_epoch is not None, copies_to(self.device)
        epoch, _ = self._cursor.begin = place
        plan, reader, keys, combine = self.dataset.begin_batches(
            PassRequest(
                batches=self._batches,
                place=place,
                collate_fn=self._collate,
                mark_streams=self.mark_streams,
                pad=self.pad,
                continues=self._continues_after(epoch),
            )
        )
        self._counters.begin_pass(new_processes=running is None and not self.persistent_workers)
        self._cursor.begin_pass(place)
        ends_here, source, goes_on = ending_here(), None, False
        known, is_uneven = 1, plan.uneven is not None  # a plan may find further batches at a cost
        try:
            source = self._workers(reader, keys, running) if self.num_workers else map(reader.__getitem__, keys)
            batches = self._counters.receive_all(each(source) if self.num_workers else source)
            batches = batches if combine is None else combine(batches)
            if self.pin_memory and (combine or not self.num_workers):  # PyTorch's thread pins workers' batches
                batches = pinned(batches)
            batches = batches if copies is None else copied_ahead(batches, copies)
            for number, received in enumerate(batches):
                if not turns:
                    yield received.batch
                if progress.turn is not turns[0] and not evaluates:
                    progress.refuse_turns()
                own_samples = received.rows
                if number + 1 == known and (known := plan.batches(known, AHEAD).stop) == number + 1:
                    self._cursor.epoch, own_samples = None, plan.own_samples(number)
                elif is_uneven:  # others have no padding
                    own_samples = plan.own_samples(number)
                yield self._hand_out(plan, number, received, own_samples)
                self._counters.ask()
                if self._cursor.has_new_plan:
                    there = self._next_place(self._current())
                    goes_on = there.epoch <= epoch
                    place = (epoch if evaluates else there.epoch, there.sample)
                    return (place, source) if goes_on else (None, None)
            return None, None
        finally:
            if ends_here() and not goes_on:
                self._end_pass(epoch, source)

    @property
    def _reader(self) -> object:
        """The owner of the position."""
        return self

    def _hand_out(self, plan: BatchPlan, number: int, received: WorkerBatch, own_samples: int) -> Any:
        self._cursor.begin, self._cursor.handed_out = None, (plan, number)
        self._mixture_counts.reach(plan, number)
        if stalled := self._counters.hand_out(received, own_samples):
            self.dataset.progress.seconds_stalled += stalled
        return received.batch

    def _end_pass(self, epoch: int, source: Iterator[WorkerBatch] | None) -> None:
        self.dataset.progress.end(epoch)
        self._cursor.epoch, self._cursor.is_passing = None, False
        if not self.num_workers:
            self.dataset.pool.shards.pause()
        if not self.persistent_workers:
            # A traceback or a user's variable may keep PyTorch's iterator, but must not keep its workers.
            getattr(source, '_shutdown_workers', lambda: None)()

    @property
    def handed_out(self) -> tuple[BatchPlan, int] | None:
        """The last batch: the plan of its pass, and its number there. None before the first."""
        return self._cursor.handed_out

    @property
    def own_samples(self) -> int:
        """Rows of the last batch, on this rank, without padding; padding comes last. 0 before the first batch.

        For batches that are not dicts, which cannot hold the mark of ``remainder='exact'``. Batches that workers have
        prefetched do not change it. For other batches use `plan().own_samples(number)`.
        """
        return self._counters.own_samples

    @property
    def own_streams(self) -> npt.NDArray[np.int64]:
        """Stream number of each row of the last batch, on this rank, int64[rows]; empty before the first batch.

        For batches that are not dicts, which cannot hold the mark of `mark_streams`. Padding has the stream of the
        sample that it repeats. Numbers are those of `dataset.streams`.

        Raises:
            ConfigError: a row holds tokens of several streams.
        """
        return self._counters.own_streams

    @property
    def own_loss_weights(self) -> npt.NDArray[np.float32]:
        """Weights of the rows of the last batch, on this rank, float32[rows]; see `headrace.LOSS_WEIGHT`.

        For batches that are not dicts. ConfigError: no batch was read yet, or the dataset has no ``loss_weight``.
        """
        if self.dataset.weigh is None or self.handed_out is None:
            raise ConfigError('Weights of rows need `loss_weight` of the dataset, and a batch that was handed out.')
        plan, number = self.handed_out
        return self.dataset.weigh(plan, number, plan.ids(number))

    @property
    def own_bad_rows(self) -> npt.NDArray[np.bool_]:
        """Rows of the last batch, on this rank, that hold another sample because theirs could not be read.

        bool[rows], padding included; empty before the first batch. For batches that are not dicts, which cannot hold
        the mark of ``on_bad_sample='skip'``.
        """
        return self._counters.own_bad_rows

    # -- statistics ------------------------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """Counters of this loader on this rank since it was made; takes microseconds, and asks no other rank.

        Without workers, counters of reads are the process' own, for all uses of the dataset's streams.
        """
        return self._counters.stats(reads_here=self.num_workers == 0)

    @property
    def seconds_waiting(self) -> float:
        """As in `stats`; takes no time, however many streams there are."""
        return self._counters.seconds_waiting

    def mix(self) -> dict[str, StreamCount]:
        """By stream, the samples of all ranks' batches, and the number that the mixture promises.

        Counts since this loader was made, without padding. They come from the order, which takes about a millisecond
        and asks no other rank.

        Counts of tokens, as with packing, are of this rank alone. The mixture promises shares of documents; they are
        multiplied by the mean length of each stream's documents.
        """
        tokens = self.stream_tokens
        return self._mixture_counts.counts() if tokens is None else self.token_counts(tokens)

    def token_counts(self, tokens: npt.NDArray[np.int64]) -> dict[str, StreamCount]:
        """Tokens of batches by stream name, and as many tokens as the mixture promises.

        Args:
            tokens: of each stream, int64[streams].
        """
        promised = self.dataset.promised_token_shares() * tokens.sum()
        counts = map(StreamCount, tokens.tolist(), promised.tolist())
        return dict(zip(self.dataset.stream_names, counts, strict=True))

    @property
    def stream_tokens(self) -> npt.NDArray[np.int64] | None:
        """Tokens of each stream in this rank's batches so far, int64[streams]; None where samples are counted."""
        return self.stream_tokens_before(0)

    def stream_tokens_before(self, last: int) -> npt.NDArray[np.int64] | None:
        """As `stream_tokens`, without the last batches, at most two."""
        return self._counters.stream_tokens_before(last)

    def next_pass(self) -> tuple[int, int]:
        """Epoch and first sample of the next pass."""
        epoch, start = self.dataset.next_place
        return epoch if self.fixed_epoch is None else self.fixed_epoch, start

    def _continues_after(self, epoch: int) -> bool:
        """Whether the same processes read the next epoch."""
        is_last = self.max_epochs is None or self.fixed_epoch is not None or epoch + 1 >= self.max_epochs
        return not is_last and (self.persistent_workers or not self.num_workers)

    def _check_fixed_epoch(self) -> None:
        if self.fixed_epoch is not None and not self.dataset.has_length:
            raise ConfigError(
                'A loader for evaluation gives the same epoch in every pass, but the epoch of its dataset does not '
                'end. Set `sequences_per_epoch` in its `packing`; `all` has each document once.'
            )

    def _workers(
        self, reader: Reader[Any], keys: Iterator[Any], running: Iterator[WorkerBatch] | None
    ) -> Iterator[WorkerBatch]:
        read_for = ReadFor(self._batches, self.dataset.run.decisions, self.dataset.peers and self.dataset.peers.nodes)
        if self._worker_pool is None or self._worker_pool_key != self._pool_key:
            self._worker_pool = WorkerPool(reader, self, self.dataset.progress, read_for)
            self._worker_pool_key, running = self._pool_key, None
            self._counters.begin_pass(new_processes=True)
        return self._worker_pool.batches(keys, read_for, running)

    @property
    def _pool_key(self) -> object:
        """What workers know from their start; a state may change it."""
        return self.global_batch_size, self.dataset.order_key

    # -- the position ----------------------------------------------------------------------------------------------

    def rescale(self, topology: Topology, position: Mapping[str, Any] | int | None = None) -> None:
        """Switch to a new topology at the next batch, without restarting the workers or the epoch.

        Global batches stay as they are, and their rows are dealt to the replicas of the new topology. A `for` loop over
        the loader goes on with the next batch. Batches that were read ahead for the topology before are dropped. Each
        rank that stays calls it, with the same position. A rank that joins makes a loader, and loads that state.

        Args:
            topology: rank and world size from now on.
            position: where to go on, such as before a step that failed: a state of this run, or a number of samples of
                the current epoch. None, or a state from before the first pass: where `state_dict` is.

        Raises:
            TopologyError: the replicas cannot share the global batch; nothing has changed then.
            StreamError: streams of different columns would share a batch.
            ConfigError: the position does not exist.
            ResumeError: `position` belongs to other data or another order; or batches of one of MosaicML Streaming's
                orders depend on the ranks.
        """
        self.dataset.keep_topology(self.handed_out)
        if isinstance(position, Mapping) and ResumeState.from_dict(position).is_stale:
            position = None
        if not isinstance(position, Mapping):
            # An evaluation that was left early is not continued.
            is_left = self.fixed_epoch is not None and not self._cursor.is_passing
            epoch, sample = self.next_pass() if is_left else self._current()
            position = self._state_at(epoch, sample if position is None else position, self.global_batch_size)
        batches, pool_key = replace(self._batches, topology=self.dataset.replicated(topology)), self._pool_key
        state = ResumeState.from_dict(position)
        goes_on = state == self._resume_state(state.epoch, state.sample_in_epoch, self.global_batch_size)
        there = self._continued(position, batches)
        if self._collate is None:
            self.dataset.check_sharing(there.run.plan(there.place.epoch, there.place.sample, batches))
        self.dataset.take(there)
        self.dataset.rescale(batches)
        object.__setattr__(self, 'batch_size', batches.batch_size)  # PyTorch's refuses
        if goes_on and self._worker_pool_key == pool_key:  # workers know this run, by its begin and all decisions
            self._worker_pool_key = self._pool_key
        self._cursor.has_new_plan = self._cursor.is_passing
        self.dataset.say_resumed()

    def set_proportions(self, proportions: Mapping[str, float], *, by: str) -> Decision:
        """Change the shares of the streams at the next batch, without restarting the workers or the epoch.

        States hold the decision, which is returned, so that a resume has it at the same sample. All ranks call it after
        the same batch. With `bucket` it takes effect at the next window, and with `batch_cost` at the next epoch.

        Args:
            proportions: by name, the share of every stream, relative to their sum.
            by: who decides, such as the name of a callback.

        Raises:
            ConfigError: ranks decide differently, or the run cannot change exactly. Nothing has changed then.
        """
        if self.fixed_epoch is not None:
            raise ConfigError('A loader for evaluation has one mixture. Set the proportions of the training loader.')
        is_passing = self._cursor.is_passing
        place = self._current() if is_passing else self.next_pass()
        run = self.dataset.decided(place, proportions, by, self.global_batch_size)
        run.plan(*place, self._batches)  # may refuse it
        self.dataset.run, self._cursor.has_new_plan = run, is_passing
        return run.decisions[-1]

    def _current(self) -> tuple[int, int]:
        # A position that was loaded after the last batch is newer than that batch.
        position = self._cursor.position
        has_begun = self.dataset.progress.begun(rank=self.dataset.topology.rank)
        return position if has_begun and position is not None else self.dataset.next_place

    def state_dict(self) -> dict[str, int | str]:
        """The position for a checkpoint: ints or strs by fixed keys, the same on every rank.

        Valid at any time, also before the first batch; takes microseconds, and asks no other rank. Of a batch that was
        handed out it is the position on the ranks of that batch, also where a new process group could be detected.
        """
        self.dataset.keep_topology(self.handed_out)
        return self._state_at(*self._current(), self.global_batch_size)

    def _state_at(self, epoch: int, sample: int, global_batch_size: int) -> dict[str, int | str]:
        state = self._resume_state(epoch, sample, global_batch_size).to_dict()
        told = self.dataset.progress.trainer_epoch
        # Keys are the same everywhere, unless a limit or a longer loader has parted the two counts.
        return state if told in (None, state['epoch']) else {**state, _TRAINER_EPOCH: told}

    def _resume_state(self, epoch: int, sample: int, global_batch_size: int) -> ResumeState:
        return self.dataset.resume_state(epoch, sample, global_batch_size, self.remainder)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next `iter` continue where `state` was taken; at the end of an epoch, with the next epoch.

        Raises:
            ValueError: the state is malformed, or belongs to other data or another mixture.
        """
        if not ResumeState.from_dict(state).is_stale:
            self.dataset.take(self._continued(state, self._batches))
        self.dataset.say_resumed()

    def _continued(self, state: Mapping[str, Any], batches: BatchSpec) -> Continuation:
        resume = ResumeState.from_dict(state)
        run, place, opened = self.dataset.continued(resume, batches)
        place = place._replace(trainer_epoch=state.get(_TRAINER_EPOCH, place.epoch))
        if resume.version is not None:  # users of MosaicML Streaming expect an empty pass at the end of an epoch
            place = place.rolled_over(run.plan(place.epoch, place.sample, batches).stop)
        return Continuation(run, place, opened)

    def _next_place(self, place: tuple[int, int]) -> Place:
        """Where the next pass begins if it continues at a place."""
        told, stop = self.dataset.progress.trainer_epoch, self.dataset.run.plan(*place, self._batches).stop
        return Place(*place, trainer_epoch=place[0] if told is None else told).rolled_over(stop)
