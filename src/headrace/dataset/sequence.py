"""The order of a dataset's samples on a topology, and where its next pass begins."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.dataset.growth import Opened, Opener
from headrace.dataset.options import DatasetArguments
from headrace.dataset.progress import Place, Progress
from headrace.dataset.ranks import gathered, has_group
from headrace.dataset.topology import detect_topology
from headrace.errors import ConfigError
from headrace.errors.display import count_text
from headrace.errors.exclusions import refuse_exclusions
from headrace.errors.redaction import logger_of
from headrace.options.dataset import OnGrowth
from headrace.order import (
    BatchPlan,
    BatchSpec,
    Mixture,
    Order,
    OrderConfig,
    Remainder,
    ResumeState,
    Run,
    Topology,
)
from headrace.order.decisions import shares_of
from headrace.order.skip import Skip
from headrace.order.topology import Uneven, World, with_replication

_log = logger_of(__name__)
MOST_COUNTED = 100_000_000
"""Samples of an epoch that are cut into batches of `batch_cost` for `len`, which takes half a minute of a processor."""


class Continuation(NamedTuple):
    """What a run goes on with: nothing has changed before `SampleSequence.take` gets it."""

    run: Run
    place: Place
    opened: Opened | None = None  # The streams that it reads, if they are opened again.


class SampleSequence:
    """A run through the samples of a dataset, as one rank of a topology sees it, and its position.

    The part of a dataset that loaders and trainers use, without the reading of data.

    Args:
        run: gives orders, plans and states.
        options: the dataset's options.
        skip: the ranges that the run skips.
    """

    _opener: Opener
    _opened: Opened
    global_batch_size: int | None = None  # a subclass may store `batch_size` before it is made

    def __init__(self, run: Run, options: DatasetArguments, *, skip: Skip) -> None:
        self.run = run
        self.skip = skip
        self.global_batch_size = options.global_batch_size
        self.uneven: Uneven | None = options.uneven
        self._batch_size = options.batch_size
        self.remainder: Remainder | None = options.remainder
        self.replication = options.replication
        self._topology = None if options.topology is None else self.replicated(options.topology)
        self._progress = Progress()
        self._decided_for: int | None = None  # the epoch whose samples were decided last, of data that grow
        self._last_batches: BatchSpec | None = None  # of the last pass
        self.may_count = True
        """Whether `len` counts epochs of `batch_cost`; False for a trainer that takes all to be alike."""
        self.counts_skipped = False
        """Whether the trainer's number of samples, which `state_dict` is given, includes those that `skip` skips."""

    # -- sizes -----------------------------------------------------------------------------------------------------

    @property
    def mixture(self) -> Mixture:
        """The streams as the order sees them, and what an epoch draws from each."""
        return self.run.mixture

    @property
    def epoch_size(self) -> int:
        return self.mixture.epoch_size

    @property
    def batch_size(self) -> int | None:
        """Samples of one device batch, if known; the most of any rank."""
        return self._batch_size if self.global_batch_size is None else self.batch_spec().batch_size

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:
        if None not in (self.global_batch_size, value) and value != self.batch_size:
            raise ConfigError(
                f'The dataset has `global_batch_size` {self.global_batch_size}, {self.batch_size} samples per device, '
                f'but `batch_size` is to be {value}. Leave one of them out.'
            )
        self._batch_size = value

    def batch_size_of_loader(self, requested: int | None, topology: Topology | None) -> int:
        """Samples per device in the batches of a loader, on a topology or the present one; ConfigError: unclear."""
        known = self._batch_size
        if self.global_batch_size is not None:
            known = self.batch_spec(topology=topology).batch_size
        size = known if requested is None else requested
        if size is None:
            raise ConfigError('Please pass `batch_size` to StreamingDataset or to StreamingDataLoader: both are None.')
        if known not in (None, size):
            raise ConfigError(
                f'`batch_size` is given twice with different values: {known} to StreamingDataset and {size} to '
                f'StreamingDataLoader. Give it once, in samples per device.'
            )
        return size

    @property
    def num_canonical_nodes(self) -> int:
        """Parts of the data that are read side by side."""
        return self.order_config.num_canonical_nodes or 1

    @property
    def shuffle_seed(self) -> int:
        """Key of the order."""
        return self.sample_run.config().seed

    def __len__(self) -> int:
        """Samples of an epoch that one rank gets; TypeError: it has no end."""
        if not self.has_length:
            raise TypeError('This dataset has no length: its epoch does not end.')
        return math.ceil(self.epoch_size / self.topology.replicas)

    # -- the order -------------------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Rank and world size: as given or bound, else as detected."""
        if self._topology is not None:
            return self._topology
        return detect_topology(replication=self.replication or 1)

    def bind(self, topology: Topology) -> None:
        """Set rank and world size, from the next `len` or `iter` on."""
        self._topology = self.replicated(topology)

    def keep_topology(self, last: tuple[BatchPlan, int] | None) -> None:
        """Stay at the ranks of a loader's last batch: a process group that was formed again may be detected by now."""
        if self._topology is None and last is not None:
            self.bind(last[0].topology)

    def rescale(self, batches: BatchSpec) -> None:
        """Take the topology of batches, and their rows on this rank."""
        self.bind(batches.topology)
        if self._batch_size is not None:
            self._batch_size = batches.batch_size

    def decided(self, place: tuple[int, int], proportions: Mapping[str, float], by: str, global_batch_size: int) -> Run:
        """The run with other proportions from a place on, as `Run.with_decision` gives it.

        Raises:
            ConfigError: the ranks of a process group do not ask for the same; or data that grow are followed.
        """
        refuse_exclusions({'on_growth': self.on_growth, 'decisions': True})
        earlier = f', after {len(all_)} decisions up to {all_[-1].digest}' if (all_ := self.run.decisions) else ''
        requests = gathered(f'{shares_of(proportions)} by {by!r} at {place}{earlier}')
        other = next((rank for rank, request in enumerate(requests) if request != requests[0]), None)
        if other is not None:
            raise ConfigError(
                f'All ranks decide the same after the same batch, but rank 0 decides {requests[0]}, and rank {other} '
                f'{requests[other]}. Compute proportions from values that are reduced over all ranks.'
            )
        return self.run.with_decision(place, proportions, by, self._world(global_batch_size), self.check_mixture)

    @abstractmethod
    def check_mixture(self, mixture: Mixture) -> None:
        """Check that streams that share batches under a mixture have equal columns.

        Raises:
            StreamError: they do not.
        """

    def replicated(self, topology: Topology) -> Topology:
        return with_replication(topology, self.replication, type(self).__name__)

    def _world(self, global_batch_size: int | None = None) -> World:
        """The ranks and batches that the order depends on."""
        if self.run.needs_batch_size and global_batch_size is None and self.batch_size is not None:
            global_batch_size = self.batch_spec().global_batch_size
        nodes = self.topology.nodes if self.run.needs_nodes else 1
        return World(nodes, global_batch_size, self.topology.replicas if self.run.needs_replicas else None)

    @property
    def sample_run(self) -> Run:
        """The run through the samples that are read."""
        return self.run

    @property
    def order_config(self) -> OrderConfig:
        """How samples are ordered, with every default filled in.

        Defaults that depend on the topology or the batch size are final with the first pass.
        """
        return self.run.config(self._world())

    @property
    def order_key(self) -> object:
        """The parts of the order that decide the content of batches, for any number of ranks."""
        data = tuple(stream.fingerprint for stream in self.mixture.streams)
        return self.order_config, self.initial_nodes, self.mixture.takeover, self.mixture.choose, data

    @property
    def has_length(self) -> bool:
        return True

    @property
    def epochs_differ(self) -> bool:
        """Whether epochs may differ in batches: by `skip`, by `batch_cost`, or because data grow."""
        differ = bool(self.skip) or self.run.settings.order.batch_cost is not None
        return self.follows_growth or (self.has_length and differ)

    @property
    def is_counted(self) -> bool:
        """Whether `len` of a loader counts the batches of an epoch; with `batch_cost`, of at most `MOST_COUNTED`."""
        counts = self.may_count and self.epoch_size <= MOST_COUNTED
        return self.has_length and (counts or self.run.settings.order.batch_cost is None)

    def check_counted(self) -> None:
        """Refuse the length of a loader where there is none; TypeError: see `is_counted`."""
        if not self.has_length:
            raise TypeError("This loader has no length: its dataset's epoch does not end.")
        if not self.is_counted:
            raise TypeError(
                f'This loader has no length: with `batch_cost` epochs differ, and it takes minutes to count the '
                f'batches of many samples; an epoch has {self.epoch_size:,}. Limit the training by steps. '
                f'`loader.plan().num_batches` counts them, once for each machine.'
            )

    @property
    def skip_unit(self) -> int:
        """Divisor of the bounds of skipped ranges, in samples of the run."""
        return 1

    @property
    def initial_nodes(self) -> int:
        """Nodes that the run began on."""
        return self.run.initial_nodes(self.topology.nodes)

    def order(self, epoch: int, global_batch_size: int | None = None) -> Order:
        return self.run.order(epoch, self._world(global_batch_size))

    def batch_spec(
        self,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        remainder: Remainder | None = None,
        topology: Topology | None = None,
    ) -> BatchSpec:
        """How the sequence is cut into batches, with all defaults filled in.

        Args:
            batch_size: samples of a batch on each rank; by default the dataset's.
            global_batch_size: samples of a batch over all ranks, in place of `batch_size`; by default the dataset's.
            remainder: see the class; by default the dataset's, else 'repeat'.
            topology: for which rank; by default this one.

        Raises:
            ConfigError: no batch size is known.
        """
        topology, global_batch_size = topology or self.topology, global_batch_size or self.global_batch_size
        if global_batch_size is None:
            batch_size = self.batch_size if batch_size is None else batch_size
            if batch_size is None:
                raise ConfigError(
                    'Please pass `batch_size` to StreamingDataset: the order in which ranks and workers take samples '
                    'depends on it, and it is None.'
                )
            global_batch_size = batch_size * topology.replicas
        return BatchSpec(global_batch_size, topology, remainder or self.remainder or 'repeat', self.uneven)

    def plan(
        self,
        *,
        epoch: int = 0,
        start: int = 0,
        global_batch_size: int | None = None,
        remainder: Remainder | None = None,
        topology: Topology | None = None,
    ) -> BatchPlan:
        """The plan of an epoch: the samples of each batch, and the rank of each sample.

        Args:
            epoch: which epoch.
            start: number of samples of its global sequence that come before the first batch.
            global_batch_size: samples of a batch over all ranks; by default `batch_size` for each.
            remainder: see the class; by default the dataset's.
            topology: for which rank; by default this one.

        Raises:
            ValueError: no batch size is known, or it does not divide by the number of ranks.
        """
        spec = self.batch_spec(global_batch_size=global_batch_size, remainder=remainder, topology=topology)
        return self.run.plan(epoch, start, spec)

    def check_batches(self, label: str, global_batch_size: int, remainder: Remainder) -> None:
        """Check that an epoch has a batch, or would have one without ``skip``.

        Args:
            label: the dataset's name in messages.
            global_batch_size: samples of a batch over all ranks.
            remainder: see the class.

        Raises:
            ConfigError: an epoch is smaller than a batch, and the remainder is dropped.
        """
        if remainder != 'drop' or self.epoch_size >= global_batch_size:
            return
        # An epoch of MosaicML's orders may have more positions than samples.
        if self.skip or not self.plan(global_batch_size=global_batch_size, remainder=remainder).total_batches:
            raise ConfigError(
                f'{label} has no batch in an epoch: its {self.epoch_size} samples are fewer than a global batch of '
                f'{global_batch_size}, and what is left over is dropped. Make the batch smaller, or leave `drop_last` '
                f'and remainder "drop" out.'
            )

    @property
    def evaluation_remainder(self) -> Remainder:
        """Handling of the samples after the last full global batch in evaluation: as given, or the order's."""
        return self.remainder or self.order_config.family.remainder

    # -- the position ----------------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """The current epoch, and the place where the next pass begins."""
        return self._progress

    @property
    def next_place(self) -> tuple[int, int]:
        """Epoch and first sample of the next pass."""
        return self.progress.next(rank=self.topology.rank)

    def resume_state(
        self,
        epoch: int,
        sample_in_epoch: int,
        global_batch_size: int | None = None,
        remainder: Remainder | None = None,
    ) -> ResumeState:
        """The state that continues at `sample_in_epoch` of `epoch`.

        Args:
            epoch: which epoch.
            sample_in_epoch: the position in it.
            global_batch_size: samples of a batch over all ranks; by default as in the last plan.
            remainder: see the class; by default the dataset's.
        """
        world, batches = self._world(global_batch_size)._replace(nodes=self.topology.nodes), None
        is_unknown = (self.skip or self.run.is_dealt) and self._last_batches is None and self.batch_size is not None
        if global_batch_size is not None or is_unknown:
            batches = self.batch_spec(global_batch_size=global_batch_size, remainder=remainder)
        return self.run.state(epoch, sample_in_epoch, world, batches or self._last_batches)

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, int | str]:
        """A checkpoint's entry for this dataset: fixed keys, int or str values, the same on every rank.

        Args:
            num_samples: samples of the current epoch that all ranks together have had. Those that `skip` skips count
                only under `counts_skipped`, as with Composer and `streaming_data_spec`.
            from_beginning: whether they are counted from the epoch's start, or from the start of a resumed pass.

        Raises:
            ConfigError: nothing says the number of samples, as with `torchdata`'s `StatefulDataLoader`.
        """
        if num_samples is None:
            raise ConfigError(
                f'A {type(self).__name__} does not know how many of its samples were handed out, and got no '
                f"`num_samples`: torchdata's StatefulDataLoader gives none. Use headrace.StreamingDataLoader in its "
                f'place. Its state_dict() and load_state_dict(state) resume exactly, on other ranks and workers too.'
            )
        progress, rank = self.progress, self.topology.rank
        epoch, start = progress.current(rank=rank)
        if num_samples == 0 and from_beginning and progress.ended(rank=rank):
            epoch, start = self.next_place  # Composer saves an epoch's end with the number of the next epoch
        loaded = progress.loaded
        if num_samples and loaded.end is not None and not progress.begun(rank=rank):
            epoch, start = loaded.end  # the trainer counts no epoch that has not begun
        is_loaded = (loaded.end or loaded[:2]) == (epoch, start)
        counted = start if loaded.counted is None or not is_loaded else loaded.counted
        if self.counts_skipped or not (self.skip or counted < start):
            position = num_samples if from_beginning else start + num_samples
            return self.resume_state(epoch, self.position_of(position)).to_dict()
        if from_beginning and num_samples < counted:
            start = counted = 0
        handed_out = num_samples - counted if from_beginning else num_samples
        state = self.resume_state(epoch, self._position_after(epoch, start, handed_out))
        return state.with_count(counted + handed_out).to_dict()

    def _position_after(self, epoch: int, start: int, handed_out: int) -> int:
        """The position after samples of a pass that skips some; a batch of which some were handed out counts whole."""
        if not handed_out:
            return start
        plan = self.run.plan(epoch, start, self._last_batches or self.batch_spec())
        batches = plan.batches_of(handed_out)
        return plan.end(batches - 1) if batches else start

    def position_of(self, num_samples: int) -> int:
        """The position in an epoch after a trainer's number of samples, which may count repeats without a position."""
        return num_samples if self.order_config.family.counts_repeats else min(num_samples, self.epoch_size)

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Have the next pass continue where `state` was taken. A state at the end of an epoch gives an empty pass.

        Raises:
            ValueError: the state is malformed, or belongs to other data or another mixture.
        """
        resume = ResumeState.from_dict(state)
        if not resume.is_stale:
            self.take(self.continued(resume))
        self.say_resumed()

    def continued(self, state: ResumeState, batches: BatchSpec | None = None) -> Continuation:
        """The run and the position at which it continues from a state, which is not stale.

        Args:
            state: of a checkpoint.
            batches: how the sequence is cut, if that is known; the run can then continue in them.

        Raises:
            TopologyError, ConfigError: the replicas cannot share the batches.
            ResumeError: the state belongs to other data, another mixture, another order or other batches.
        """
        opened = self._data_of(state)
        size, topology = self._world().global_batch_size, self.topology
        world = World(topology.nodes, size, topology.replicas) if batches is None else batches.world
        run, (epoch, start) = (self.run if opened is None else opened.run).resumed(state, world)
        if batches is not None:
            run.plan(epoch, start, batches)
        counted = state.count if start == state.sample_in_epoch else None
        return Continuation(run, Place(epoch, start, counted), opened)

    def _data_of(self, state: ResumeState) -> Opened | None:
        """The data of a state, where shards were appended since; None if they are open."""
        may_open = self.follows_growth or self.run.settings.on_mixture_change == 'refuse'
        return self._opener.open_at(state, self._opened.streams) if may_open else None

    def take(self, there: Continuation) -> None:
        """Continue there, in the next pass."""
        self._adopt(there.run, there.opened)
        self.progress.load(*there.place)
        self._decided_for = None

    def _adopt(self, run: Run, opened: Opened | None) -> None:
        before = self._opened.streams
        if opened is not None:
            self._read(opened)
        self.run = run
        if opened is not None:
            self._show_opened()
        for was, stream in zip(before, self._opened.streams, strict=True):
            if stream.fingerprint != was.fingerprint and not self.topology.rank and not self.follows_growth:
                _log.warning(
                    'Stream %s has %d shards, of which the run goes on with %d: the others were appended since it '
                    "began. `on_growth` 'next_pass' takes them from the next epoch on.",
                    stream.title, stream.stored_shards, len(stream.shards),
                )  # fmt: skip

    @abstractmethod
    def _read(self, opened: Opened) -> None:
        """Read these streams from now on. If it raises, nothing has changed."""

    @abstractmethod
    def _show_opened(self) -> None:
        """Let the given streams say what is read."""

    def say_resumed(self) -> None:
        """Log where the next pass continues, on rank 0; for all who load a state."""
        if not self.topology.rank and not self.progress.fresh:
            ranks = count_text(self.topology.world_size, 'rank')
            _log.info('The data continue at epoch %d, sample %d, on %s.', *self.next_place, ranks)

    # -- data that grow --------------------------------------------------------------------------------------------

    @property
    def on_growth(self) -> OnGrowth:
        """What epochs take of samples that are appended."""
        return self._opener.on_growth

    @property
    def follows_growth(self) -> bool:
        """Whether epochs take samples that are appended."""
        return self._opener.follows

    def take_growth(self, *, evaluates: bool = False, remainder: Remainder | None = None) -> None:
        """Decide which samples the next pass takes, if it begins an epoch; see `on_growth`.

        Loaders and trainers' plugins call it on all ranks before the pass. Again before the same pass it does nothing.

        Args:
            evaluates: whether the pass is one of evaluation, which reads the same epoch always.
            remainder: the loader's remainder, or None to use the dataset's.

        Raises:
            StreamError, EmptyDatasetError, ConfigError: as `Opener.next_generations`.
        """
        if not self.follows_growth:
            return
        settings = {'on_growth': self.on_growth, 'remainder': remainder, 'fixed_epoch': 0 if evaluates else None}
        refuse_exclusions(settings)
        (epoch, start), takeover = self.next_place, self.mixture.takeover
        # A checkpoint may have been taken after the decision.
        is_taken_over = takeover.positions and (takeover.epoch, takeover.sample) == (epoch, 0)
        if start or epoch == self._decided_for or is_taken_over:
            return
        self._opener.check(self.run, self._opened.streams)  # a checkpoint may have named the order
        if self.topology.world_size > 1 and not has_group():
            raise ConfigError(
                f'{self.topology.world_size} ranks agree on the samples of an epoch through the process group of '
                f"torch.distributed, but there is none. Initialize it, or set `on_growth` to 'ignore'."
            )
        opened = self._opener.open_grown(self._opened.streams, is_first=not epoch)
        if opened is not None and self.progress.fresh:
            self._adopt(opened.run, opened)
        elif opened is not None:
            run, _ = opened.run.resumed(self.resume_state(epoch, 0), self._world(), may_change_mixture=True)
            self._adopt(run, opened)
            self.progress.load(epoch, 0)  # no position is of the samples before, from now on
        self._decided_for = epoch
