"""The converters of ImageNet, CIFAR-10, COCO and ADE20K, on originals with their owners' layout."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import tarfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace.cli import main
from headrace.errors import ArgumentError, ConfigError, FormatError, ObjectNotFoundError
from headrace.originals.members import Member, tar_members
from headrace.originals.original import Original
from headrace.vision import StreamingADE20K, StreamingCIFAR10, StreamingCOCO, StreamingImageNet
from headrace.vision.convert.ade20k import ORIGINAL as ADE20K
from headrace.vision.convert.cifar10 import ORIGINAL as CIFAR10
from headrace.vision.convert.coco import ORIGINAL as COCO
from headrace.vision.convert.imagenet import ORIGINAL as IMAGENET
from headrace.vision.convert.imagenet import main as main_imagenet
from tests.support.originals.originals_contract import (
    check_reports,
    check_stops_at_a_broken_member,
    check_workers_and_kills,
)
from tests.support.originals.vision_originals import (
    CIFAR_CLASSES,
    Made,
    jpeg,
    make_ade20k,
    make_cifar10,
    make_cifar10_archive,
    make_coco,
    make_imagenet,
    make_imagenet_tars,
)
from tests.support.sources.sources_to_convert import digests, rows_of

MAKERS: dict[str, tuple[Original, Callable[[Path], Made]]] = {
    'imagenet': (IMAGENET, make_imagenet),
    'imagenet_tars': (IMAGENET, make_imagenet_tars),
    'cifar10': (CIFAR10, make_cifar10),
    'cifar10_archive': (CIFAR10, make_cifar10_archive),
    'coco': (COCO, make_coco),
    'ade20k': (ADE20K, make_ade20k),
}


QUICK = {'imagenet_tars', 'cifar10', 'ade20k'}
"""Those that are converted by many processes, and killed, in each run of the tests."""


@pytest.fixture(scope='module', params=MAKERS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Original, Path, Made]:
    if request.param == 'imagenet_tars':
        pytest.importorskip('scipy')
    described, make = MAKERS[request.param]
    root = tmp_path_factory.mktemp(request.param)
    return described, root, make(root)


def test_good_records_are_kept_and_broken_ones_are_named(original: tuple[Original, Path, Made], tmp_path: Path) -> None:
    described, root, made = original
    reports = described.convert(root, tmp_path, size_limit=1 << 13, progress_bar=False)
    check_reports(tmp_path, reports, made.rows, {split: len(made.broken[split]) for split in made.rows})
    for split in made.rows:
        assert sorted(error.input for error in reports[split].errors) == made.broken[split]
        shards = b''.join(path.read_bytes() for path in (tmp_path / split).glob('*.mds'))
        assert all(file in shards for file in made.files.get(split, []))


@pytest.mark.parametrize(
    'original',
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MAKERS],
    indirect=True,
)
def test_any_number_of_workers_gives_the_same_files_and_a_killed_conversion_continues(
    original: tuple[Original, Path, Made], tmp_path: Path
) -> None:
    described, root, _ = original
    convert = partial(described.convert, root, size_limit=1 << 12, progress_bar=False)
    reports = check_workers_and_kills(convert, tmp_path)
    assert reports['train'].tasks_done_before
    # Finished splits are kept, and reported as before.
    again = convert(tmp_path / 'killed')
    assert [(one.rows, one.shards, one.raw_bytes, one.errors) for one in again.values()] == [
        (one.rows, one.shards, one.raw_bytes, one.errors) for one in reports.values()
    ]


def test_a_broken_member_stops_a_conversion_that_is_told_to(
    original: tuple[Original, Path, Made], tmp_path: Path
) -> None:
    described, root, _ = original
    check_stops_at_a_broken_member(described, root, tmp_path / 'out')


@pytest.mark.parametrize('layout', ['imagenet', 'imagenet_tars'])
def test_imagenet_has_labels_of_sorted_classes(tmp_path: Path, layout: str) -> None:
    if layout == 'imagenet_tars':
        pytest.importorskip('scipy')
    make = MAKERS[layout][1]
    make(tmp_path / 'in', broken=False)  # type: ignore[call-arg]
    IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', progress_bar=False)
    train, val = rows_of(tmp_path / 'out' / 'train'), rows_of(tmp_path / 'out' / 'val')

    classes = json.loads((tmp_path / 'out' / 'val' / 'classes.json').read_text())
    assert classes == ['n00000001', 'n00000002', 'n00000003']
    # The maker gives image number n the class n modulo 3.
    label_of = {image_key(jpeg(number)): number % 3 for number in range(12)}
    assert all(label_of[pixels_key(row['x'])] == row['y'] for row in train)
    val_label_of = {image_key(jpeg(1000 + number)): number % 3 for number in range(6)}
    assert all(val_label_of[pixels_key(row['x'])] == row['y'] for row in val)
    assert sorted(row['i'] for row in train) == list(range(12))
    assert [row['i'] for row in train] != list(range(12))
    IMAGENET.convert(tmp_path / 'in', tmp_path / 'files', shuffle=False, splits=['train'], progress_bar=False)
    assert [row['i'] for row in rows_of(tmp_path / 'files' / 'train')] == list(range(12))


def image_key(data: bytes) -> bytes:
    return pixels_key(Image.open(BytesIO(data)))


def pixels_key(image: Any) -> bytes:
    return np.asarray(image).tobytes()


def test_larger_images_become_smaller_ones_if_asked_to(tmp_path: Path) -> None:
    folder = tmp_path / 'in' / 'train' / 'n1'
    folder.mkdir(parents=True)
    (folder / 'large.JPEG').write_bytes(jpeg(1, width=64, height=48))
    (folder / 'small.JPEG').write_bytes(jpeg(2))
    IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', resize=24, shuffle=False, progress_bar=False)

    large, small = rows_of(tmp_path / 'out' / 'train')
    assert (large['x'].size, small['x'].size) == ((32, 24), (24, 20))
    assert jpeg(2) in b''.join(path.read_bytes() for path in (tmp_path / 'out' / 'train').glob('*.mds'))
    with pytest.raises(ConfigError, match='`quality` is 1 to 100'):
        IMAGENET.convert(tmp_path / 'in', tmp_path / 'other', quality=0)


def test_files_that_pillow_would_run_a_program_for_and_forged_sizes_are_broken(tmp_path: Path) -> None:
    folder = tmp_path / 'in' / 'train' / 'n1'
    folder.mkdir(parents=True)
    (folder / 'good.JPEG').write_bytes(jpeg(1))
    (folder / 'program.JPEG').write_bytes(b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n')
    (report,) = IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', progress_bar=False).values()
    assert [error.input for error in report.errors] == ['train/n1/program.JPEG']
    assert 'no image of this kind' in report.errors[0].error

    (tmp_path / 'file').write_bytes(b'12345678')
    for begin, size in ((0, 1 << 60), (4, 5), (0, -1)):
        with pytest.raises(FormatError, match='lies within its file'):
            Member('file', begin, size, '', '').read(tmp_path)
    assert Member('file', 4, 4, '', '').read(tmp_path) == b'5678'


@pytest.mark.parametrize('settings', [{}, {'validate': False, 'resize': 8}])
def test_reports_of_files_that_are_no_images_hold_no_addresses(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = tmp_path / 'in' / 'train' / 'n1'
    folder.mkdir(parents=True)
    (folder / 'good.JPEG').write_bytes(jpeg(1))
    (folder / 'text.JPEG').write_bytes(b'no image')
    (report,) = IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', progress_bar=False, **settings).values()
    assert [error.input for error in report.errors] == ['train/n1/text.JPEG']
    assert 'no image of this kind' in report.errors[0].error
    assert 'object at' not in report.errors[0].error


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:
    for name in ('.ipynb_checkpoints', 'n1', 'n2'):
        (tmp_path / 'in' / 'train' / name).mkdir(parents=True)
        (tmp_path / 'in' / 'train' / name / 'a.JPEG').write_bytes(jpeg(1))
    IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', progress_bar=False)
    assert json.loads((tmp_path / 'out' / 'train' / 'classes.json').read_text()) == ['n1', 'n2']
    assert sorted(row['y'] for row in rows_of(tmp_path / 'out' / 'train')) == [0, 1]


def test_the_working_folder_can_be_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_ade20k(tmp_path / 'in')
    (tmp_path / 'out').mkdir()
    monkeypatch.chdir(tmp_path / 'out')
    for _ in range(2):
        reports = ADE20K.convert(tmp_path / 'in', '.', exist_ok=True, progress_bar=False)
        assert {split: report.rows for split, report in reports.items()} == made.rows


def test_a_file_that_unpacks_to_too_much_is_broken(tmp_path: Path) -> None:
    folder = 'cifar-10-batches-py'
    made = make_cifar10(tmp_path / 'unpacked', broken=False)
    archive = BytesIO()
    with tarfile.open(fileobj=archive, mode='w') as tar:
        for name in ('batches.meta', *(f'data_batch_{number}' for number in range(1, 5))):
            tar.add(tmp_path / 'unpacked' / folder / name, f'{folder}/{name}')
        end = tar.offset
    huge = tarfile.TarInfo(f'{folder}/data_batch_5')
    huge.size = (1 << 28) + 1
    (tmp_path / 'in').mkdir()
    packed = gzip.compress(archive.getvalue()[:end] + huge.tobuf())
    (tmp_path / 'in' / 'cifar-10-python.tar.gz').write_bytes(packed)
    (report,) = CIFAR10.convert(tmp_path / 'in', tmp_path / 'out', splits=['train'], progress_bar=False).values()
    assert report.rows == made.rows['train'] - 20
    assert [error.input for error in report.errors] == [f'cifar-10-python.tar.gz:{folder}/data_batch_5']
    assert 'has at most 268435456 bytes' in report.errors[0].error


def test_a_tar_that_leads_back_to_its_begin_is_damaged(tmp_path: Path) -> None:
    first, back = tarfile.TarInfo('first'), tarfile.TarInfo('back')
    head = bytearray(back.tobuf())
    head[124:136] = (-1024).to_bytes(12, 'big', signed=True)
    # Of all bytes, with spaces in the place of the sum itself.
    head[148:156] = b'%06o\0 ' % (sum(head[:148]) + sum(head[156:]) + 8 * 0x20)
    (tmp_path / 'a.tar').write_bytes(first.tobuf() + head + bytes(1024))
    names: list[str] = []
    # Newer Pythons end such a tar by themselves.
    with contextlib.suppress(FormatError):
        for member in itertools.islice(tar_members(tmp_path, 'a.tar'), 9):
            names.append(member.name)
    assert names == ['first']


def test_a_tar_is_read_to_its_end_and_a_link_in_it_is_refused(tmp_path: Path) -> None:
    one, link = tarfile.TarInfo('one').tobuf(), tarfile.TarInfo('link')
    (tmp_path / 'a.tar').write_bytes(b'before' + one + bytes(1024) + tarfile.TarInfo('two').tobuf() + bytes(1024))
    members = list(tar_members(tmp_path, 'a.tar', begin=6))
    assert [(member.name, member.begin) for member in members] == [('one', 518), ('two', 2054)]
    link.type, link.linkname = tarfile.LNKTYPE, 'one'
    (tmp_path / 'a.tar').write_bytes(one + link.tobuf() + bytes(1024))
    with pytest.raises(FormatError, match=r"'link' at byte 512 of a.tar is a hard link"):
        list(tar_members(tmp_path, 'a.tar'))


def test_photographs_in_grey_become_rgb(tmp_path: Path) -> None:
    folder = tmp_path / 'in' / 'val' / 'n1'
    folder.mkdir(parents=True)
    Image.new('L', (9, 8), 51).save(folder / 'grey.JPEG')
    IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', progress_bar=False)
    dataset = {'local': str(tmp_path / 'out'), 'split': 'val', 'batch_size': 1}
    image, _ = StreamingImageNet(**dataset)[0]
    assert (tuple(image.shape), image.unique().tolist()) == ((3, 8, 9), [pytest.approx(0.2)])
    decoded, _ = StreamingImageNet(**dataset, decode={'x': 'tensor'})[0]
    assert str(decoded.dtype) == 'torch.uint8'


def test_the_commands_of_headrace_and_of_mosaicml_do_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_imagenet(tmp_path / 'in')
    assert main(['convert', 'imagenet', str(tmp_path / 'in'), str(tmp_path / 'a'), '--hashes', 'xxh64']) == 0
    shown = capsys.readouterr().out
    assert 'train: Wrote 13 rows' in shown
    assert 'train: Left out 3 bad inputs.' in shown
    arguments = ['--in_root', str(tmp_path / 'in'), '--out_root', str(tmp_path / 'b'), '--hashes', 'xxh64']
    assert main_imagenet([*arguments, '--progress_bar', '0', '--leave', '0', '--validate', '1', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['train']['num_errors'] == 3
    assert digests(tmp_path / 'a') == digests(tmp_path / 'b')
    # A split without a good record is a failure, in spite of its report.
    (tmp_path / 'none' / 'train' / 'n1').mkdir(parents=True)
    (tmp_path / 'none' / 'train' / 'n1' / 'bad.JPEG').write_bytes(b'')
    assert main(['convert', 'imagenet', str(tmp_path / 'none'), str(tmp_path / 'c')]) == 1


def test_originals_that_cannot_be_right_are_refused_before_the_work(tmp_path: Path) -> None:
    make_imagenet(tmp_path / 'in', broken=False)
    out = tmp_path / 'out'
    with pytest.raises(ObjectNotFoundError, match='neither the folder'):
        IMAGENET.convert(tmp_path / 'in' / 'train', out)
    with pytest.raises(ConfigError, match="got 'test'"):
        IMAGENET.convert(tmp_path / 'in', out, splits=['test'])
    with pytest.raises(ArgumentError, match='`rezise` is not known'):
        IMAGENET.convert(tmp_path / 'in', out, rezise=3)
    with pytest.raises(ConfigError, match='in one another'):
        IMAGENET.convert(tmp_path / 'in', tmp_path / 'in' / 'out')
    (tmp_path / 'in' / 'train' / 'n0').symlink_to(tmp_path / 'unmounted')
    with pytest.raises(ObjectNotFoundError, match='train/n0: it is a link to'):
        IMAGENET.convert(tmp_path / 'in', out)
    (tmp_path / 'in' / 'train' / 'n0').unlink()
    with pytest.raises(ConfigError, match='of this machine'):
        IMAGENET.convert('s3://bucket/imagenet', out)
    (tmp_path / 'in' / 'val' / 'n7').mkdir()
    (tmp_path / 'in' / 'val' / 'n7' / 'a.JPEG').write_bytes(jpeg(1))
    with pytest.raises(ConfigError, match="has 'n7', which is not among the 3 others"):
        IMAGENET.convert(tmp_path / 'in', out, splits=['val'])
    # The number in the name of an image to train must not choose a label of the validation images.
    (tmp_path / 'trained' / 'train').mkdir(parents=True)
    (tmp_path / 'trained' / 'train' / 'n00000001_1.JPEG').write_bytes(jpeg(1))
    with pytest.raises(ConfigError, match='outside of one'):
        IMAGENET.convert(tmp_path / 'trained', out)
    (tmp_path / 'flat' / 'val').mkdir(parents=True)
    (tmp_path / 'flat' / 'val' / 'ILSVRC2012_val_00000001.JPEG').write_bytes(jpeg(1))
    with pytest.raises(ConfigError, match='devkit_t12'):
        IMAGENET.convert(tmp_path / 'flat', out)
    (tmp_path / 'coco' / 'annotations').mkdir(parents=True)
    (tmp_path / 'coco' / 'train2017').mkdir()
    (tmp_path / 'coco' / 'annotations' / 'instances_train2017.json').write_text('{"images": []')
    with pytest.raises(FormatError, match="COCO's annotations are JSON"):
        COCO.convert(tmp_path / 'coco', out)
    assert not out.exists()


def test_other_settings_do_not_keep_a_finished_split(tmp_path: Path) -> None:
    make_imagenet(tmp_path / 'in', broken=False)
    IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', progress_bar=False)
    with pytest.raises(FileExistsError, match='not empty'):
        IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', shuffle=False, progress_bar=False)
    (tmp_path / 'in' / 'train' / 'n00000001' / 'new.JPEG').write_bytes(jpeg(50))
    with pytest.raises(FileExistsError, match='not empty'):
        IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', progress_bar=False)
    reports = IMAGENET.convert(tmp_path / 'in', tmp_path / 'out', exist_ok=True, progress_bar=False)
    assert reports['train'].rows == 13


def test_the_classes_give_what_mosaicmls_give(tmp_path: Path) -> None:
    import torch

    for name, make in (('imagenet', make_imagenet), ('cifar10', make_cifar10), ('coco', make_coco)):
        make(tmp_path / name, broken=False)
        MAKERS[name][0].convert(tmp_path / name, tmp_path / 'out' / name, progress_bar=False)
    make_ade20k(tmp_path / 'ade20k', broken=False)
    ADE20K.convert(tmp_path / 'ade20k', tmp_path / 'out' / 'ade20k', progress_bar=False)

    def place(name: str) -> dict[str, Any]:
        return {'local': str(tmp_path / 'out' / name), 'split': 'train', 'batch_size': 2}

    x, y = StreamingImageNet(**place('imagenet'))[0]
    assert (x.shape, x.dtype, y in range(3)) == ((3, 20, 24), torch.float32, True)
    assert 0 <= x.min() < x.max() <= 1
    transformed = StreamingImageNet(
        **place('imagenet'), transform=lambda image: image.size, target_transform=lambda label: label + 100
    )[0]
    assert transformed == ((24, 20), y + 100)
    assert StreamingImageNet(**place('imagenet'), transforms=lambda x, y: (y, x.size))[0] == (y, (24, 20))
    with pytest.raises(ConfigError, match='either `transforms`'):
        StreamingImageNet(**place('imagenet'), transforms=lambda x, y: (x, y), transform=lambda x: x)
    with pytest.raises(ArgumentError, match='no argument `transfrom`'):
        StreamingImageNet(**place('imagenet'), transfrom=None)

    cifar = StreamingCIFAR10(**place('cifar10'))
    assert [label for _, label in cifar[:12]] == [number % 10 for number in range(12)]  # type: ignore[misc]
    batch = np.random.default_rng(10).integers(0, 255, (20, 3072), dtype=np.uint8)
    np.testing.assert_array_equal(cifar[3][0].numpy(), (batch[3].reshape(3, 32, 32) / 255).astype(np.float32))
    classes = tmp_path / 'out' / 'cifar10' / 'train' / 'classes.json'
    assert json.loads(classes.read_text()) == CIFAR_CLASSES

    found = {sample[1]: sample for sample in StreamingCOCO(**place('coco'))[:]}
    image, _, size, boxes, labels = found[501]
    assert (image.mode, size, boxes.dtype, labels.dtype) == ('RGB', (20, 24), np.float32, np.int64)
    expected = [[1.5 / 24, 2.25 / 20, (7.5 + box) / 24, 10.375 / 20] for box in range(2)]
    np.testing.assert_array_equal(boxes, np.array(expected, np.float32))
    assert labels.tolist() == [1, 2]
    moved = StreamingCOCO(**place('coco'), transform=lambda image, size, boxes, labels: (size, size, labels, boxes))[0]
    assert moved[0] == (20, 24)

    scene, annotation = StreamingADE20K(**place('ade20k'))[0]
    assert (scene.mode, annotation.mode, scene.size) == ('RGB', 'L', annotation.size)
    changed = StreamingADE20K(
        **place('ade20k'),
        joint_transform=lambda pair: (pair[1], pair[0]),
        transform=lambda image: image.mode,
        target_transform=lambda image: image.mode,
    )
    assert changed[0] == ('L', 'RGB')
