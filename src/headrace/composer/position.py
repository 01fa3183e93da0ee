"""A Composer callback that sets the loader and the random state to the trainer's time, on the trainer's ranks."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from composer.core import Callback, State, Time, TimeUnit
from composer.utils import dist, reproducibility
from torch.utils.data import DataLoader

from headrace.composer.callbacks import DataStatistics
from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.dataset.device import check_trainers_device
from headrace.dataset.tracker import describe_start
from headrace.errors import ConfigError, TopologyError
from headrace.errors.redaction import warn
from headrace.metrics import DataMeter
from headrace.metrics.meter import print_line
from headrace.order import Topology
from headrace.packing import sync_lane_states

if TYPE_CHECKING:
    from composer.loggers import Logger

    from headrace.order import BatchPlan


def composer_topology(replication: int = 1) -> Topology:
    """The topology that Composer trains on, from torch.distributed or from the launcher's environment.

    Composer's word is taken, and not a cluster manager's: a shell within an allocation of eight tasks is one rank.
    Under torchrun, NODE_RANK is set in the environment.
    """
    # Composer cannot load a checkpoint without NODE_RANK, which torchrun sets under another name.
    if 'GROUP_RANK' in os.environ:
        os.environ.setdefault('NODE_RANK', os.environ['GROUP_RANK'])
    world_size = dist.get_world_size()
    # Composer raises if the launcher did not set the number of ranks per node.
    local = os.environ.get('LOCAL_WORLD_SIZE', '')
    ranks_per_node = int(local) if local.isdigit() and int(local) and world_size % int(local) == 0 else world_size
    return Topology(
        rank=dist.get_global_rank(),
        world_size=world_size,
        num_nodes=world_size // ranks_per_node,
        replication=replication,
    )


def bind_topology(dataset: StreamingDataset) -> None:
    """Bind `dataset` to Composer's rank, or check that it is bound to it."""
    given = dataset.topology if dataset._topology is not None else None
    topology = composer_topology(given.replication if given else dataset.replication or 1)
    if given is None:
        dataset.bind(topology)
    elif (given.rank, given.world_size) != (topology.rank, topology.world_size):
        raise TopologyError(
            f'A dataset must read for the rank that Composer trains on, rank {topology.rank} of {topology.world_size}, '
            f'but it reads for rank {given.rank} of {given.world_size}. Leave `topology` out, and make the DataSpec '
            f'after the launcher or torch.distributed has said how many ranks there are.'
        )
    elif given.replica_index is not None:
        # Counting tokens needs the ranks of a sample to be neighbours, as in Composer's mesh.
        raise TopologyError(
            f'Under Composer, ranks that get the same samples must be consecutive, but the topology has rank '
            f'{given.rank} as replica {given.replica} with replication {given.replication}.'
        )


_followed: WeakSet[DataLoader[Any]] = WeakSet()
_counted: WeakSet[DataLoader[Any]] = WeakSet()


def knows_skips(loader: DataLoader[Any]) -> None:
    """Record that a loader's `DataSpec` counts skipped samples, so that Composer's position includes them."""
    _counted.add(loader)
    if isinstance(loader.dataset, StreamingDataset):
        loader.dataset.counts_skipped = True


def check_batches(loader: StreamingDataLoader) -> None:
    """Check that an epoch of a training loader has a batch."""
    loader.dataset.check_batches('train', loader.global_batch_size, loader.remainder)


def is_followed(loader: DataLoader[Any]) -> bool:
    return loader in _followed


