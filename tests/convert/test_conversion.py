"""Each source gives its rows, value by value; any number of workers writes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import JSONWriter, MDSWriter, StreamingDataset
from headrace.cli import main
from headrace.convert import kept_indexes, rollback
from headrace.errors import ConfigError, ConversionError
from tests.support.sources.converted import convert
from tests.support.sources.sources_to_convert import digests, make_images, rows_of


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


def test_emptying_an_output_leaves_what_links_lead_to(tmp_path: Path) -> None:
    make_images(tmp_path / 'precious', {'a': 1})
    convert([{'i': 1}], tmp_path / 'out')
    (tmp_path / 'out' / 'link').symlink_to(tmp_path / 'precious')
    convert([{'i': 2}], tmp_path / 'out', exist_ok=True)
    assert list(digests(tmp_path / 'precious')) == ['a/0-0.jpg']


def test_splits(tmp_path: Path) -> None:
    make_images(tmp_path / 'data' / 'train', {'a': 3, 'b': 2})
    make_images(tmp_path / 'data' / 'val', {'b': 1})
    assert convert(tmp_path / 'data', tmp_path / 'out', split='train').rows == 5
    with pytest.raises(ConfigError, match='`split` of convert'):
        convert([{'i': 1}], tmp_path / 'rows', split='train')


def test_an_append_adds_behind_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / 'out'
    first = convert([{'n': i, 't': 'x'} for i in range(300)], out, append=True, size_limit=400)
    assert first.rows_before == 0
    shards = {name: digest for name, digest in digests(out).items() if name.startswith('shard')}
    for number in range(1, 4):
        rows = [{'t': 'y', 'n': i} for i in range(300 * number, 300 * number + 300)]
        report = convert(rows, out, append=True, size_limit=400, compression='zstd' if number == 2 else None)
        assert (report.rows, report.rows_before) == (300, 300 * number)
    assert [row['n'] for row in rows_of(out)] == list(range(1200))
    assert shards.items() <= digests(out).items()
    with MDSWriter(out=str(out), columns={'n': 'int', 't': 'str'}, append=True) as writer:
        writer.write({'n': -1, 't': ''})
    convert([{'n': -2, 't': ''}], out, append=True)
    assert [row['n'] for row in rows_of(out)][1200:] == [-1, -2]
    assert [kept.samples for kept in kept_indexes(out)] == [300, 600, 900, 1201]
    rollback(out, 'index.00002.json')
    assert [row['n'] for row in rows_of(out)] == list(range(600))
    convert([{'n': -3, 't': ''}], out, append=True)  # shards of no index stay
    assert [row['n'] for row in rows_of(out)][600:] == [-3]
    rollback(out, 'index.00005.json')
    assert len(rows_of(out)) == 1202
    assert main(['verify', str(out)]) == 0


def test_an_append_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 12, 'b': 13})
    for workers in (1, 2):
        convert(tmp_path / 'data', tmp_path / str(workers), size_limit=1500)
        convert(tmp_path / 'data', tmp_path / str(workers), size_limit=1500, append='all', workers=workers)
    assert digests(tmp_path / '1') == digests(tmp_path / '2')
    assert len(rows_of(tmp_path / '1')) == 50


def test_an_append_keeps_columns_and_encodings(tmp_path: Path) -> None:
    out = tmp_path / 'out'
    convert([{'n': 1, 't': 'x'}], out, columns={'n': 'uint8', 't': 'str'})
    before = digests(out)
    for rows, options, message in [
        ([{'n': 2}], {}, "'t' is str in the dataset and missing in the source"),
        ([{'n': 2, 't': '', 'more': 1}], {}, "'more' is missing in the dataset and given in the source"),
        ([{'n': 2, 't': ''}], {'columns': {'n': 'int64', 't': 'str'}}, "'n' is uint8 in the dataset and int64"),
        ([{'n': 2, 't': ''}], {'columns': ['n']}, "'t' is str in the dataset and missing"),
        ([{'n': 2, 't': ''}], {'exist_ok': True}, 'both are set'),
    ]:
        with pytest.raises(ConfigError, match=message):
            convert(rows, out, append=True, **options)
    assert digests(out) == before
    with pytest.raises(ConversionError, match='holds integers from 0 to 255, but got 256'):
        convert([{'n': 256, 't': ''}], out, append=True)
    assert [row['n'] for row in rows_of(out)] == [1]
    with pytest.raises(ConfigError, match='remove .headrace-convert'):
        convert([{'n': 3, 't': ''}, {'n': 4, 't': ''}], out, append=True, hashes=['xxh64'])


def test_an_append_keeps_what_columns_mean(tmp_path: Path) -> None:
    datasets = pytest.importorskip('datasets')
    out = tmp_path / 'out'
    convert(datasets.Dataset.from_dict({'b': [True, False], 'n': [1, 2]}), out)
    convert([{'b': 1, 'n': 3}], out, append=True)  # nobody knows what a program's numbers mean
    assert json.loads((out / 'index.json').read_bytes())['meanings'] == {'b': 'bool'}
    before = digests(out)
    other = datasets.Dataset.from_dict(
        {'b': [1], 'n': [2]}, datasets.Features(b=datasets.Value('uint8'), n=datasets.Value('int64'))
    )
    with pytest.raises(
        ConfigError, match="'b' is bool in the dataset, and uint8 in the source.*older version.*`meanings`"
    ):
        convert(other, out, append=True)
    assert digests(out) == before
    assert [row['b'] for row in rows_of(out)] == [1, 0, 1]


def test_an_append_shares_the_classes(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 5, 'b': 5})
    make_images(tmp_path / 'other', {'b': 5, 'c': 5})
    convert(tmp_path / 'data', tmp_path / 'out')
    before = digests(tmp_path / 'out')
    with pytest.raises(ConfigError, match=r'share classes\.json'):
        convert(tmp_path / 'other', tmp_path / 'out', append=True)
    assert {name: digest for name, digest in digests(tmp_path / 'out').items() if 'index.0' not in name} == before


def test_an_append_finds_no_dataset_to_add_to(tmp_path: Path) -> None:
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'notes.txt').write_text('mine')
    with pytest.raises(FileExistsError, match='`append=True` adds to a finished dataset'):
        convert([{'n': 1}], tmp_path / 'out', append=True)
    with JSONWriter(out=str(tmp_path / 'lines'), columns={'n': 'int'}) as writer:
        writer.write({'n': 1})
    with pytest.raises(ConfigError, match='those of .*lines are json'):
        convert([{'n': 1}], tmp_path / 'lines', append=True)


@pytest.mark.s3
def test_an_append_in_a_bucket(tmp_path: Path, s3_server) -> None:
    url = f's3://{s3_server.new_bucket()}/data'
    convert([{'n': i} for i in range(10)], url)
    convert([{'n': i} for i in range(10, 30)], url, append=True, workers=2)
    dataset = StreamingDataset(remote=url, local=str(tmp_path / 'cache'), batch_size=1)
    assert [int(sample['n']) for sample in dataset] == list(range(30))
