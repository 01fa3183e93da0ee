"""A rank program: the demo's model under Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from examples.demo.assignment import read_assignment
from examples.demo.model import make_model, make_optimizer, next_byte_loss
from examples.demo.records import Recorder
from headrace.lightning import StreamingDataModule


class _Gpt(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    @override
    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return next_byte_loss(self.model, batch['tokens'])

    @override
    def configure_optimizers(self) -> Optimizer:
        return make_optimizer(self.model)


class _Record(Callback):
    """Writes down each step when it is done. ModelCheckpoint runs after it, so no checkpoint precedes its records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recorder: Recorder | None = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._recorder = Recorder(self._folder, trainer.global_rank)
        self._recorder.start(step=trainer.global_step, world_size=trainer.world_size)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        assert self._recorder is not None
        self._recorder.trained(
            step=trainer.global_step,
            epoch=trainer.current_epoch,
            ids=batch['id'].tolist(),
            loss=outputs['loss'].item(),
        )


def main() -> None:
    """Train as assigned."""
    assignment = read_assignment()
    data = StreamingDataModule(assignment.mix, overrides=assignment.overrides)
    checkpoints = ModelCheckpoint(
        assignment.checkpoints,
        filename='step{step}',
        auto_insert_metric_name=False,
        every_n_train_steps=assignment.checkpoint_every,
        save_top_k=-1,
    )
    trainer = Trainer(
        accelerator='cpu',
        devices=assignment.ranks,
        strategy='ddp' if assignment.ranks > 1 else 'auto',
        max_epochs=assignment.epochs,
        callbacks=[_Record(Path(assignment.folder)), checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(_Gpt(), datamodule=data, ckpt_path=assignment.checkpoint)


if __name__ == '__main__':
    main()
