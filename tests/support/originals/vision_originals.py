"""Small originals of ImageNet, CIFAR-10, COCO and ADE20K, in the layout of their owners, with broken members."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

__all__ = [
    'CIFAR_CLASSES',
    'Made',
    'jpeg',
    'make_ade20k',
    'make_cifar10',
    'make_cifar10_archive',
    'make_coco',
    'make_imagenet',
    'make_imagenet_tars',
    'python2_pickle',
]

CIFAR_CLASSES = ['airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck']


@dataclass
class Made:
    """The result of a conversion of an original."""

    rows: dict[str, int] = field(default_factory=dict)
    """Good records, by split."""
    broken: dict[str, list[str]] = field(default_factory=dict)
    """The names of broken members, by split, sorted."""
    files: dict[str, list[bytes]] = field(default_factory=dict)
    """Files of good records whose bytes are kept, by split."""


def jpeg(number: int, *, width: int = 24, height: int = 20) -> bytes:
    """A JPEG, another one for each number."""
    pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)
    out = BytesIO()
    Image.fromarray(pixels).save(out, 'JPEG')
    return out.getvalue()


def png(number: int, *, width: int = 24, height: int = 20) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 150, (height, width), dtype=np.uint8)
    out = BytesIO()
    Image.fromarray(pixels).save(out, 'PNG')
    return out.getvalue()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def make_imagenet(
    root: Path, *, train: int = 12, val: int = 6, classes: int = 3, broken: bool = True, **size: int
) -> Made:
    """``train/n00000001/n00000001_1.JPEG`` and so on."""
    made = Made()
    for split, count in (('train', train), ('val', val)):
        made.rows[split], made.broken[split], made.files[split] = 0, [], []
        for number in range(count):
            name = f'n{number % classes + 1:08}'
            data = jpeg(1000 * (split == 'val') + number, **size)
            made.files[split].append(data)
            made.rows[split] += 1
            write(root / split / name / f'{name}_{number}.JPEG', data)
    if broken:
        bad = {'n00000001_cut.JPEG': jpeg(7)[:-200], 'n00000001_empty.JPEG': b'', 'n00000001_text.JPEG': b'no image'}
        for name, data in bad.items():
            write(root / 'train' / 'n00000001' / name, data)
            made.broken['train'].append(f'train/n00000001/{name}')
        # One of the real files is a PNG, too: it is good.
        made.files['train'].append(png(3))
        made.rows['train'] += 1
        write(root / 'train' / 'n00000002' / 'n00000002_png.JPEG', png(3))
    return made


def tar_of(members: dict[str, bytes]) -> bytes:
    out = BytesIO()
    with tarfile.open(fileobj=out, mode='w') as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    return out.getvalue()


def make_imagenet_tars(
    root: Path, *, train: int = 12, val: int = 6, classes: int = 3, broken: bool = True, **size: int
) -> Made:
    """The tar of tars, the tar of the validation images, and the devkit with their labels."""
    made = Made({'train': train, 'val': val}, {'train': [], 'val': []}, {'train': [], 'val': []})
    tars: dict[str, bytes] = {}
    for place in range(classes):
        name = f'n{place + 1:08}'
        images = {f'{name}_{number}.JPEG': jpeg(number, **size) for number in range(place, train, classes)}
        made.files['train'] += images.values()
        tars[f'{name}.tar'] = tar_of(images)
    if broken:
        # The last member is cut off, and with it the end of the tar.
        cut = tar_of({'n00000009_0.JPEG': jpeg(90), 'n00000009_1.JPEG': jpeg(91)})
        tars['n00000009.tar'] = cut[: 512 + (len(jpeg(90)) + 511) // 512 * 512 + 700]
        made.files['train'].append(jpeg(90))
        made.rows['train'] += 1
        made.broken['train'] = [f'ILSVRC2012_img_train.tar:{name}' for name in ('n00000009.tar', 'n00000009_1.JPEG')]
    write(root / 'ILSVRC2012_img_train.tar', tar_of(tars))
    images = {f'ILSVRC2012_val_{number + 1:08}.JPEG': jpeg(1000 + number, **size) for number in range(val)}
    made.files['val'] += images.values()
    if broken:
        images[f'ILSVRC2012_val_{val + 1:08}.JPEG'] = jpeg(5)
        made.broken['val'] = [f'ILSVRC2012_img_val.tar:ILSVRC2012_val_{val + 1:08}.JPEG']
    write(root / 'ILSVRC2012_img_val.tar', tar_of(images))
    # The devkit numbers classes in an order of its own: here backwards.
    names = [f'n{place + 1:08}' for place in range(classes)] + ['n00000009'] * broken
    truth = ''.join(f'{len(names) - number % classes}\n' for number in range(val))
    devkit = {
        'ILSVRC2012_devkit_t12/data/meta.mat': meta_mat([*reversed(names)]),
        'ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt': truth.encode(),
    }
    with tarfile.open(root / 'ILSVRC2012_devkit_t12.tar.gz', 'w:gz') as tar:
        for name, data in devkit.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    return made


def meta_mat(names: list[str]) -> bytes:
    """The synsets of the devkit: the classes from 1, then one above them."""
    import scipy.io

    kinds = [('ILSVRC2012_ID', 'O'), ('WNID', 'O'), ('words', 'O'), ('num_children', 'O'), ('children', 'O')]
    rows: list[Any] = [(number, name, f'word {number}', 0, []) for number, name in enumerate(names, 1)]
    rows.append((len(names) + 1, 'n99999999', 'thing', 2, [1, 2]))
    out = io.BytesIO()
    scipy.io.savemat(out, {'synsets': np.array(rows, dtype=kinds).reshape(-1, 1)}, do_compression=True)
    return out.getvalue()


def python2_pickle(content: dict[str, Any]) -> bytes:
    """A pickle as Python 2 and NumPy 1 wrote it: keys and bytes are its plain strings."""

    def text(value: str | bytes) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        return b'U' + bytes([len(data)]) + data if len(data) < 256 else b'T' + struct.pack('<I', len(data)) + data

    def item(value: Any) -> bytes:
        if isinstance(value, np.ndarray):
            dtype = b'cnumpy\ndtype\n' + text('u1') + b'K\0K\1\x87R(K\3' + text('|') + b'NNN' + b'J\xff\xff\xff\xff' * 2
            shape = b''.join(b'J' + struct.pack('<i', side) for side in value.shape)
            begin = b'cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85' + text('b') + b'\x87R'
            return begin + b'(K\1' + shape + b'\x86' + dtype + b'K\0tb\x89' + text(value.tobytes()) + b'tb'
        if isinstance(value, list):
            return b'](' + b''.join(map(item, value)) + b'e'
        return b'J' + struct.pack('<i', value) if isinstance(value, int) else text(value)

    return b'\x80\2}(' + b''.join(text(key) + item(value) for key, value in content.items()) + b'u.'


def make_cifar10(root: Path, *, rows: int = 20, broken: bool = True) -> Made:
    """``cifar-10-batches-py`` with five batches, a batch to test, and the names of the classes."""
    random = np.random.default_rng(10)
    folder = root / 'cifar-10-batches-py'
    made = Made({'train': 5 * rows, 'val': rows}, {'train': [], 'val': []})
    for name in (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch'):
        content = {
            'batch_label': name,
            'labels': [number % 10 for number in range(rows)],
            'data': random.integers(0, 255, (rows, 3072), dtype=np.uint8),
            'filenames': [f'{number}.png' for number in range(rows)],
        }
        data = python2_pickle(content)
        if broken and name == 'data_batch_3':
            data = data[: len(data) // 2]
            made.broken['train'].append(f'cifar-10-batches-py/{name}')
            made.rows['train'] -= rows
        if broken and name == 'data_batch_4':
            content['labels'][5] = 77
            data = python2_pickle(content)
            made.broken['train'].append(f'cifar-10-batches-py/{name}, row 5')
            made.rows['train'] -= 1
        write(folder / name, data)
    write(folder / 'batches.meta', python2_pickle({'num_cases_per_batch': 10000, 'label_names': CIFAR_CLASSES}))
    return made


def make_cifar10_archive(root: Path) -> Made:
    """``cifar-10-python.tar.gz``."""
    made = make_cifar10(root / 'unpacked')
    with tarfile.open(root / 'cifar-10-python.tar.gz', 'w:gz') as tar:
        tar.add(root / 'unpacked' / 'cifar-10-batches-py', 'cifar-10-batches-py')
    made.broken['train'] = [f'cifar-10-python.tar.gz:{name}' for name in made.broken['train']]
    return made


def make_coco(
    root: Path, *, train: int = 12, val: int = 6, broken: bool = True, width: int = 24, height: int = 20
) -> Made:
    """``annotations/instances_train2017.json``, and the images in ``train2017``; the same for val."""
    made = Made({'train': train, 'val': val}, {'train': [], 'val': []}, {'train': [], 'val': []})
    for split, count in (('train', train), ('val', val)):
        images: list[dict[str, Any]] = []
        boxes: list[Any] = []
        for number in range(count):
            data = jpeg(number, width=width, height=height)
            made.files[split].append(data)
            name = f'{number:012}.jpg'
            write(root / f'{split}2017' / name, data)
            images.append({'id': 500 + number, 'file_name': name, 'height': height, 'width': width, 'license': 1})
            for box in range(number % 3 + 1):
                boxes.append({
                    'id': len(boxes), 'image_id': 500 + number, 'category_id': 1 + 89 * (box % 2),
                    'bbox': [1.5, 2.25, 6 + box, 8.125], 'iscrowd': 0, 'area': 9.0, 'segmentation': [],
                })  # fmt: skip
        images.append({'id': 900, 'file_name': 'no-box.jpg', 'height': height, 'width': width})
        if broken and split == 'train':
            cut = {'id': 901, 'file_name': 'cut.jpg', 'height': height, 'width': width}
            gone, odd = {**cut, 'id': 902, 'file_name': 'gone.jpg'}, {**cut, 'id': 903, 'file_name': 'odd.jpg'}
            outside = {**cut, 'id': 904, 'file_name': '../annotations/secret.jpg'}
            write(root / 'train2017' / 'cut.jpg', jpeg(3, width=width, height=height)[:-100])
            write(root / 'train2017' / 'odd.jpg', jpeg(3, width=width + 1, height=height))
            write(root / 'annotations' / 'secret.jpg', jpeg(4))
            bad = [cut, gone, odd, outside]
            images += [*bad, {**cut, 'height': 'tall'}]
            boxes += [{'image_id': one['id'], 'category_id': 1, 'bbox': [0, 0, 1, 1]} for one in bad]
            place = len(boxes)
            boxes += [{'image_id': 500, 'category_id': 1, 'bbox': [1, 2, 3]}, {'image_id': 77, 'category_id': 1}, 5]
            made.broken['train'] = sorted([
                *(f'train2017/{one["file_name"]}' for one in bad),
                *(f'annotations/instances_train2017.json: annotations[{place + number}]' for number in range(3)),
                f'annotations/instances_train2017.json: images[{len(images) - 1}]',
            ])  # fmt: skip
        categories = [{'id': 1, 'name': 'person'}, {'id': 90, 'name': 'toothbrush'}]
        document = {'info': {}, 'images': images, 'annotations': boxes, 'categories': categories}
        write(root / 'annotations' / f'instances_{split}2017.json', json.dumps(document).encode())
    return made


def make_ade20k(root: Path, *, train: int = 12, val: int = 6, broken: bool = True, **size: int) -> Made:
    """``ADEChallengeData2016/images/training/ADE_train_00000001.jpg`` with its annotation, and so on."""
    base = root / 'ADEChallengeData2016'
    made = Made({'train': train, 'val': val}, {'train': [], 'val': []}, {'train': [], 'val': []})

    def put(split: str, uid: str, scene: bytes | None, annotation: bytes | None) -> None:
        folder = 'training' if split == 'train' else 'validation'
        for kind, data, suffix in (('images', scene, 'jpg'), ('annotations', annotation, 'png')):
            if data is not None:
                write(base / kind / folder / f'ADE_{split}_{uid}.{suffix}', data)

    for split, count in (('train', train), ('val', val)):
        for number in range(count):
            scene, annotation = jpeg(number, **size), png(number, **size)
            made.files[split] += [scene, annotation]
            put(split, f'{number + 1:08}', scene, annotation)
    if broken:
        folder = 'ADEChallengeData2016/images/training/ADE_train_'
        put('train', '00000501', jpeg(1), None)
        put('train', '00000502', jpeg(1), png(1, width=9))
        put('train', '00000503', jpeg(1), png(1)[:60])
        put('train', '00001701', jpeg(1), png(1))
        put('train', '00000504', None, png(1))
        made.broken['train'] = [f'{folder}{uid}.jpg' for uid in ('00000501', '00000502', '00000503', '00001701')]
        made.broken['train'].insert(0, 'ADEChallengeData2016/annotations/training/ADE_train_00000504.png')
    return made
