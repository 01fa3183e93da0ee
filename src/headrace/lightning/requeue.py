"""Signals to a SLURM job, handled between two batches.

Lightning saves a checkpoint and requeues the job inside the signal handler, at any point of the program. After an
optimizer step that Lightning has not counted yet, that checkpoint would train a batch twice. One rank may also save
while another reduces gradients. So ranks agree first, and then handle the signal between two batches.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _HandlersCompose
from typing_extensions import override


def act_on_signals_between_batches(trainer: Trainer) -> None:
    """Make a trainer in a SLURM job handle signals between batches. Calling again changes nothing."""
    connector: Any = getattr(trainer, '_accelerator_connector', None)
    environment = None if connector is None else connector.cluster_environment
    callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue] — set by a connector
    if not isinstance(environment, SLURMEnvironment) or not environment.auto_requeue:
        return
    if not any(isinstance(callback, RequeueCallback) for callback in callbacks):
        signals = (environment.requeue_signal, signal.SIGTERM)
        # Last, so that all other callbacks have seen the saved batch.
        callbacks.append(RequeueCallback([signum for signum in signals if signum is not None]))


class RequeueCallback(Callback):
    """Calls Lightning's signal handlers between two batches, on all ranks at once."""

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
        # Lightning sets its handlers for each fit, and restores the previous ones at the end.
        for signum in self._signals:
            handler = signal.getsignal(signum)
            if isinstance(handler, _HandlersCompose):
                self._handlers[signum] = handler
                signal.signal(signum, lambda received, _: self._received.add(received))

    @override
    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._act(trainer)

    @override
    def on_validation_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
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
            # The first handler may cause the second signal: SLURM ends a requeued job.
            if decide(signum in self._received, all=False):
                self._received.discard(signum)
                handler(signum, None)
