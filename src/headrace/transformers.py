"""Hugging Face's Trainer with a `StreamingDataLoader`, whose position lies in each `checkpoint-N`.

The Trainer has Accelerate deal the samples of a dataset out to the ranks. A `StreamingDataLoader` has its rank's
samples already, so the Trainer takes it as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from headrace.errors import MissingDependencyError

try:
    from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise MissingDependencyError(
        'headrace.transformers needs the packages `transformers` and `accelerate`: pip install transformers accelerate.'
    ) from error

from headrace.accelerate import AccelerateLoader, topology_of
from headrace.dataset import StreamingDataLoader, without_padding
from headrace.dataset.batch_keys import BAD_SAMPLE, PADDING
from headrace.dataset.device import check_trainers_device
from headrace.dataset.tracker import describe_start
from headrace.errors import ConfigError, ResumeError
from headrace.metrics.meter import DataMeter, print_line
from headrace.order.topology import with_replication

__all__ = ['StreamingMixin', 'StreamingTrainer']

FILE = 'headrace.json'  # the position's file in a checkpoint's folder


class StreamingMixin:
    """Trains on `loader`. Put it before any Trainer: ``class Mine(StreamingMixin, SFTTrainer): ...``.

    `train(resume_from_checkpoint=...)` continues exactly, on any number of ranks that divides the global batch.
    `evaluate` and `predict` take a `StreamingDataLoader`, too, and `eval_dataset` may be a dict of them. They read its
    epoch 0, unless it has a `fixed_epoch`. Each sample counts once in metrics and in the loss, on any number of ranks.
    Rank 0 prints where a resumed training continues, and at the end how long it waited for data.

    Args:
        loader: the training data, in place of `train_dataset`.
        args: of the Trainer.
        kwargs: of the Trainer.

    Raises:
        ConfigError: the loader's dataset has a `batch_cost` or a `skip`, and `args` has no `max_steps`; or it follows
            `on_growth`.
    """

    def __init__(self, *args: Any, loader: StreamingDataLoader, **kwargs: Any) -> None:
        if loader.dataset.follows_growth:
            raise ConfigError(
                "Hugging Face's Trainer takes all epochs to have as many batches as the first, but with "
                '`on_growth` they differ. Leave it out, or train with Lightning, Composer, Accelerate or your own loop.'
            )
        super().__init__(*args, **kwargs)
        trainer: Any = self
        dataset = loader.dataset
        if dataset.epochs_differ:
            if trainer.args.max_steps <= 0:
                reason = 'skip' if dataset.run.settings.order.batch_cost is None else 'batch_cost'
                raise ConfigError(
                    "Hugging Face's Trainer takes all epochs to have as many batches as the first, but with "
                    f'`{reason}` they differ. Set `max_steps` of its arguments, which is {trainer.args.max_steps}; '
                    f'epochs then end where their data does.'
                )
            dataset.may_count = False
        # Otherwise it would read what was trained once more, only to leave it out.
        trainer.args.ignore_data_skip = True
        self.loader = self._bound(loader)
        self._evaluation: _EvaluationLoader | None = None
        trainer.add_callback(_Position(loader))

    def _bound(self, loader: StreamingDataLoader) -> StreamingDataLoader:
        topology, dataset = topology_of(self.accelerator), loader.dataset  # pyright: ignore[reportAttributeAccessIssue]
        check_trainers_device(loader.device, self.accelerator.device)  # pyright: ignore[reportAttributeAccessIssue]
        dataset.bind(with_replication(topology, dataset.replication, type(self).__name__))
        return loader

    def get_train_dataloader(self) -> StreamingDataLoader:
        """The loader as it is."""
        return self.loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """A `StreamingDataLoader` as it is, and other data as the Trainer does."""
        trainer, parent = cast('Any', self), cast('Any', super())
        data = trainer.eval_dataset if eval_dataset is None else eval_dataset
        data = trainer.eval_dataset[data] if isinstance(data, str) else data
        return (
            self._evaluated(data) if isinstance(data, StreamingDataLoader) else parent.get_eval_dataloader(eval_dataset)
        )

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """As `get_eval_dataloader`, for `predict`."""
        parent, data = cast('Any', super()), test_dataset
        return self._evaluated(data) if isinstance(data, StreamingDataLoader) else parent.get_test_dataloader(data)

    def _evaluated(self, data: StreamingDataLoader) -> StreamingDataLoader:
        if data is self.loader:
            raise ConfigError(
                'Evaluation would move the position of the training loader. Give it another StreamingDataLoader of the '
                'same data, with `fixed_epoch=0`.'
            )
        if getattr(self.args, 'use_legacy_prediction_loop', False):  # pyright: ignore[reportAttributeAccessIssue]
            raise ConfigError(
                "The Trainer's legacy prediction loop cannot leave out padding of a StreamingDataLoader. Set "
                '`use_legacy_prediction_loop` of its arguments to False, which is True.'
            )
        data.fixed_epoch = data.fixed_epoch or 0
        return self._bound(data)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, with each sample of a `StreamingDataLoader` once."""
        parent, trainer = cast('Any', super()), cast('Any', self)
        if not isinstance(dataloader, StreamingDataLoader):
            return parent.evaluation_loop(dataloader, *args, **kwargs)
        self._evaluation = _EvaluationLoader(dataloader, trainer.accelerator, move_to_device=False)
        gather = partial(self._evaluation.gather_for_metrics, use_gather_object=trainer.args.eval_use_gather_object)
        trainer.gather_function = gather
        try:
            return parent.evaluation_loop(self._evaluation, *args, **kwargs)
        finally:
            self._evaluation, trainer.gather_function = None, trainer.accelerator.gather_for_metrics

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; the loss weighs as much as the batch has rows."""
        loss, logits, labels = cast('Any', super()).prediction_step(*args, **kwargs)
        if self._evaluation is not None and loss is not None:
            loss = loss.mean().expand(len(self._evaluation.counted_rows))
        return loss, logits, labels

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; in evaluation a rank's loss is its batch's own, which the Trainer scales for gradients."""
        if self._evaluation is not None:
            args, kwargs = args[:3], kwargs | {'num_items_in_batch': None}
        return cast('Any', super()).compute_loss(*args, **kwargs)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train, and continue the data where the checkpoint was saved.

        Raises:
            ResumeError: the checkpoint has no position, or one of other data.
        """
        parent: Any = super()
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)  # pyright: ignore[reportAttributeAccessIssue]
        if resume_from_checkpoint:
            path = Path(resume_from_checkpoint, FILE)
            if not path.is_file():
                raise ResumeError(
                    f'A checkpoint of this Trainer holds the position in its data in {FILE}, but there is no {path}. '
                    f'Resume from a checkpoint that this Trainer saved.'
                )
            self.loader.load_state_dict(json.loads(path.read_text()))
            if not (topology := self.loader.dataset.topology).rank:
                print_line(describe_start([('', *self.loader.dataset.next_place)], None, topology.world_size))
        return parent.train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)


class StreamingTrainer(StreamingMixin, Trainer):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A `Trainer` on a `StreamingDataLoader`: ``StreamingTrainer(model, arguments, loader=loader)``."""


