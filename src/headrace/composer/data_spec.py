"""Composer's `DataSpec` of a streaming loader: its counts of samples and tokens, and its microbatches."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from composer.core import DataSpec, Evaluator
from composer.utils import dist
from torch.utils.data import DataLoader, DistributedSampler

from headrace.composer.position import bind_topology, check_batches, composer_topology, is_followed, knows_skips
from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.dataset.batch_keys import cut_rows, outline, possible_rows
from headrace.errors import ConfigError
from headrace.errors.display import Facts, FactsRepr
from headrace.errors.redaction import warn
from headrace.metrics.tokens import TOKEN_COLUMNS, count_places
from headrace.mixing import Config, LoaderConfig, WorkerConfig, build_loader, load_config
from headrace.tensors.padding import length_key


def count_rows(batch: Any, *, expected: int | None = None) -> int:
    """The number of rows. `expected`: The number to prefer if the shape allows several."""
    candidates = possible_rows(batch)
    if not candidates:
        raise ConfigError(
            f'The number of samples in a batch cannot be derived from its shape: {outline(batch)}. Pass '
            f'`get_num_samples_in_batch` and `split_batch` to `streaming_data_spec`.'
        )
    return expected if expected in candidates else candidates[0]


def split_rows(batch: Any, size: int | float) -> list[Any]:
    """Parts of at most `size` rows, in order. Tensors are views of the batch's."""
    if int(size) != size or size < 1:
        raise ConfigError(
            f'A microbatch holds a whole number of samples, at least 1, but its size is {size}. Set '
            f'`device_train_microbatch_size` so, or pass `split_batch` to `streaming_data_spec`.'
        )
    rows, size = count_rows(batch), int(size)
    if rows <= size:
        return [batch]
    return [cut_rows(batch, begin, min(begin + size, rows), rows) for begin in range(0, rows, size)]


def first_rows(batch: Any, count: int, rows: int) -> Any:
    return cut_rows(batch, 0, count, rows)


def count_composer_tokens(batch: Any, column: str | None, *, count_padding: bool = True) -> int:
    """Tokens in a batch: places of the first two dimensions, or the lengths of ragged rows.

    `column`: The column that holds tokens. None: ``input_ids`` or ``tokens``; a batch without them has 0 tokens.
    `count_padding`: Whether padding counts. If not, the batch must have ``attention_mask``, ``num_tokens`` as packed
    batches have, or the column's lengths as a loader's ``pad`` adds them.
    """
    if not count_padding:
        return _count_without_padding(batch, column)
    if not isinstance(batch, Mapping) or (column is not None and column not in batch):
        if column is None:
            return 0
        raise ConfigError(f'`token_column` must name a column of the batch, but it is {column!r}: {outline(batch)}.')
    columns = cast('Mapping[Any, Any]', batch)
    names = [name for name in ((column,) if column is not None else TOKEN_COLUMNS) if name in columns]
    return (count_places(columns[names[0]]) or 0) if names else 0


def _count_without_padding(batch: Any, column: str | None) -> int:
    lengths = map(length_key, TOKEN_COLUMNS if column is None else (column,))
    for name in ('num_tokens', 'attention_mask', *lengths) if isinstance(batch, Mapping) else ():
        if name in batch:
            return int(cast('Mapping[Any, Any]', batch)[name].sum())
    raise ConfigError(
        f'`count_padding=False` needs `attention_mask` or `num_tokens` in the batch, which is {outline(batch)}. Put '
        f'one there, have the loader `pad` the column, or pass `get_num_tokens_in_batch`.'
    )


Source: TypeAlias = (
    str | os.PathLike[str] | Mapping[str, Any] | Config | LoaderConfig | StreamingDataset | StreamingDataLoader
)
_SECTIONS = ('train', 'eval', 'test', 'predict')
_NO_OVERRIDES = '`overrides` go over a file or its content; give them to `load_config` together with it.'


