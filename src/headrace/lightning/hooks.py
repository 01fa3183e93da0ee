"""The `transform` and `collate` hooks of data modules, run by the loaders' workers."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import default_collate

from headrace.dataset.sample_rng import each_row

if TYPE_CHECKING:
    from headrace.dataset.reading.batch_reader import Collate

__all__ = ['HookedDataModule', 'SampleHooks']

# Attributes of the training process that are not sent to workers.
_OF_THE_TRAINING = ('_trainer', '_callback', '_sources', '_topology', '_prepare', 'position')


class HookedDataModule(LightningDataModule):
    """A data module whose subclasses transform and collate samples."""

    _collate_fn: Collate | None = None

    def transform(self, sample: Any, section: str) -> Any:  # noqa: ARG002 - for subclasses
        """A sample made ready for training: override it to tokenise, augment or choose columns.

        It runs in the workers, if there are some.

        Args:
            sample: a sample of the dataset, a dict from column to value.
            section: train, val, test or predict.

        Returns:
            A value for `collate`; by default the sample itself.
        """
        return sample

    def collate(self, samples: list[Any], section: str) -> Any:  # noqa: ARG002 - for subclasses
        """A batch of samples: override it to pad, pack or build tensors. It runs where `transform` does.

        Args:
            samples: values from `transform`, one for each row.
            section: train, val, test or predict.

        Returns:
            The batch; by default from `collate_fn`, or else `torch.utils.data.default_collate`.
        """
        return (self._collate_fn or default_collate)(samples)

    def _overrides(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(HookedDataModule, method)


class SampleHooks:
    """A data module's `transform` and `collate` as one `collate_fn`.

    A spawned worker gets a copy of the module without its trainer and its datasets.

    Args:
        module: the module.
        section: which of its loaders they are for: train, val, test or predict.
    """

    def __init__(self, module: HookedDataModule, section: str) -> None:
        self._module = module
        self._section = section
        self.row_at_hand: int | None = None
        """Row whose transform raised, for the error message."""

    def __call__(self, samples: list[Any]) -> Any:
        """A batch of samples."""
        module, section, self.row_at_hand = self._module, self._section, None
        with contextlib.closing(each_row()) as drawing:
            rows = list[Any]()
            try:
                for sample, _ in zip(samples, drawing, strict=False):
                    rows.append(module.transform(sample, section))
            except Exception:
                self.row_at_hand = len(rows)
                raise
        return module.collate(rows, section)

    def __getstate__(self) -> dict[str, Any]:
        module = copy.copy(self._module)
        for name in _OF_THE_TRAINING:
            vars(module).pop(name, None)
        return {'_module': module, '_section': self._section, 'row_at_hand': None}
