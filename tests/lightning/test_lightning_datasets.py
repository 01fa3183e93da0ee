"""The classes of known datasets through a Lightning fit, which another one continues in mid-epoch."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image

from headrace import MDSWriter, StreamingDataset
from headrace.lightning import StreamingDataModule
from tests.support.originals.text_tokenizer import make_tokenizer

pytestmark = [pytest.mark.filterwarnings('ignore'), pytest.mark.lightning]
ROWS, BATCH, STOP, STEPS = 24, 4, 2, 9


class Model(LightningModule):
    """Notes the batches that it trains on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        columns = batch.values() if isinstance(batch, dict) else batch
        rows = next(column for column in columns if isinstance(column, torch.Tensor)).double().flatten(1)
        self.seen.append([hash(tuple(row.tolist())) for row in rows])
        return self.layer(rows.float().mean(1, keepdim=True)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-9)


def write(folder: Path, columns: dict[str, str], row: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    with MDSWriter(out=str(folder), columns=columns, size_limit=2000) as writer:
        for i in range(ROWS):
            writer.write(row(i))
    return {'local': str(folder)}


def image(number: int, size: int = 6) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), 10 * number, np.uint8)).save(file, 'PNG')
    return file.getvalue()


def texts(folder: Path, name: str) -> tuple[type[StreamingDataset], dict[str, Any]]:
    import headrace.text

    pytest.importorskip('transformers')
    words = ('river', 'stones', 'boat', 'rain')
    data = write(folder / 'a', {'text': 'str'}, lambda i: {'text': ' '.join(words[i >> 2 * k & 3] for k in range(3))})
    tokenizer = make_tokenizer(folder / 'tokenizer')
    return getattr(headrace.text, name), {**data, 'tokenizer_name': tokenizer, 'max_seq_len': 8}


def bert(folder: Path) -> tuple[type[StreamingDataset], dict[str, Any]]:
    from headrace.text import StreamingEnWiki

    names = ('input_ids', 'input_mask', 'segment_ids', 'masked_lm_positions', 'masked_lm_ids')

    def row(i: int) -> dict[str, Any]:
        one = np.array([1], np.int32).tobytes()
        tokens = np.array([i, 1], np.int32).tobytes()
        return dict.fromkeys(names, tokens) | {'masked_lm_positions': one, 'masked_lm_ids': one}

    data = write(folder, dict.fromkeys(names, 'bytes'), row)
    return StreamingEnWiki, data


def laion(folder: Path) -> tuple[type[StreamingDataset], dict[str, Any]]:
    from headrace.multimodal import StreamingLAION

    columns = {'jpg': 'bytes', 'caption': 'str'}
    return StreamingLAION, write(folder, columns, lambda i: {'jpg': image(i), 'caption': f'{i}'})


def pair(folder: Path, name: str, *, y: str) -> tuple[type[StreamingDataset], dict[str, Any]]:
    """Images in the column x; in y their classes, or other images."""
    import headrace.vision

    data = write(folder, {'x': 'png', 'y': y}, lambda i: {'x': image(i), 'y': i if y == 'int' else image(i)})
    return getattr(headrace.vision, name), {**data, 'decode': 'tensor'}


def coco(folder: Path) -> tuple[type[StreamingDataset], dict[str, Any]]:
    from headrace.vision import StreamingCOCO

    columns = {'img': 'png', 'img_id': 'int', 'htot': 'int', 'wtot': 'int'}
    columns |= {'bbox_sizes': 'ndarray:float32', 'bbox_labels': 'ndarray:int64'}
    same = {'htot': 6, 'wtot': 6, 'bbox_sizes': np.zeros((2, 4), np.float32), 'bbox_labels': np.ones(2, np.int64)}
    return StreamingCOCO, {
        **write(folder, columns, lambda i: {'img': image(i), 'img_id': i, **same}),
        'decode': 'tensor',
    }


def webvid(folder: Path, name: str) -> tuple[type[StreamingDataset], dict[str, Any]]:
    """One video of different frames for each row, inside of the shards or beside them."""
    import headrace.multimodal

    pytest.importorskip('av')
    from tests.support.originals.webvid_originals import video

    videos = [video(10 * i, frames=1) for i in range(ROWS)]
    asked = {'frames': 1, 'frame_size': (4, 4)}
    kind = getattr(headrace.multimodal, name)
    if name == 'StreamingInsideWebVid':
        return kind, {**write(folder, {'content': 'bytes'}, lambda i: {'content': videos[i]}), **asked}
    (folder / 'videos').mkdir(parents=True)
    for number, content in enumerate(videos):
        (folder / 'videos' / f'{number}.mp4').write_bytes(content)
    data = write(folder / 'shards', {'content_path': 'str'}, lambda i: {'content_path': f'{i}.mp4'})
    return kind, {**data, **asked, 'extra_local': str(folder / 'fetched'), 'extra_remote': str(folder / 'videos')}


DATASETS: dict[str, Callable[[Path], tuple[type[StreamingDataset], dict[str, Any]]]] = {
    'imagenet': lambda folder: pair(folder, 'StreamingImageNet', y='int'),
    'cifar10': lambda folder: pair(folder, 'StreamingCIFAR10', y='int'),
    'ade20k': lambda folder: pair(folder, 'StreamingADE20K', y='png'),
    'coco': coco,
    'c4': lambda folder: texts(folder, 'StreamingC4'),
    'enwiki': lambda folder: texts(folder, 'StreamingEnWiki'),
    'enwiki, bert': bert,
    'pile': lambda folder: texts(folder, 'StreamingPile'),
    'laion': laion,
    'webvid, inside': lambda folder: webvid(folder, 'StreamingInsideWebVid'),
    'webvid, outside': lambda folder: webvid(folder, 'StreamingOutsideGIWebVid'),
    'webvid, fetched ahead': lambda folder: webvid(folder, 'StreamingOutsideDTWebVid'),
}


def fit(folder: Path, kind: type[StreamingDataset], data: dict[str, Any], steps: int, resume: str | None) -> Model:
    torch.manual_seed(0)
    model = Model()
    trainer = Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator='cpu',
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=STOP, save_top_k=-1, filename='{step}')],
    )
    module = StreamingDataModule(train={**data, 'shuffle': True}, dataset_class=kind, batch_size=BATCH)
    trainer.fit(model, module, ckpt_path=resume)
    return model


@pytest.mark.parametrize('name', DATASETS)
def test_a_fit_is_continued_in_the_middle_of_an_epoch(tmp_path: Path, name: str) -> None:
    kind, data = DATASETS[name](tmp_path / 'data')
    whole = fit(tmp_path / 'whole', kind, data, STEPS, None).seen
    assert len(whole) == STEPS
    epoch = [row for batch in whole[: ROWS // BATCH] for row in batch]
    assert len(set(epoch)) == ROWS
    first = fit(tmp_path / 'first', kind, data, STOP, None).seen
    second = fit(tmp_path / 'second', kind, data, STEPS, str(tmp_path / 'first' / f'step={STOP}.ckpt')).seen
    assert first + second == whole