def streaming_data_spec(
    source: Source | None = None,
    section: str = 'train',
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    dataset_class: Callable[..., StreamingDataset] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    generator: torch.Generator | None = None,
    token_column: str | None = None,
    count_padding: bool = True,
    batch_transforms: Callable[[Any], Any] | None = None,
    microbatch_transforms: Callable[[Any], Any] | None = None,
    split_batch: Callable[[Any, int | float], Sequence[Any]] | None = None,
    get_num_samples_in_batch: Callable[[Any], int | float] | None = None,
    get_num_tokens_in_batch: Callable[[Any], int | dict[str, int]] | None = None,
    **options: Any,
) -> StreamingDataSpec:
    """A ``train_dataloader`` or ``eval_dataloader`` for `composer.Trainer`.

    Give the trainer ``callbacks=[StreamingPosition()]`` too: Composer does not tell a DataSpec about epochs and
    checkpoints.

    Args:
        source: A YAML file, its content or its configuration; a StreamingDataset; a StreamingDataLoader. By default,
            give the keys of a loader's configuration as keyword arguments.
        section: The loader of the file: ``train``, ``eval``, ``test`` or ``predict``, and the name of one of several
            (``eval.code``). All but ``train`` are for evaluation: every pass is epoch 0, and padding does not count.
        overrides: As in `headrace.mixing.load_config`, for a file or its content.
        dataset_class: As in `headrace.mixing.build_loader`.
        collate_fn: As in `headrace.mixing.build_loader`.
        worker_init_fn: As in `headrace.mixing.build_loader`.
        generator: As in `headrace.mixing.build_loader`.
        token_column: The column whose tokens are counted. None: ``input_ids`` or ``tokens``.
        count_padding: Whether padding tokens count. If not, the batch must have ``attention_mask``, ``num_tokens`` as
            packed batches have, or the column's lengths as a loader's ``pad`` adds them.
        batch_transforms: As `composer.DataSpec`'s.
        microbatch_transforms: As `composer.DataSpec`'s.
        split_batch: As `composer.DataSpec`'s; the default also splits texts, ragged and nested columns.
        get_num_samples_in_batch: As `composer.DataSpec`'s. Composer saves its sum as the position. The default asks the
            loader, so the shape of collated batches does not matter.
        get_num_tokens_in_batch: As `composer.DataSpec`'s.
        **options: Without `source`, the keys of a loader such as ``remote`` and ``num_workers``; ``batch_size`` stands
            for ``device_batch_size``. With a dataset, the loader's arguments.

    Raises:
        ConfigError: The configuration breaks a rule, holds no such section, or gives the batch size twice.
        TopologyError: The ranks do not divide the global batch.
    """
    loader = _loader(
        source,
        section,
        overrides,
        options,
        dataset_class=dataset_class,
        collate_fn=collate_fn,
        worker_init_fn=worker_init_fn,
        generator=generator,
    )
    return StreamingDataSpec(
        loader,
        is_evaluation=section != 'train',
        is_prediction=section.partition('.')[0] == 'predict',
        token_column=token_column,
        count_padding=count_padding,
        batch_transforms=batch_transforms,
        microbatch_transforms=microbatch_transforms,
        split_batch=split_batch,
        get_num_samples_in_batch=get_num_samples_in_batch,
        get_num_tokens_in_batch=get_num_tokens_in_batch,
    )


def streaming_evaluators(
    source: str | os.PathLike[str] | Mapping[str, Any] | Config,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    metric_names: list[str] | None = None,
    subset_num_batches: int | None = None,
    eval_interval: Any = None,
    device_eval_microbatch_size: int | float | str | None = None,
    **arguments: Any,
) -> list[Evaluator]:
    """One `composer.Evaluator` for each loader of the ``eval`` section, labelled by its name.

    Args:
        source: A YAML file, its content or the configuration made from it.
        overrides: As in `headrace.mixing.load_config`.
        metric_names: As `composer.Evaluator`'s.
        subset_num_batches: As `composer.Evaluator`'s.
        eval_interval: As `composer.Evaluator`'s.
        device_eval_microbatch_size: As `composer.Evaluator`'s.
        **arguments: Arguments of `streaming_data_spec`.

    Raises:
        ConfigError: As in `streaming_data_spec`.
        TopologyError: As in `streaming_data_spec`.
    """
    if overrides and isinstance(source, Config):
        raise ConfigError(_NO_OVERRIDES)
    config = source if isinstance(source, Config) else load_config(source, overrides=overrides)
    if not config.eval:
        raise ConfigError('The configuration has no `eval` section to make evaluators of.')
    return [
        Evaluator(
            label=loader.name,
            dataloader=streaming_data_spec(loader, 'eval', **arguments),
            metric_names=metric_names,
            subset_num_batches=subset_num_batches,
            eval_interval=eval_interval,
            device_eval_microbatch_size=device_eval_microbatch_size,
        )
        for loader in config.eval
    ]


