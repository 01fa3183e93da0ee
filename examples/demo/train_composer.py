"""A rank program: the demo's model under Composer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer.core import Callback, State
from composer.loggers import Logger
from composer.models import ComposerModel
from composer.trainer import Trainer
from composer.utils import dist
from torch import Tensor
from typing_extensions import override

from examples.demo.assignment import read_assignment
from examples.demo.model import make_model, make_optimizer, next_byte_loss
from examples.demo.records import Recorder
from headrace.composer import StreamingPosition, streaming_data_spec


class _Gpt(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    @override
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return next_byte_loss(self.model, batch['tokens'])

    @override
    def loss(self, outputs: Tensor, batch: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return outputs


class _Record(Callback):
    """Writes down each step when it is done. Composer saves checkpoints after it, so none precedes its records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recorder: Recorder | None = None

    @override
    def fit_start(self, state: State, logger: Logger) -> None:
        self._recorder = Recorder(self._folder, dist.get_global_rank())
        self._recorder.start(step=int(state.timestamp.batch), world_size=dist.get_world_size())

    @override
    def batch_end(self, state: State, logger: Logger) -> None:
        assert self._recorder is not None
        assert state.total_loss_dict is not None
        self._recorder.trained(
            step=int(state.timestamp.batch),
            epoch=int(state.timestamp.epoch),
            ids=state.batch['id'].tolist(),
            loss=state.total_loss_dict['loss/train/total'],
        )


def main() -> None:
    """Train as assigned."""
    assignment = read_assignment()
    model = _Gpt()
    trainer = Trainer(
        model=model,
        optimizers=make_optimizer(model),
        train_dataloader=streaming_data_spec(assignment.mix, overrides=assignment.overrides),
        max_duration=f'{assignment.epochs}ep',
        device='cpu',
        precision='fp32',
        callbacks=[StreamingPosition(), _Record(Path(assignment.folder))],
        save_folder=assignment.checkpoints,
        save_filename='step{batch}.pt',
        save_latest_filename=None,
        save_interval=f'{assignment.checkpoint_every}ba',
        load_path=assignment.checkpoint,
        load_progress_bar=False,
        progress_bar=False,
    )
    trainer.fit()


if __name__ == '__main__':
    main()