class StreamingPosition(Callback):
    """Synchronises a streaming train loader with Composer's time. Give it to the trainer before other callbacks.

    Composer knows the trained batches. At the start of each `fit` and the end of each epoch, the loader is set to the
    epoch and sample of `State.timestamp`. A time of zero restarts the data.

    The callback adds to Composer:

    - A checkpoint from an epoch's end continues with the next epoch, even if MosaicML Streaming wrote it.
    - A resumed epoch ends where the interrupted one would have, with ``train_subset_num_batches`` too.
    - An epoch in one of MosaicML Streaming's orders has the same length as there, so its runs can continue here.
    - After a change of the global batch size, ``batch_in_epoch`` counts batches of the new size.
    - The random state of Python, NumPy and torch is restored in mid-epoch as well.
    - A second `fit` continues where the first ended, without reading samples again.
    - Rank 0 prints where a resumed training continues, and at the end how long it waited for data.

    Args:
        restore_rng: Whether to save and restore the random state.

    Raises:
        ConfigError: At the start of `fit`: the train loader shares its dataset with an evaluator, or has no batch in an
            epoch; ``train_subset_num_batches`` cuts an endless epoch; or the loader's ``device`` is not the trainer's.
        TopologyError: At the start of `fit`: the loader reads for another rank, or tensor-parallel ranks read different
            samples.
    """

    def __init__(self, *, restore_rng: bool = True) -> None:
        self.restore_rng = restore_rng
        self._loaded_rng = b''
        self._rng: list[dict[str, Any]] | None = None
        self._batches_of_epoch: Time[int] | None = None
        self._subset: int | None = None
        self._length_set: Time[int] | None = None
        self._is_checked = False
        self._dataset: StreamingDataset | None = None  # The trainer's time counts its samples; None for other data
        self._is_first = True  # the next `fit`
        self._fetched: int | None = None  # batches of a new loader in mid-epoch, until one is trained
        self._meter = DataMeter()

    def after_load(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Note which data a checkpoint was loaded into."""
        _, self._dataset = _train(state)

    def state_dict(self) -> dict[str, Any]:
        """The random state of every rank, as bytes: a sharded checkpoint needs the same keys on any topology.

        Composer restores its own copy only between epochs, and hides it from callbacks.
        """
        return {'rng': _packed(reproducibility.get_rng_state()) if self.restore_rng else b''}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the random state of `state_dict`, to restore it before the first batch."""
        self._loaded_rng = state.get('rng', b'')

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Set the loader to the trainer's time, before Composer skips batches itself."""
        loader, dataset = _train(state)
        loaded, self._loaded_rng = self._loaded_rng, b''
        is_first, self._is_first = self._is_first, False
        last, self._dataset = self._dataset, dataset
        self._rng = self._batches_of_epoch = self._fetched = None
        self._meter = DataMeter()
        if loader is None or dataset is None:
            if last is not None:  # that position is not of this loader
                state.dataset_resumption.pop('train', None)
            return
        _check(state, loader, dataset)
        if dataset.skip and loader not in _counted:
            raise ConfigError(
                'A dataset that skips samples (`skip`) needs `streaming_data_spec(...)`: Composer would count its '
                'position without them.'
            )
        _followed.add(loader)
        duration = state.max_duration
        if isinstance(loader, StreamingDataLoader) and duration is not None and duration.unit == TimeUnit.EPOCH:
            loader.max_epochs = int(duration)
        if isinstance(loader, StreamingDataLoader):
            gpu = torch.cuda.current_device() if state.device.name == 'gpu' else None
            check_trainers_device(loader.device, torch.device('cpu') if gpu is None else torch.device('cuda', gpu))
            self._meter.follow({'': loader})
            self._meter.begin()
        _shorten_as_mosaicml(state, loader, dataset)
        length = state.dataloader_len
        is_new = length is not self._length_set  # from the trainer's caller, or from `len`
        if dataset.epochs_differ and length is not None and is_new and isinstance(loader, StreamingDataLoader):
            self._subset = int(length) if int(length) < loader.told_length else None
        self._is_checked = False
        time = state.timestamp
        is_replaced = not is_first and last is not dataset and int(time.batch_in_epoch) > 0
        if is_replaced:
            dataset.progress.load(0, 0)
        if is_replaced or (dataset.progress.fresh and (int(time.batch_in_epoch) or not int(time.epoch))):
            # A new loader in mid-epoch replaced another one, or its state was not loaded. Composer's `spin_dataloaders`
            # decides whether to skip in it, but skips in no loader once the position of an earlier one was set.
            state.dataset_resumption.pop('train', None)
            self._set_length(state, loader, dataset)
            self._fetched = 0 if int(time.batch_in_epoch) else None
            return
        while int(state.timestamp.epoch) < dataset.mixture.takeover.epoch:
            # The next epoch began when another mixture took over.
            state.timestamp = state.timestamp.to_next_epoch()
        time = state.timestamp
        epoch, sample = int(time.epoch), dataset.position_of(int(time.sample_in_epoch))
        dataset.progress.load(epoch, sample)
        state.dataset_resumption['train'] = True
        self._set_length(state, loader, dataset)
        if sample:
            self._shorten(state, dataset, _plan(loader, dataset, epoch, sample))
        rng = _unpacked(loaded) if loaded else None
        if is_first and int(time.batch) and dist.get_global_rank() == 0:
            ranks = None if rng is None else len(rng)
            print_line(describe_start([('', epoch, sample)], ranks, dist.get_world_size()))
        # At the beginning of an epoch Composer restores its own copy.
        if self.restore_rng and int(state.timestamp.batch_in_epoch):
            self._rng = rng

    def epoch_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Tell Composer the length of this epoch: skipped samples make it shorter than others."""
        loader, dataset = _train(state)
        if loader is not None and dataset is not None:
            dataset.take_growth()
            self._set_length(state, loader, dataset)

    def _set_length(self, state: State, loader: DataLoader[Any], dataset: StreamingDataset) -> None:
        """Set the length of the current epoch to its batches, or to the subset's if they are fewer."""
        if not (dataset.epochs_differ and dataset.is_counted):
            return
        batches = _plan(loader, dataset, int(state.timestamp.epoch), 0).total_batches
        batches = batches if self._subset is None else min(batches, self._subset)
        self._length_set = state.dataloader_len = Time(batches, TimeUnit.BATCH)

    def _shorten(self, state: State, dataset: StreamingDataset, rest: BatchPlan) -> None:
        """Shorten the resumed epoch by its finished batches, and count these in the trainer's time."""
        done = int(state.timestamp.batch_in_epoch)
        if dataset.is_counted:  # the global batch may have another size now
            done = rest.total_batches - rest.num_batches
        if state.dataloader_len is not None:
            self._batches_of_epoch = state.dataloader_len
            state.dataloader_len = max(0, int(state.dataloader_len) - done)
        if done != int(state.timestamp.batch_in_epoch):
            state.timestamp = state.timestamp.copy(batch_in_epoch=done)

    def before_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Restore the random state before the first batch is read, which may use it."""
        loader, dataset = _train(state)
        if self._fetched is not None and dataset is not None:
            if not dataset.progress.begun(rank=dataset.topology.rank):  # Composer did not skip epochs in it
                dataset.progress.load(int(state.timestamp.epoch), 0)
            self._fetched += 1
        # Composer has read the number of batches by now. Others, such as schedulers, need the whole epoch's.
        if self._batches_of_epoch is not None:
            state.dataloader_len = self._batches_of_epoch
            self._batches_of_epoch = None
        if self._rng is not None:
            reproducibility.load_rng_state(self._rng)
            if loader is None or not loader.num_workers:
                self._rng = None

    def after_dataloader(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Restore it again if that batch started workers, which draws a random number.

        In a new loader in mid-epoch, set the trainer's time to the place before its first trained batch: the time
        counted another loader's samples.
        """
        loader, dataset = _train(state)
        if self._fetched is not None and loader is not None and dataset is not None:
            skipped, self._fetched = self._fetched - 1, None
            plan = _plan(loader, dataset, int(state.timestamp.epoch), 0)
            sample = plan.end(skipped - 1) if skipped else plan.start
            state.timestamp = state.timestamp.copy(batch_in_epoch=skipped, sample_in_epoch=sample)
        if self._rng is not None:
            reproducibility.load_rng_state(self._rng)
            self._rng = None

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Compare the trainer's time with the loader, once for each `fit`."""
        loader, dataset = _train(state)
        if dataset is not None:
            sync_lane_states(dataset, int(state.timestamp.batch))
        if self._is_checked or dataset is None or not isinstance(loader, StreamingDataLoader):
            return
        self._is_checked = True
        counted = dataset.position_of(int(state.timestamp.sample_in_epoch))
        handed_out = loader.state_dict()['sample_in_epoch']
        if counted != handed_out:
            warn(
                f'Composer counts {counted} samples of this epoch, but the loader has handed out {handed_out}: a '
                f'checkpoint would continue at the wrong sample. Let `get_num_samples_in_batch` count samples of the '
                f'dataset, or leave it out; keep `spin_dataloaders` if a checkpoint is loaded without its dataset.',
                stacklevel=2,
            )

    def epoch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Move to the beginning of the next epoch, before Composer saves this one's last checkpoint."""
        self._rng = self._fetched = None
        _, dataset = _train(state)
        if dataset is not None:
            dataset.progress.load(int(state.timestamp.epoch), 0)

    def eval_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Pause the clock of waits."""
        self._meter.pause()

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Resume the clock of waits."""
        self._meter.resume()

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Print how long rank 0 waited for data, unless `DataStatistics` does."""
        is_said = any(isinstance(callback, DataStatistics) for callback in state.callbacks)
        if self._meter.loaders and not is_said and dist.get_global_rank() == 0:
            print_line(self._meter.waited())


def _train(state: State) -> tuple[DataLoader[Any], StreamingDataset] | tuple[None, None]:
    """The train loader and its dataset, if the dataset is headrace's. The loader may be a plain DataLoader."""
    loader = state.train_dataloader
    if isinstance(loader, DataLoader) and isinstance(loader.dataset, StreamingDataset):
        return loader, loader.dataset
    return None, None


def _shorten_as_mosaicml(state: State, loader: DataLoader[Any], dataset: StreamingDataset) -> None:
    """Cut an epoch in one of MosaicML Streaming's orders to the length that it has there, under Composer.

    These orders repeat samples so that all canonical nodes have the same number. The epoch can then have more batches
    than the length of MosaicML Streaming's loader, where Composer stops.
    """
    if isinstance(loader, StreamingDataLoader) and dataset.order_config.family.counts_repeats:
        assert loader.batch_size
        whole, rest = divmod(len(dataset), loader.batch_size)
        length = whole + (rest > 0 and loader.remainder != 'drop')
        if state.dataloader_len is not None and int(state.dataloader_len) > length:
            state.dataloader_len = length


def _plan(loader: DataLoader[Any], dataset: StreamingDataset, epoch: int, start: int) -> BatchPlan:
    if isinstance(loader, StreamingDataLoader):
        return loader.plan(epoch, start)
    return dataset.plan(epoch=epoch, start=start)


def _check(state: State, loader: DataLoader[Any], dataset: StreamingDataset) -> None:
    bind_topology(dataset)
    if isinstance(loader, StreamingDataLoader):
        check_batches(loader)
    if not dataset.has_length and state.dataloader_len is not None:
        batches = int(state.dataloader_len)
        size = batches * loader.global_batch_size if isinstance(loader, StreamingDataLoader) else 'as many sequences'
        raise ConfigError(
            f'Trainer(train_subset_num_batches={batches}) ends an epoch and begins another, but the epoch of the train '
            f'loader does not end: it is packed without `sequences_per_epoch`. Set `sequences_per_epoch` in its '
            f'`packing` to {size}, or leave train_subset_num_batches out.'
        )
    for evaluator in state.evaluators:
        if getattr(evaluator.dataloader.dataloader, 'dataset', None) is dataset:
            raise ConfigError(
                f'The train loader and evaluator {evaluator.label!r} share one StreamingDataset, so that evaluating '
                f'would move the training position. Make a dataset for each.'
            )
    mesh = state.device_mesh
    if mesh is not None and 'tensor_parallel' in (mesh.mesh_dim_names or ()):
        degree, replication = mesh['tensor_parallel'].size(), dataset.topology.replication
        if replication != degree:
            raise TopologyError(
                f'{degree} tensor-parallel ranks must train on the same samples, but the train loader has '
                f'replication {replication}. Set `replication: {degree}`.'
            )


def _packed(rng: list[dict[str, Any]]) -> bytes:
    plain = [{**state, 'numpy': (state['numpy'][0], state['numpy'][1].tolist(), *state['numpy'][2:])} for state in rng]
    file = io.BytesIO()
    torch.save(plain, file)
    return file.getvalue()


def _unpacked(packed: bytes) -> list[dict[str, Any]]:
    # `weights_only` runs no code from a checkpoint.
    return torch.load(io.BytesIO(packed), weights_only=True)