class StreamingDataSpec(DataSpec, FactsRepr):
    """A `composer.DataSpec` that takes the number of samples from the loader, not from the batch's shape.

    Args:
        loader: The loader.
        is_evaluation: Whether each pass is epoch 0 from its beginning, and padding does not count.
        is_prediction: Whether to cut off padding before the trainer sees it, since `Trainer.predict` does not.
        token_column, count_padding: See `streaming_data_spec`.
        batch_transforms, microbatch_transforms, split_batch, get_num_samples_in_batch, get_num_tokens_in_batch: As
            `composer.DataSpec`'s.
    """

    def __init__(
        self,
        loader: StreamingDataLoader,
        *,
        is_evaluation: bool = False,
        is_prediction: bool = False,
        token_column: str | None = None,
        count_padding: bool = True,
        batch_transforms: Callable[[Any], Any] | None = None,
        microbatch_transforms: Callable[[Any], Any] | None = None,
        split_batch: Callable[[Any, int | float], Sequence[Any]] | None = None,
        get_num_samples_in_batch: Callable[[Any], int | float] | None = None,
        get_num_tokens_in_batch: Callable[[Any], int | dict[str, int]] | None = None,
    ) -> None:
        bind_topology(loader.dataset)
        loader.plan(0)  # raises if the ranks cannot share the global batch
        if not is_evaluation:
            check_batches(loader)
            # Composer caps `train_subset_num_batches` by the length, so the length must not be a short epoch's.
            loader.counts_skipped = True
        if is_evaluation:
            loader.fixed_epoch = 0  # Composer may abandon a pass after any batch
            loader.trainers_sampler = _PaddingSampler(self)
        self.loader = loader
        self.is_evaluation = is_evaluation
        self.token_column = token_column
        self.count_padding = count_padding
        self._transforms = batch_transforms
        self._count = get_num_samples_in_batch
        self.is_prediction = is_prediction
        self.has_padding = False
        """Whether the last row of the current batch is padding that must not count."""
        self._batch_counts: _BatchCounts | None = None
        self._rows = 0
        self._warned = False
        knows_skips(loader)
        super().__init__(
            loader,
            num_samples=loader.plan(0).epoch_samples,
            batch_transforms=self._received,
            microbatch_transforms=microbatch_transforms,
            split_batch=split_rows if split_batch is None else split_batch,
            get_num_samples_in_batch=self._samples,
            get_num_tokens_in_batch=get_num_tokens_in_batch or self._count_tokens,
        )

    def _received(self, batch: Any) -> Any:
        """Composer's first call for a batch that the loader delivered."""
        self._batch_counts = counts = _BatchCounts.last_of(self.loader)
        self._rows = counts.rows
        self.has_padding = self.is_evaluation and counts.samples < counts.rows
        if self.is_prediction and self.has_padding and counts.samples:
            # A rank with nothing else keeps one row to compute with.
            if count_rows(batch, expected=counts.rows) == counts.rows:
                batch = first_rows(batch, counts.samples, counts.rows)
                self.has_padding = False
        elif not (self.is_evaluation or self._warned or is_followed(self.loader)):
            self._warned = True
            warn(
                'Composer trains on a headrace loader without `headrace.composer.StreamingPosition()` in '
                '`Trainer(callbacks=[...])`. Resuming in mid-epoch continues exactly, but neither the random state nor '
                '`train_subset_num_batches` survives, and a later `fit` does not continue where this one ends.',
                stacklevel=2,
            )
        return batch if self._transforms is None else self._transforms(batch)

    def _samples(self, batch: Any) -> int | float:
        # Composer asks once about the whole batch, for its position, then about microbatches, to weight the loss.
        counts, self._batch_counts = self._batch_counts, None
        if counts is None and self.loader.dataset.weigh is not None and not (self.is_evaluation or self._count):
            return count_rows(batch) / self._rows  # Composer weights ranks by it, which the rows' own weights do
        counted = self._count_samples(batch, counts) if self._count is None else self._count(batch)
        topology = self.loader.dataset.topology
        replication = topology.replication
        if counts is not None and counts.skipped and not self.is_evaluation and topology.replica == 0:
            # Skipped samples belong to the position. One replica counts them for all.
            counted += counts.skipped if replication == 1 else counts.skipped / replication
        if not self.has_padding or replication == 1:
            return counted
        # Composer ignores replication: it subtracts a whole sample from a padded batch, and needs whole numbers in a
        # microbatch.
        return round(counted * replication) if counts is None else counted + 1 - 1 / replication

    def _facts(self) -> Facts:
        return Facts(type(self).__name__, self.loader._facts().rows)

    def _count_samples(self, batch: Any, counts: _BatchCounts | None) -> int | float:
        """Samples of a batch or microbatch; each of the ranks that share samples counts its part."""
        # The plan knows whole batches only; a microbatch is counted by its shape.
        samples = count_rows(batch) if counts is None else counts.rows if self.has_padding else counts.samples
        replication = self.loader.dataset.topology.replication
        return samples if replication == 1 else samples / replication

    def _count_tokens(self, batch: Any) -> int:
        topology = self.loader.dataset.topology
        tokens = count_composer_tokens(batch, self.token_column, count_padding=self.count_padding)
        peer = topology.rank % topology.replication
        # Composer takes whole numbers only; the ranks that share samples add up to the total.
        return tokens * (peer + 1) // topology.replication - tokens * peer // topology.replication


