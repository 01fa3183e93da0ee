"""Data for the tutorials, made in the layout of the true datasets, so that no tutorial waits for a download.

The same call makes the same data. `--small`, or the variable HEADRACE_SMALL=1, makes less of them.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import shutil
import sys
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

SMALL = '--small' in sys.argv or os.environ.get('HEADRACE_SMALL') == '1'
"""Whether to show the way only, in seconds."""

SHAPES = ['disc', 'ring', 'square', 'frame', 'triangle', 'cross', 'rows', 'columns', 'checks', 'dots']
"""Classes of the pictures that `draw` makes."""

# Lightning's lists of devices, its advertisements, and warnings that do not apply: lengths of headrace are exact.
for module in ('pytorch.utilities.rank_zero', 'fabric.utilities.rank_zero', 'fabric.utilities.distributed'):
    logging.getLogger(f'lightning.{module}').setLevel(logging.WARNING)
warnings.filterwarnings('ignore', '.*`IterableDataset` has `__len__`')
warnings.filterwarnings('ignore', '.*does not have many workers')
warnings.filterwarnings('ignore', 'Checkpoint directory .* exists and is not empty')


def fresh_folder(name: str) -> Path:
    """An empty folder, ``tutorial-output/NAME`` in the working directory."""
    folder = Path('tutorial-output', name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def draw(kind: int, side: int, random: np.random.Generator) -> Image.Image:
    """A noisy picture of `side` x `side` pixels with one of `SHAPES`, of random colors, size and place."""
    ground, color = random.integers(0, 110, 3), random.integers(130, 256, 3)
    noise = random.integers(-40, 41, (side, side, 3))
    picture = Image.fromarray((ground + noise).clip(0, 255).astype(np.uint8))
    size = int(random.uniform(0.5, 0.8) * side)
    x, y = random.integers(0, side - size, 2).tolist()
    box = (x, y, x + size, y + size)
    fill = (int(color[0]), int(color[1]), int(color[2]))
    pen = ImageDraw.Draw(picture)
    thick, step = max(size // 5, 2), max(size // 4, 2)
    if kind == 0:
        pen.ellipse(box, fill=fill)
    elif kind == 1:
        pen.ellipse(box, outline=fill, width=thick)
    elif kind == 2:
        pen.rectangle(box, fill=fill)
    elif kind == 3:
        pen.rectangle(box, outline=fill, width=thick)
    elif kind == 4:
        pen.polygon([(x + size // 2, y), (x + size, y + size), (x, y + size)], fill=fill)
    elif kind == 5:
        pen.line([(x, y), (x + size, y + size)], fill=fill, width=thick)
        pen.line([(x + size, y), (x, y + size)], fill=fill, width=thick)
    else:
        is_rows, is_columns = kind in (6, 8), kind in (7, 8)
        for number in range(16):
            left, top = number % 4 * step, number // 4 * step
            full = (number // 4 % 2 if is_rows else 0) ^ (number % 2 if is_columns else 0)
            if kind == 9:
                pen.ellipse((x + left, y + top, x + left + step // 2, y + top + step // 2), fill=fill)
            elif full:
                pen.rectangle((x + left, y + top, x + left + step - 1, y + top + step - 1), fill=fill)
    return picture


def make_cifar10(folder: Path, rows: int) -> Path:
    """The files of CIFAR-10: ``cifar-10-batches-py`` with five batches to train, and one to test, of `rows` each."""
    random = np.random.default_rng(10)
    batches = folder / 'cifar-10-batches-py'
    batches.mkdir(parents=True)
    for name in (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch'):
        labels = random.integers(0, 10, rows).tolist()
        pixels = np.stack([np.asarray(draw(label, 32, random)) for label in labels])
        content = {
            'batch_label': name,
            'labels': labels,
            'data': pixels.transpose(0, 3, 1, 2).reshape(rows, 3072),
            'filenames': [f'{number}.png' for number in range(rows)],
        }
        (batches / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {'num_cases_per_batch': rows, 'label_names': SHAPES, 'num_vis': 3072}
    (batches / 'batches.meta').write_bytes(pickle.dumps(names, protocol=2))
    return folder


def make_pictures(folder: Path, rows: int, *, classes: int = 4, side: int = 96) -> Path:
    """A tree as torchvision's ImageFolder wants it: ``CLASS/NAME.jpg``."""
    random = np.random.default_rng(11)
    for number in range(rows):
        kind = number % classes
        path = folder / SHAPES[kind] / f'{number:05}.jpg'
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(kind, side, random).save(path, quality=90)
    return folder


