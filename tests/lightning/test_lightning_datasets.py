"""Each class of a known dataset trains under Lightning, and resumes at the sample where it stopped."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from headrace.dataset import StreamingDataset
from headrace.lightning import StreamingDataModule

STEPS = 3
"""Steps before the run stops."""


def vision(name: str) -> tuple[Callable[[Path], Any], Callable[[Path], StreamingDataset]]:
    """How to make the dataset, and how to open it."""
    import vision_originals

    import headrace.vision

    folder = name.removeprefix('Streaming').lower()
    module = importlib.import_module(f'headrace.vision.convert.{folder}')

    def make(root: Path) -> None:
        getattr(vision_originals, f'make_{folder}')(root / 'in', broken=False)
        module.ORIGINAL.convert(root / 'in', root / 'out', progress_bar=False)

    cls = getattr(headrace.vision, name)
    return make, lambda root: cls(local=str(root / 'out'), split='val', batch_size=2, shuffle=True)


def webvid(name: str) -> tuple[Callable[[Path], Any], Callable[[Path], StreamingDataset]]:
    pytest.importorskip('av')
    import webvid_originals

    import headrace.multimodal
    from headrace.multimodal.convert.webvid.crawl_webvid import ORIGINAL

    is_inside = name == 'StreamingInsideWebVid'

    def make(root: Path) -> None:
        webvid_originals.make_webvid(root / 'in', broken=False)
        table = root / 'in' / 'results_2M_train.csv'
        ORIGINAL.convert(table, root / 'out', inside=is_inside, progress_bar=False)

    cls = getattr(headrace.multimodal, name)
    videos: dict[str, str] = {}

    def open_it(root: Path) -> StreamingDataset:
        if not is_inside:
            videos.update(extra_local=str(root / 'kept'), extra_remote=str(root / 'in' / 'videos'))
        return cls(local=str(root / 'out'), batch_size=2, shuffle=True, frames=2, frame_size=(8, 8), **videos)

    return make, open_it


CLASSES = {
    **{f'Streaming{name}': partial(vision, f'Streaming{name}') for name in ('CIFAR10', 'ImageNet', 'COCO', 'ADE20K')},
    **{
        f'Streaming{name}': partial(webvid, f'Streaming{name}')
        for name in ('InsideWebVid', 'OutsideGIWebVid', 'OutsideDTWebVid')
    },
}
"""By name, a function that gives how to make and how to open a dataset."""


def digest(value: Any) -> int:
    """A number for the content of a sample: images, arrays, texts, and collections of them."""
    if isinstance(value, Mapping):
        return digest([item for pair in sorted(value.items()) for item in pair])
    if isinstance(value, list | tuple):
        return zlib.crc32(b''.join(digest(item).to_bytes(4, 'little') for item in value))
    if isinstance(value, torch.Tensor | np.ndarray) or hasattr(value, 'getbands'):
        return zlib.crc32(np.ascontiguousarray(value).tobytes())
    return zlib.crc32(repr(value).encode())


def collate(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([digest(sample) for sample in samples], dtype=torch.int64)


class Model(LightningModule):
    """Writes down what it trains on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[Any] = []

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(batch.tolist())
        return self.layer((batch[:, None] % 7).float()).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def trained(
    open_it: Callable[[], StreamingDataset], *, steps: int, save: Path | None, resume: Path | None
) -> list[Any]:
    """The digests of the batches that a run trains on."""
    model = Model()
    trainer = Trainer(
        accelerator='cpu', devices=1, max_epochs=2, max_steps=steps, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = StreamingDataModule(train=open_it, batch_size=2, collate_fn=collate)
    trainer.fit(model, datamodule=data, ckpt_path=None if resume is None else str(resume))
    if save is not None:
        trainer.save_checkpoint(save)
    return model.seen


@pytest.mark.parametrize('name', CLASSES)
def test_a_class_trains_and_resumes(tmp_path: Path, name: str) -> None:
    make, open_it = CLASSES[name]()
    make(tmp_path)
    start = partial(trained, partial(open_it, tmp_path))

    whole = start(steps=-1, save=None, resume=None)
    begin = start(steps=STEPS, save=tmp_path / 'a.ckpt', resume=None)
    end = start(steps=-1, save=None, resume=tmp_path / 'a.ckpt')

    assert len(begin) == STEPS < len(whole)
    assert begin + end == whole
    size = len(open_it(tmp_path))
    epoch = [sample for batch in whole[: size // 2] for sample in batch]
    assert len(whole) == 2 * (size // 2)
    # Each of the samples once; some videos have equal frames, but no two have equal captions.
    assert len(set(epoch)) == size