class _EvaluationLoader(AccelerateLoader):
    """Batches without padding. A rank whose rows are all padding keeps them, because its model has to run too."""

    def __init__(self, loader: StreamingDataLoader, *args: Any, **kwargs: Any) -> None:
        super().__init__(loader, *args, **kwargs)
        self.dataset = range(loader.plan(loader.fixed_epoch).epoch_samples)  # its length is what the Trainer looks for

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            if any(self.counted_rows):
                self.counted_rows = [True] * sum(self.counted_rows)
                yield without_padding(batch, self.loader.own_samples, self.loader.own_bad_rows)
            else:
                yield {key: value for key, value in batch.items() if key not in (PADDING, BAD_SAMPLE)}


class _Position(TrainerCallback):
    """Writes the loader's position into each checkpoint, and says at the end how long rank 0 waited for data."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        self.loader, self.meter = loader, DataMeter()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.meter.follow({'': self.loader})
        self.meter.begin()

    def on_train_end(self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any) -> None:
        if state.is_world_process_zero:
            print_line(self.meter.waited())

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if state.is_world_process_zero or (args.save_on_each_node and state.is_local_process_zero):
            path = Path(str(args.output_dir), f'checkpoint-{state.global_step}', FILE)
            path.write_text(json.dumps(self.loader.state_dict()))