def make_faces(folder: Path, rows: int, *, side: int = 128) -> Path:
    """The files of FaceSynthetics: ``000000.png``, ``000000_ldmks.txt`` with 70 lines "x y", ``000000_seg.png``."""
    random = np.random.default_rng(12)
    folder.mkdir(parents=True)
    for number in range(rows):
        picture, regions, landmarks = _face(random, side)
        picture.save(folder / f'{number:06}.png')
        regions.save(folder / f'{number:06}_seg.png')
        np.savetxt(folder / f'{number:06}_ldmks.txt', landmarks, fmt='%.4f')
    return folder


def _face(random: np.random.Generator, side: int) -> tuple[Image.Image, Image.Image, npt.NDArray[np.float64]]:
    """A drawn face, its regions, and its landmarks in pixels: 68 as iBUG numbers them, and two pupils."""
    opening, look = random.uniform(0, 0.12), random.uniform(-0.05, 0.05)

    def arc(x: float, y: float, width: float, height: float, begin: float, end: float, count: int) -> list[list[float]]:
        return [[x + width * np.cos(a), y + height * np.sin(a)] for a in np.linspace(begin, end, count) * np.pi]

    jaw = arc(0, 0, 0.75, 1, 1, 0, 17)
    brows = [*arc(-0.35, -0.4, 0.22, 0.12, 1.1, 1.9, 5), *arc(0.35, -0.4, 0.22, 0.12, 1.1, 1.9, 5)]
    nose = [[0, -0.25 + 0.12 * step] for step in range(4)] + arc(0, 0.18, 0.15, 0.06, 1, 0, 5)
    eyes = [arc(x, -0.25, 0.16, 0.09, 1, 2.6667, 6) for x in (-0.35, 0.35)]
    mouth = arc(0, 0.5, 0.3, 0.1 + opening, 1, 2.8333, 12) + arc(0, 0.5, 0.22, 0.03 + opening, 1, 2.75, 8)
    pupils = [[-0.35 + look, -0.25], [0.35 + look, -0.25]]
    points = np.array([*jaw, *brows, *nose, *eyes[0], *eyes[1], *mouth, *pupils])
    angle, size = random.uniform(-0.35, 0.35), random.uniform(0.26, 0.4) * side
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])

    def placed(shape: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return np.asarray(shape, float) @ turn * size + place

    place = side / 2 + random.uniform(-0.1, 0.1, 2) * side
    landmarks = placed(points)
    ground, skin, hair = random.integers(0, 256, 3), random.integers(110, 240, 3), random.integers(0, 110, 3)
    noise = random.integers(-15, 16, (side, side, 3))
    picture = Image.fromarray((ground + noise).clip(0, 255).astype(np.uint8))
    regions = Image.new('L', (side, side))

    def fill(shape: npt.ArrayLike, color: npt.ArrayLike, region: int) -> None:
        corners = [(float(x), float(y)) for x, y in placed(shape)]
        red, green, blue = np.asarray(color).tolist()
        ImageDraw.Draw(picture).polygon(corners, fill=(red, green, blue))
        ImageDraw.Draw(regions).polygon(corners, fill=region)

    fill(arc(0, -0.15, 0.9, 1.0, 0, 2, 40), hair, 14)
    fill([*jaw, *arc(0, 0, 0.75, 0.85, 2, 1, 17)], skin, 1)
    for eye in eyes:
        fill(eye, (255, 255, 255), 5)
    for x, y in pupils:
        fill(arc(x, y, 0.05, 0.07, 0, 2, 12), (20, 20, 40), 5)
    fill(nose[4:] + nose[:1], skin * 3 // 4, 2)
    fill(mouth[:12], (170, 40, 50), 8)
    fill(mouth[12:], (60, 0, 10), 9)
    for brow in (brows[:5], brows[5:]):
        fill(brow, hair, 6)
    return picture, regions, landmarks


def make_documents(folder: Path) -> Path:
    """Two corpora of JSONL, ``prose/documents.jsonl`` and ``code/documents.jsonl``: texts that every Python carries.

    A document is a paragraph.
    """
    modules = (
        'argparse',
        'ast',
        'asyncio.tasks',
        'difflib',
        'doctest',
        'inspect',
        'pdb',
        'tarfile',
        'typing',
        'zipfile',
    )
    topics: dict[str, str] = import_module('pydoc_data.topics').topics
    texts = {
        'prose': [topics[name] for name in sorted(topics)],
        'code': [inspect.getsource(import_module(module)) for module in modules],
    }
    for name, whole in texts.items():
        (folder / name).mkdir(parents=True)
        paragraphs = [paragraph for text in whole for paragraph in text.split('\n\n') if len(paragraph) > 60]
        lines = [json.dumps({'text': paragraph}) + '\n' for paragraph in paragraphs]
        (folder / name / 'documents.jsonl').write_text(''.join(lines))
    return folder
