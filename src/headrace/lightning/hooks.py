"""What a data module's subclass does to samples, as the loaders' workers do it."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from headrace.dataset.randomness import each_row

if TYPE_CHECKING:
    from headrace.lightning.datamodule import StreamingDataModule

__all__ = ['SampleHooks']

# What belongs to the training, and neither can nor should be sent to a worker.
_OF_THE_TRAINING = ('_trainer', '_callback', '_sources', '_topology', '_prepare', 'position')


class SampleHooks:
    """A data module's `transform` and `collate` as one `collate_fn`.

    A worker that is spawned gets a copy of the module without its trainer and its datasets.

    Args:
        module: the module.
        section: which of its loaders they are for: train, val, test or predict.
    """

    def __init__(self, module: StreamingDataModule, section: str) -> None:
        self._module = module
        self._section = section

    def __call__(self, samples: list[Any]) -> Any:
        """A batch of samples."""
        module, section = self._module, self._section
        with contextlib.closing(each_row()) as drawing:
            rows = [module.transform(sample, section) for sample, _ in zip(samples, drawing, strict=False)]
        return module.collate(rows, section)

    def __getstate__(self) -> dict[str, Any]:
        module = copy.copy(self._module)
        for name in _OF_THE_TRAINING:
            vars(module).pop(name, None)
        return {'_module': module, '_section': self._section}
