"""Each source gives its rows, value by value; any number of workers writes the same bytes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sources_to_convert import digests, make_images, rows_of

from headrace.convert import convert as convert_with_bar
from headrace.errors import ConfigError, ConversionError, ObjectNotFoundError

convert = partial(convert_with_bar, progress_bar=False)


def pixels(image):
    return np.asarray(image.convert('RGB')).tolist()


def squares(number):
    """Several samples, one, or none."""
    if number % 3 == 0:
        return None
    if number % 3 == 1:
        return {'n': number, 'square': number**2, 'part': 0}
    return ({'n': number, 'square': number**2, 'part': part} for part in range(3))


def expected_squares(numbers):
    return [{'n': n, 'square': n**2, 'part': part} for n in numbers if n % 3 for part in range(3 if n % 3 == 2 else 1)]


def test_an_image_folder_is_that_of_torchvision(tmp_path: Path) -> None:
    folders = pytest.importorskip('torchvision.datasets')
    make_images(tmp_path / 'data', {'dog': 7, 'a cat': 5, 'a-b': 4, 'ünï': 3})
    (tmp_path / 'data' / 'dog' / 'readme.txt').write_text('no image')
    report = convert(tmp_path / 'data', tmp_path / 'out', columns=['image', 'label', 'path'])
    theirs = folders.ImageFolder(str(tmp_path / 'data'))

    assert report.columns == {'image': 'jpeg', 'label': 'int', 'path': 'str'}
    assert json.loads((tmp_path / 'out' / 'classes.json').read_text()) == theirs.classes
    rows = rows_of(tmp_path / 'out')
    assert [(str(tmp_path / 'data' / row['path']), row['label']) for row in rows] == theirs.samples
    assert [pixels(row['image']) for row in rows] == [pixels(image) for image, _ in theirs]


@pytest.mark.parametrize('extension', ['jpg', 'png', 'both'])
def test_bytes_of_images_are_kept(tmp_path: Path, extension: str) -> None:
    for kind in ('jpg', 'png') if extension == 'both' else (extension,):
        make_images(tmp_path / 'data', {f'x-{kind}': 3}, extension=kind)
    report = convert(tmp_path / 'data', tmp_path / 'out')

    assert report.columns['image'] == ('jpeg' if extension == 'jpg' else 'png')
    stored = (tmp_path / 'out' / 'shard.00000.00000.mds').read_bytes()
    files = [path for path in (tmp_path / 'data').rglob('*') if path.is_file()]
    assert len(files) == len(rows_of(tmp_path / 'out')) == 3 * (1 + (extension == 'both'))
    assert all(path.read_bytes() in stored for path in files)


def test_links_to_folders_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    make_images(tmp_path / 'elsewhere', {'cat': 3})
    make_images(tmp_path / 'data', {'dog': 2})
    (tmp_path / 'data' / 'cat').symlink_to(tmp_path / 'elsewhere' / 'cat')
    (tmp_path / 'data' / 'dog' / 'loop').symlink_to(tmp_path / 'data')

    convert(tmp_path / 'data', tmp_path / 'out', columns=['label'])
    assert {row['label'] for row in rows_of(tmp_path / 'out')} == {0, 1}


@pytest.mark.parametrize(
    ('paths', 'error'),
    [
        (['train/cat/1.jpg', 'val/cat/1.jpg'], "Convert each one by itself, with split='train'"),
        (['cat/1.jpg', '2.jpg'], "holds the image '2.jpg' outside"),
    ],
)
def test_trees_that_are_no_image_folder(tmp_path: Path, paths: list[str], error: str) -> None:
    for path in paths:
        (tmp_path / 'data' / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (2, 2)).save(tmp_path / 'data' / path)
    with pytest.raises(ConfigError, match=error):
        convert(tmp_path / 'data', tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_a_function_over_inputs(tmp_path: Path) -> None:
    report = convert(range(20), tmp_path / 'out', function=squares)

    assert rows_of(tmp_path / 'out') == expected_squares(range(20))
    assert (report.inputs, report.rows, report.num_errors) == (20, len(expected_squares(range(20))), 0)
    assert report.columns == {'n': 'int', 'square': 'int', 'part': 'int'}


@pytest.mark.parametrize('kind', ['list', 'generator', 'torch', 'tuples'])
def test_rows_and_iterables(tmp_path: Path, kind: str) -> None:
    samples = [{'id': i, 'x': torch.full((2,), i), 'y': torch.tensor(i / 2), 'text': 'é' * i} for i in range(50)]

    class MapStyle(torch.utils.data.Dataset):
        def __len__(self):
            return len(samples)

        def __getitem__(self, i):
            return samples[i]

    source = {
        'list': samples,
        'generator': (sample for sample in samples),
        'torch': MapStyle(),
        'tuples': [tuple(sample.values()) for sample in samples],
    }[kind]
    columns = ['id', 'x', 'y', 'text'] if kind == 'tuples' else None
    report = convert(source, tmp_path / 'out', columns=columns, size_limit=600)

    rows = rows_of(tmp_path / 'out')
    assert [(row['id'], row['x'].tolist(), row['y'], row['text']) for row in rows] == [
        (i, [i, i], i / 2, 'é' * i) for i in range(50)
    ]
    assert report.columns == {'id': 'int', 'x': 'ndarray:int64:2', 'y': 'float64', 'text': 'str'}
    assert report.shards > 5


def test_datasets_of_torchvision(tmp_path: Path) -> None:
    folders = pytest.importorskip('torchvision.datasets')
    fake = folders.FakeData(5, image_size=(3, 4, 4), num_classes=3)
    report = convert(fake, tmp_path / 'fake')
    assert report.columns == {'image': 'png', 'label': 'int'}
    rows = rows_of(tmp_path / 'fake')
    assert [(pixels(row['image']), row['label']) for row in rows] == [(pixels(image), label) for image, label in fake]
    make_images(tmp_path / 'data', {'b': 4, 'a': 3})
    data = folders.ImageFolder(str(tmp_path / 'data'))
    assert convert(data, tmp_path / 'folder').columns == {'image': 'jpeg', 'label': 'int'}
    assert [row['label'] for row in rows_of(tmp_path / 'folder')] == data.targets
    assert (tmp_path / 'folder' / 'classes.json').exists()
    chosen = folders.ImageFolder(str(tmp_path / 'data'), is_valid_file=lambda path: '-1' in path)
    assert convert(chosen, tmp_path / 'chosen').rows == len(chosen)
    changed = folders.ImageFolder(str(tmp_path / 'data'), transform=lambda image: image.convert('L'))
    convert(changed, tmp_path / 'changed')
    assert {row['image'].mode for row in rows_of(tmp_path / 'changed')} == {'L'}


def test_tuples_without_names(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"columns=\['image', 'label'\]"):
        convert([(1, 2)], tmp_path / 'out')


def test_tuples_with_encodings(tmp_path: Path) -> None:
    data = [(Image.new('L', (3, 3), i), i) for i in range(5)]
    report = convert(data, tmp_path / 'out', columns={'image': 'png', 'label': 'uint8'})

    assert report.columns == {'image': 'png', 'label': 'uint8'}
    assert [(row['image'].getpixel((0, 0)), row['label']) for row in rows_of(tmp_path / 'out')] == [
        (i, i) for i in range(5)
    ]


def test_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip('datasets')
    make_images(tmp_path / 'images', {'x': 12}, extension='png')
    files = sorted(str(path) for path in (tmp_path / 'images').rglob('*.png'))
    data = datasets.Dataset.from_dict(
        {
            'image': files,
            'tokens': [list(range(i + 1)) for i in range(12)],
            'text': [f'text {i}' for i in range(12)],
            'maybe': [i if i % 2 else None for i in range(12)],
        }
    ).cast_column('image', datasets.Image())
    data = data.shuffle(seed=3)
    convert(data, tmp_path / 'out')

    rows = rows_of(tmp_path / 'out')
    assert [(row['text'], row['tokens'].tolist(), row['maybe'], pixels(row['image'])) for row in rows] == [
        (row['text'], row['tokens'], row['maybe'], pixels(row['image'])) for row in data
    ]
    convert(data, tmp_path / 'some', columns=['text'], limit=5)
    assert rows_of(tmp_path / 'some') == [{'text': text} for text in data['text'][:5]]


def sources(tmp_path: Path, kind: str):
    if kind == 'images':
        make_images(tmp_path / 'data', {'a': 30, 'b': 31}) if not (tmp_path / 'data').exists() else None
        return tmp_path / 'data', {}
    if kind == 'function':
        return range(40), {'function': squares, 'columns': {'n': 'int', 'square': 'int', 'part': 'int'}}
    samples = [{'id': i, 'text': str(i) * (i % 50)} for i in range(400)]
    return (iter(samples) if kind == 'iterable' else samples), {}


@pytest.mark.parametrize('kind', ['images', 'function', 'iterable', 'rows'])
def test_any_number_of_workers_writes_the_same(tmp_path: Path, kind: str) -> None:
    found = []
    for workers in (1, 4):
        source, options = sources(tmp_path, kind)
        out = tmp_path / f'out-{workers}'
        settings = {'compression': 'zstd', 'hashes': ['xxh64'], 'size_limit': 2000}
        report = convert(source, out, workers=workers, **settings, **options)
        assert report.shards > 4
        found.append(digests(out))

    assert found[0] == found[1]


@pytest.mark.parametrize('method', ['spawn', 'forkserver'])
def test_a_lambda_needs_fork(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigError, match=rf'start by .{method}.* cannot be pickled.*top of a module'):
        convert(
            [1, 2], tmp_path / 'out', function=lambda i: {'i': i}, columns={'i': 'int'}, workers=2, start_method=method
        )


@pytest.mark.slow
def test_spawned_workers(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 10, 'b': 11})
    for method in ('fork', 'spawn'):
        convert(tmp_path / 'data', tmp_path / method, workers=2, start_method=method, size_limit=2000)
    assert digests(tmp_path / 'fork') == digests(tmp_path / 'spawn')


def test_shards_are_full_but_the_last_of_a_task(tmp_path: Path) -> None:
    report = convert([{'x': b'x' * 90} for _ in range(3000)], tmp_path / 'out', size_limit=5000)
    shards = json.loads((tmp_path / 'out' / 'index.json').read_text())['shards']

    sizes = [shard['raw_data']['bytes'] for shard in shards]
    assert max(sizes) <= 5000
    assert sum(size > 4000 for size in sizes) >= 0.9 * len(sizes) - 1
    assert sum(sizes) == report.raw_bytes == report.stored_bytes


def test_no_limit_is_one_shard(tmp_path: Path) -> None:
    assert convert([{'x': i} for i in range(300)], tmp_path / 'out', size_limit=None).shards == 1


def test_the_first_rows(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 5, 'b': 5})
    for name, source in {'rows': [{'i': i} for i in range(9)], 'iter': ({'i': i} for i in range(9))}.items():
        assert convert(source, tmp_path / name, limit=7).rows == 7
    assert convert(tmp_path / 'data', tmp_path / 'images', limit=7).rows == 7


@pytest.mark.parametrize('name', ['../../outside', '/etc/outside', 'a\nb', '.headrace-convert', 'index.json'])
def test_names_of_the_source_name_no_file_of_the_dataset(tmp_path: Path, name: str) -> None:
    convert([{'path': name}, {'path': name}], tmp_path / 'a' / 'b' / 'out')
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob('*') if path.is_file())

    assert found == ['a/b/out/index.json', 'a/b/out/shard.00000.00000.mds']


def test_hostile_names_of_classes(tmp_path: Path) -> None:
    for name in ('..x', '.headrace-convert', 'index.json', 'a\\b', 'c\nd', '%2e%2e'):
        make_images(tmp_path / 'data', {name: 1})
    convert(tmp_path / 'data', tmp_path / 'out', columns=['path'])

    assert sorted(digests(tmp_path / 'out')) == ['classes.json', 'index.json', 'shard.00000.00000.mds']
    assert len(rows_of(tmp_path / 'out')) == 6


@pytest.mark.parametrize(
    ('options', 'error'),
    [
        ({'workers': 0}, '`workers`'),
        ({'on_error': 'ignore'}, '`on_error`'),
        ({'limit': 0}, '`limit`'),
        ({'compression': 'none'}, 'none'),
        ({'hashes': ['no-such-hash']}, 'no-such-hash'),
        ({'size_limit': '1 shard'}, 'size'),
        ({'columns': ['other']}, "'other'"),
        ({'columns': 'i'}, r"Pass \['i'\]"),
        ({'columns': {'i': 'no-such-encoding'}}, 'no-such-encoding'),
    ],
)
def test_wrong_arguments_before_anything_is_written(tmp_path: Path, options: dict, error: str) -> None:
    with pytest.raises((ConfigError, ConversionError), match=error):
        convert([{'i': 1}], tmp_path / 'out', **options)
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(('source', 'out'), [('data', 'data/out'), ('data/in', 'data'), ('data', 'other/../data')])
def test_an_output_in_its_source_or_around_it(tmp_path: Path, source: str, out: str) -> None:
    make_images(tmp_path / 'data' / 'in', {'a': 1})
    (tmp_path / 'other').mkdir()
    with pytest.raises(ConfigError, match='lie in one another'):
        convert(tmp_path / source, tmp_path / out, exist_ok=True)
    assert list(digests(tmp_path)) == ['data/in/a/0-0.jpg']


def test_an_output_around_a_file_of_a_glob(tmp_path: Path) -> None:
    (tmp_path / 'data-1').mkdir()
    (tmp_path / 'data-1' / 'rows.csv').write_text('a\n1\n')
    source = f'{tmp_path}/data-*/*.csv'
    with pytest.raises(ConfigError, match='would delete'):
        convert(source, tmp_path / 'data-1', exist_ok=True)
    assert list(digests(tmp_path)) == ['data-1/rows.csv']
    convert(source, tmp_path / 'data-mds', progress_bar=False)
    convert(source, tmp_path / 'data-mds', progress_bar=False, exist_ok=True)


def test_splits(tmp_path: Path) -> None:
    make_images(tmp_path / 'data' / 'train', {'a': 3, 'b': 2})
    make_images(tmp_path / 'data' / 'val', {'b': 1})
    assert convert(tmp_path / 'data', tmp_path / 'out', split='train').rows == 5
    with pytest.raises(ConfigError, match='`split` of convert'):
        convert([{'i': 1}], tmp_path / 'rows', split='train')


def test_an_iterable_dataset_of_torch(tmp_path: Path) -> None:
    class Numbers(torch.utils.data.IterableDataset):
        def __len__(self):
            return 3

        def __iter__(self):
            return ({'i': i} for i in range(3))

    assert convert(Numbers(), tmp_path / 'out').kind == 'iterable'


@pytest.mark.parametrize('source', [7, b'bytes', {'a': 1}])
def test_sources_that_are_none(tmp_path: Path, source: object) -> None:
    with pytest.raises(ConfigError, match='A source is'):
        convert(source, tmp_path / 'out')


def test_a_folder_without_known_data(tmp_path: Path) -> None:
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'notes.md').write_text('nothing')
    with pytest.raises(ObjectNotFoundError, match='No data of a known format'):
        convert(tmp_path / 'data', tmp_path / 'out')
    with pytest.raises(ObjectNotFoundError, match='absent'):
        convert(tmp_path / 'absent', tmp_path / 'out')
