"""What a SLURM job is told by signals, done between two batches.

Lightning saves a checkpoint, and has the job requeued, in the handler of the signal: wherever the program is by then.
Between the optimizer's step and Lightning's count of it, or between the updates of two weights, that checkpoint holds a
batch that it does not count, which is then trained twice. Of several ranks, one may save while another one is still
reducing gradients; so they agree first.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback
from lightning.pytorch.trainer.connectors.signal_connector import _HandlersCompose
from typing_extensions import override

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ['RequeueCallback', 'act_on_signals_between_batches']


def act_on_signals_between_batches(trainer: Trainer) -> None:
    """Have a trainer in a SLURM job act on signals between batches. Calling again changes nothing."""
    connector: Any = getattr(trainer, '_accelerator_connector', None)
    environment = None if connector is None else connector.cluster_environment
    callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue] — set by a connector
    if not isinstance(environment, SLURMEnvironment) or not environment.auto_requeue:
        return
    if not any(isinstance(callback, RequeueCallback) for callback in callbacks):
        signals = (environment.requeue_signal, signal.SIGTERM)
        # Last of all, so that all others have seen the batch that is saved.
        callbacks.append(RequeueCallback([signum for signum in signals if signum is not None]))


class RequeueCallback(Callback):
    """Takes Lightning's handlers of signals, and calls them between two batches, on all ranks at once.

    Args:
        signals: the signals.
    """

    def __init__(self, signals: list[signal.Signals]) -> None:
        self._signals = signals
        self._handlers: dict[int, Callable[[int, Any], None]] = {}
        self._received: set[int] = set()

    @override
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._take_handlers()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._take_handlers()

    def _take_handlers(self) -> None:
        # Lightning sets them anew for each fit, and puts back what was there when it ends.
        for signum in self._signals:
            handler = signal.getsignal(signum)
            if isinstance(handler, _HandlersCompose):
                self._handlers[signum] = handler
                signal.signal(signum, lambda received, _: self._received.add(received))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._act(trainer)

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        # Ranks may validate on different numbers of batches.
        if trainer.world_size == 1 and not trainer.sanity_checking:
            self._act(trainer)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._act(trainer)

    def _act(self, trainer: Trainer) -> None:
        decide = trainer.strategy.reduce_boolean_decision
        if not self._handlers or not decide(bool(self._received), all=False):
            return
        for signum, handler in self._handlers.items():
            # The handler of the first may be what brings the second: SLURM ends a job that is requeued.
            if decide(signum in self._received, all=False):
                self._received.discard(signum)
                handler(signum, None)