class _BatchCounts(NamedTuple):
    rows: int  # rows read, the same on every rank
    samples: int  # rows without the padding, which comes last
    skipped: int = 0  # positions that all ranks skip together with this batch

    @classmethod
    def last_of(cls, loader: StreamingDataLoader) -> _BatchCounts:
        """The last batch that a loader delivered, from its plan; empty before the first batch."""
        if loader.handed_out is None:
            return cls(rows=0, samples=0)
        plan, number = loader.handed_out
        return cls(rows=len(plan.positions(number)), samples=plan.own_samples(number), skipped=plan.skipped(number))


class _PaddingSampler(DistributedSampler[Any]):
    """A sampler that makes Composer exclude padding from metrics.

    The last ranks of a `DistributedSampler` repeat a sample at the end of the last batch. Composer cuts that sample off
    the last microbatch. If nothing else is left, it runs the model but updates no metric, so that all ranks run the
    model equally often. With headrace, other ranks have the padding, also at most one row each. So each rank reports
    for itself that all ranks are padded, or none. A length of 0 makes Composer ask at every batch.
    """

    def __init__(self, spec: StreamingDataSpec) -> None:
        # PyTorch's constructor needs the ranks, so it is not called.
        self._spec = weakref.ref(spec)  # a cycle would leave the end of workers to the garbage collector
        self.dataset = ()  # pyright: ignore[reportAttributeAccessIssue] - of length 0

    @property
    def total_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ranks whose last batch is padded: all or none, by this rank's own batch."""
        spec = self._spec()
        return dist.get_world_size() if spec is not None and spec.has_padding else 0

    def set_epoch(self, epoch: int) -> None:
        """Ignore the epoch: evaluation has only one."""

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _loader(
    source: Source | None,
    section: str,
    overrides: Sequence[str] | Mapping[str, Any],
    options: dict[str, Any],
    **arguments: Any,
) -> StreamingDataLoader:
    if section.partition('.')[0] not in _SECTIONS:
        raise ConfigError(f'`section` must be one of {", ".join(_SECTIONS)}, with a name after a dot, got {section!r}.')
    given = {name: value for name, value in arguments.items() if value is not None}
    if overrides and (source is None or isinstance(source, Config | LoaderConfig | StreamingDataset | DataLoader)):
        raise ConfigError(_NO_OVERRIDES)
    if isinstance(source, StreamingDataLoader):
        _refuse({**options, **given}, 'a StreamingDataLoader is complete')
        return source
    if isinstance(source, StreamingDataset):
        if 'dataset_class' in given:
            _refuse({'dataset_class': None}, 'the dataset is there')
        bind_topology(source)
        return StreamingDataLoader(source, **options, **given)
    if source is None:
        config = _config_of_options(options)
    else:
        _refuse(options, 'a configuration is complete; give `overrides`')
        if isinstance(source, (str, os.PathLike, Mapping)):
            source = load_config(source, overrides=overrides)
        config = _section(source, section) if isinstance(source, Config) else source
    return build_loader(config, topology=composer_topology(config.replication or 1), **arguments)


def _refuse(options: Mapping[str, Any], reason: str) -> None:
    if options:
        twice = ' That would give the batch size twice.' if any('batch_size' in name for name in options) else ''
        raise ConfigError(f'{", ".join(sorted(options))} cannot be given here: {reason}.{twice}')


def _config_of_options(options: dict[str, Any]) -> LoaderConfig:
    sizes = [name for name in ('batch_size', 'device_batch_size', 'global_batch_size') if name in options]
    if len(sizes) > 1:
        raise ConfigError(f'The batch size is given twice, as {" and ".join(f"`{name}`" for name in sizes)}; keep one.')
    if 'batch_size' in options:
        options = {**options, 'device_batch_size': options['batch_size']}
        del options['batch_size']
    of_workers = {field.name for field in fields(WorkerConfig)}
    workers = {name: value for name, value in options.items() if name in of_workers}
    loader = {name: value for name, value in options.items() if name not in of_workers}
    if workers:
        loader['loader'] = {**loader.get('loader', {}), **workers}
    config = load_config({'train': loader}).train
    assert config is not None
    return config


def _section(config: Config, section: str) -> LoaderConfig:
    kind, _, name = section.partition('.')
    loaders = ((config.train,) if config.train else ()) if kind == 'train' else getattr(config, kind)
    chosen = [loader for loader in loaders if not name or loader.name == name]
    if len(chosen) == 1:
        return chosen[0]
    names = ', '.join(f'{kind}.{loader.name}' for loader in loaders) or 'none'
    raise ConfigError(
        f'`section` must name one loader of the configuration, got {section!r}; of {kind} there are: {names}.'
    )
