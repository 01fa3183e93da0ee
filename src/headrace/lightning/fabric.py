"""Loaders for Lightning Fabric: ranks from the Fabric, batches on its device, the position in its checkpoints."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from headrace.config.build import loader_options
from headrace.dataset.arguments import given_names, knows_given_names
from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.device import check_trainers_device
from headrace.dataset.loader import StreamingDataLoader
from headrace.dataset.tracker import PositionTracker
from headrace.errors import ConfigError
from headrace.lightning.sources import Configuration, LoaderSource, source_of_loader, sources_of_config
from headrace.lightning.topology import TopologyOverride, topology_of
from headrace.mixing import LoaderConfig
from headrace.order.topology import with_replication

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from lightning.fabric import Fabric

    from headrace.order import Decision, Topology

Single: TypeAlias = LoaderConfig | StreamingDataset | StreamingDataLoader  # Source of one loader


class FabricLoader:
    """A `StreamingDataLoader` whose batches lie on a Fabric's device. `setup` makes it.

    The loader of `fabric.setup_dataloaders` has no state. This one iterates it, and saves and restores the position of
    the `StreamingDataLoader` beneath. Put it into the state for `fabric.save` and `fabric.load`.

    Args:
        loader: the loader, bound to the Fabric's ranks.
        fabric: the Fabric, launched.
        move_to_device: whether batches are moved to the Fabric's device.
    """

    def __init__(self, loader: StreamingDataLoader, fabric: Fabric, *, move_to_device: bool = True) -> None:
        self.loader = loader
        """The loader itself, with its plan and sizes."""
        check_trainers_device(loader.device, fabric.device)
        # Fabric would set the number of passes as epoch. After a state was loaded again, that is another number.
        loader.trainers_sampler = None
        # The plan selects this rank's samples, so no sampler is needed.
        self._moved = fabric.setup_dataloaders(loader, use_distributed_sampler=False, move_to_device=move_to_device)

    @property
    def dataset(self) -> StreamingDataset:
        """The dataset that is read."""
        return self.loader.dataset

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter` begins, or continues after a resume."""
        return self.loader.next_pass()[0]

    @property
    def global_batch_size(self) -> int:
        """Samples of a batch over all ranks."""
        return self.loader.global_batch_size

    @property
    def own_samples(self) -> int:
        """Rows of the last batch without padding; see `StreamingDataLoader.own_samples`."""
        return self.loader.own_samples

    @property
    def own_bad_rows(self) -> npt.NDArray[np.bool_]:
        """Mask of the bad samples in the last batch; see `StreamingDataLoader.own_bad_rows`."""
        return self.loader.own_bad_rows

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Batches of the next epoch, or of the rest of a resumed one, on the device."""
        return iter(self._moved)

    def state_dict(self) -> dict[str, int | str]:
        """The position after the last batch, the same on every rank."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next `iter` continue after `state`; after the end of an epoch, with the next epoch.

        Raises:
            ResumeError: the state is malformed, or belongs to other data, another mixture or another order.
        """
        self.loader.load_state_dict(state)

    def rescale(self, topology: Topology, position: Mapping[str, Any] | int | None = None) -> None:
        """Have other ranks read on; see `StreamingDataLoader.rescale`."""
        self.loader.rescale(topology, position)

    def set_proportions(self, proportions: Mapping[str, float], *, by: str) -> Decision:
        """Change the shares of the streams; see `StreamingDataLoader.set_proportions`."""
        return self.loader.set_proportions(proportions, by=by)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FabricLoaders:
    """The loaders of a whole configuration."""

    train: FabricLoader | None
    val: dict[str, FabricLoader]
    """The loaders of `eval` by name; the name of a single unnamed one is its section: 'val', 'test', 'predict'."""
    test: dict[str, FabricLoader]
    predict: dict[str, FabricLoader]


@overload
def setup(
    fabric: Fabric,
    data: Single,
    *,
    evaluation: bool = ...,
    replication: int | None = ...,
    topology: TopologyOverride | None = ...,
    move_to_device: bool = ...,
    collate_fn: Callable[[list[Any]], Any] | None = ...,
    worker_init_fn: Callable[[int], None] | None = ...,
    dataset_class: Callable[..., StreamingDataset] | None = ...,
    **options: Any,
) -> FabricLoader: ...


@overload
def setup(
    fabric: Fabric,
    data: Configuration,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = ...,
    replication: int | None = ...,
    topology: TopologyOverride | None = ...,
    move_to_device: bool = ...,
    collate_fn: Callable[[list[Any]], Any] | None = ...,
    worker_init_fn: Callable[[int], None] | None = ...,
    dataset_class: Callable[..., StreamingDataset] | None = ...,
) -> FabricLoaders: ...


@knows_given_names
def setup(
    fabric: Fabric,
    data: Single | Configuration,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    evaluation: bool = False,
    replication: int | None = None,
    topology: TopologyOverride | None = None,
    move_to_device: bool = True,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    dataset_class: Callable[..., StreamingDataset] | None = None,
    **options: Any,
) -> FabricLoader | FabricLoaders:
    """Loaders for a launched Fabric, in place of `fabric.setup_dataloaders`.

    Ranks and nodes come from the Fabric, never from the environment, and no process group is made. The returned
    loaders save their position: `fabric.save(path, {'model': model, 'data': loader})`. `fabric.load` restores it on any
    number of ranks, nodes and workers.

    Args:
        fabric: the Fabric, launched.
        data: a YAML file, its content as a mapping, or a configuration from `headrace.mixing.load_config`: all its
            loaders. Or one loader's `headrace.mixing.LoaderConfig`, a `StreamingDataset`, or a `StreamingDataLoader`.
        overrides: changes to a file or a mapping, such as `['train.loader.num_workers=8']`.
        evaluation: give epoch 0's batches in every pass, and mark padding in the last batch. Only for one loader that
            is not ready-made; the evaluation loaders of a file always do so.
        replication: consecutive ranks that get the same samples, if the Fabric's strategy does not know it.
        topology: as `StreamingDataModule`'s; a function is called with the Fabric.
        move_to_device: whether batches are moved to the Fabric's device, as by `fabric.setup_dataloaders`.
        collate_fn: as PyTorch's; not for a ready-made loader.
        worker_init_fn: as PyTorch's; not for a ready-made loader.
        dataset_class: class to use instead of `StreamingDataset`, for configurations.
        options: arguments of `StreamingDataLoader`, such as `batch_size` and `num_workers`, for a dataset.

    Returns:
        The loader; for a file, a mapping or a `Config`, all its loaders.

    Raises:
        ConfigError: the configuration or the arguments break a rule, or the Fabric is not launched; or ``drop_last``
            leaves a training loader no batch; or `device` is another one than the Fabric's.
        TopologyError: the ranks do not divide the global batch size, or the strategy knows another replication.
    """
    given = given_names()
    if fabric.world_size > 1 and not getattr(fabric, '_launched', True):
        raise ConfigError('Call `fabric.launch()` before `setup`: until then, no process knows which rank it is.')
    _restore_from_sharded_checkpoints(fabric)
    ranks = with_replication(topology_of(fabric, topology), replication, 'setup')
    callables = {'collate_fn': collate_fn, 'worker_init_fn': worker_init_fn}
    beside = {**{name: value for name, value in callables.items() if value is not None}, **options}
    unused = [name for name, value in {'overrides': overrides, 'dataset_class': dataset_class}.items() if value]
    evaluates = ['evaluation'] if 'evaluation' in given else []

    if isinstance(data, StreamingDataLoader):
        _refuse(data, [*beside, *evaluates, *unused])
        data.dataset.bind(with_replication(ranks, data.dataset.replication, 'setup'))
        return FabricLoader(data, fabric, move_to_device=move_to_device)
    if isinstance(data, StreamingDataset):
        _refuse(data, unused)
        source = LoaderSource('setup', '', data, loader_options({'num_workers': 0, **beside}))
        return FabricLoader(_loader(source, ranks, evaluation=evaluation), fabric, move_to_device=move_to_device)
    _refuse(data, [*options])
    if isinstance(data, LoaderConfig):
        _refuse(data, ['overrides'] if overrides else [])
        source = source_of_loader('setup', '', data, callables, dataset_class)
        return FabricLoader(_loader(source, ranks, evaluation=evaluation), fabric, move_to_device=move_to_device)
    _refuse(data, evaluates)
    sections = sources_of_config(data, overrides=overrides, callables=callables, dataset_class=dataset_class)
    made = {
        section: {
            cast('LoaderConfig', source.source).name or section: FabricLoader(
                _loader(source, ranks, evaluation=section != 'train'), fabric, move_to_device=move_to_device
            )
            for source in sources
        }
        for section, sources in sections.items()
    }
    train = next(iter(made['train'].values()), None)
    return FabricLoaders(train=train, val=made['val'], test=made['test'], predict=made['predict'])


def _restore_from_sharded_checkpoints(fabric: Fabric) -> None:
    """Have strategies for sharded models load the position, not put its state into its place. May be repeated."""
    strategy: Any = fabric.strategy
    load = strategy.load_checkpoint
    if hasattr(load, 'restores_positions'):
        return

    @functools.wraps(load)
    def load_checkpoint(path: Any, state: Any = None, *args: Any, **kwargs: Any) -> Any:
        objects = dict(cast('Mapping[str, Any]', state)) if isinstance(state, dict) else {}
        remainder = load(path, state, *args, **kwargs)
        for name, there in objects.items():
            if isinstance(there, FabricLoader | StreamingDataLoader | PositionTracker) and state[name] is not there:
                there.load_state_dict(state[name])
                state[name] = there
        return remainder

    load_checkpoint.restores_positions = True  # pyright: ignore[reportAttributeAccessIssue]
    strategy.load_checkpoint = load_checkpoint


def _loader(source: LoaderSource, topology: Topology, *, evaluation: bool) -> StreamingDataLoader:
    dataset, options = source.open(topology), dict(source.options)
    if evaluation:
        options['fixed_epoch'] = 0
        if not options.get('drop_last'):
            options.setdefault('remainder', dataset.evaluation_remainder)
    loader = StreamingDataLoader(dataset, **options)
    if not evaluation:
        dataset.check_batches(source.label, loader.global_batch_size, loader.remainder)
    return loader


def _refuse(data: object, given: Sequence[str]) -> None:
    if given:
        raise ConfigError(
            f'setup: {", ".join(given)} cannot be given together with a {type(data).__name__}, which says it itself '
            f'or has no use for it.'
        )
