"""Columns that writers find out by themselves, and encodings that are given as objects."""

from __future__ import annotations

import decimal
import io

import numpy as np
import pytest
import torch

from headrace import CSVWriter, JSONWriter, MDSWriter, StreamingDataset
from headrace.errors import ConfigError
from headrace.format import Encoding
from headrace.format.encodings.arrays import NDArray
from headrace.format.encodings.encoding import ENCODINGS
from headrace.format.encodings.texts import Str


def written(out, samples, writer=MDSWriter, **options):
    with writer(out=str(out), **options) as open_writer:
        for sample in samples:
            open_writer.write(sample)
    return open_writer.get_config()


def columns_of(config):
    return dict(zip(config['column_names'], config['column_encodings'], strict=True))


def test_columns_follow_from_the_first_samples(tmp_path, capsys):
    torch = pytest.importorskip('torch')
    image = pytest.importorskip('PIL.Image')
    jpeg = io.BytesIO()
    image.new('L', (4, 3)).save(jpeg, 'JPEG', quality=99)
    samples = [
        {
            'id': i, 'x': 0.5 * i, 'text': str(i), 'raw': b'a' * i, 'tokens': np.arange(4, dtype='u2') + i,
            'some': np.ones(i + 1, 'f4'), 'any': np.ones(2, 'f4' if i else 'i8'), 'tensor': torch.ones(2, 3),
            'number': np.float32(i), 'flag': True, 'bit': np.bool_(i), 'meta': {'i': [i]},
            'photo': image.open(io.BytesIO(jpeg.getvalue())), 'mixed': 1 if i else 1.5,
        }
        for i in range(100)
    ]  # fmt: skip
    config = written(tmp_path / 'data', samples)
    wanted = {
        'id': 'int', 'x': 'float64', 'text': 'str', 'raw': 'bytes', 'tokens': 'ndarray:uint16:4',
        'some': 'ndarray:float32',
        'any': 'ndarray', 'tensor': 'ndarray:float32:2,3', 'number': 'float32', 'flag': 'int', 'bit': 'uint8',
        'meta': 'json', 'photo': 'jpeg', 'mixed': 'float64',
    }  # fmt: skip
    assert columns_of(config) == wanted
    assert capsys.readouterr().out.count('Columns by the first 64 samples') == 1
    dataset = StreamingDataset(local=str(tmp_path / 'data'))
    for i, sample in enumerate(samples):
        for name in ('id', 'x', 'text', 'raw', 'meta', 'flag', 'number', 'mixed'):
            assert dataset[i][name] == sample[name]
        for name in ('tokens', 'some', 'any', 'tensor'):
            assert np.array_equal(dataset[i][name], sample[name])


def test_a_sample_may_be_changed_after_it_was_given(tmp_path):
    tokens, sample = np.zeros(3, np.int32), {}
    with MDSWriter(out=str(tmp_path / 'data')) as writer:
        for i in range(10):
            tokens[:] = i
            sample.update(tokens=tokens)
            writer.write(sample)
            assert writer.num_samples == i + 1
    assert [sample['tokens'][0] for sample in StreamingDataset(local=str(tmp_path / 'data'))[:]] == list(range(10))


def test_columns_of_batches_and_lines(tmp_path):
    with MDSWriter(out=str(tmp_path / 'mds')) as writer:
        writer.write({'id': 0, 'text': 'a', 'tokens': np.zeros(4, 'i2')})
        writer.write_batch({'id': [1, 2], 'text': ['b', 'c'], 'tokens': np.ones((2, 4), 'i2')})
    assert columns_of(writer.get_config()) == {'id': 'int', 'text': 'str', 'tokens': 'ndarray:int16:4'}
    assert [sample['text'] for sample in StreamingDataset(local=str(tmp_path / 'mds'))[:]] == ['a', 'b', 'c']
    table = pytest.importorskip('pyarrow').table({'id': [3, 4], 'text': ['d', 'e']})
    with MDSWriter(out=str(tmp_path / 'table')) as writer:
        writer.write_batch({'id': table['id'], 'text': table['text'], 'x': iter([0.5, 1.5])})
    assert columns_of(writer.get_config()) == {'id': 'int64', 'text': 'str', 'x': 'float64'}
    assert [tuple(sample.values()) for sample in StreamingDataset(local=str(tmp_path / 'table'))[:]] == [
        (3, 'd', 0.5),
        (4, 'e', 1.5),
    ]
    rows = [{'x': 0.5, 'n': 1, 't': 'a'}]
    assert written(tmp_path / 'json', rows, JSONWriter)['columns'] == {'n': 'int', 't': 'str', 'x': 'float'}
    assert columns_of(written(tmp_path / 'csv', rows, CSVWriter)) == {'n': 'int', 't': 'str', 'x': 'float'}


def test_batches_that_tell_no_columns_leave_the_writer_as_it_was(tmp_path):
    with MDSWriter(out=str(tmp_path / 'data')) as writer:
        writer.write_batch({'a': []})
        writer.write({'a': 0})
        writer.write_batch({'a': []})
        with pytest.raises(ConfigError, match='would be int, str'):
            writer.write_batch({'a': ['x']})
        with pytest.raises(ValueError, match='equally many'):
            writer.write_batch({'a': [1], 'b': []})
        writer.write({'a': 1})
        writer.write_batch({'a': [2]})
        assert writer.num_samples == 3
    assert [sample['a'] for sample in StreamingDataset(local=str(tmp_path / 'data'))[:]] == [0, 1, 2]


@pytest.mark.parametrize(
    ('samples', 'message'),
    [
        ([{'a': None}], "column 'a', such as that of sample 0, a NoneType"),
        ([{'a': 1}, {'a': 'x'}], "column 'a', whose encodings would be int, str"),
        ([{'a': 1}, {'b': 1}], r"sample 0 has \['a'\] and sample 1 has \['b'\]"),
        ([{'a': np.zeros(0)}], 'such as that of sample 0, a ndarray'),
    ],
)
def test_values_without_an_encoding_are_refused_at_once(tmp_path, samples, message):
    *good, bad = samples
    with pytest.raises(ConfigError, match=message), MDSWriter(out=str(tmp_path / 'data')) as writer:
        for sample in good:
            writer.write(sample)
        writer.write(bad)


@pytest.mark.parametrize(
    ('values', 'encoding', 'expected'),
    [
        ([1, np.int64(2)], 'int64', [1, 2]),
        ([1, np.int32(2), np.uint8(3)], 'int64', [1, 2, 3]),
        ([np.int8(1), np.uint8(255)], 'int16', [1, 255]),
        ([1.5, np.float32(0.5)], 'float64', [1.5, 0.5]),
        ([np.float32(0.5), np.float16(0.5)], 'float32', [0.5, 0.5]),
        ([1, np.float32(0.5)], 'float64', [1, 0.5]),
    ],
)
def test_numbers_of_several_types_get_the_one_that_holds_them(tmp_path, values, encoding, expected):
    with MDSWriter(out=str(tmp_path / 'data')) as writer:
        for value in values:
            writer.write({'a': value})
    assert writer.get_config()['column_encodings'] == [encoding]
    assert [sample['a'] for sample in StreamingDataset(local=str(tmp_path / 'data'))[:]] == expected


def test_numbers_that_no_type_holds_are_refused(tmp_path):
    with pytest.raises(ConfigError, match='would be int, uint64'), MDSWriter(out=str(tmp_path / 'data')) as writer:
        writer.write_batch({'a': [1, np.uint64(2**64 - 1)]})


@pytest.mark.parametrize('columns', [None, {'a': 'int64', 'n': 'ndarray:int32:2'}])
def test_masked_values_are_refused(tmp_path, columns):
    numbers, arrays = np.ma.array([1, 2]), np.ma.array([[1, 2], [3, 4]], np.int32)
    bad = np.ma.array(arrays, mask=[[False, True], [False, False]])
    with MDSWriter(columns=columns, out=str(tmp_path / 'data')) as writer:
        with pytest.raises(ValueError, match="Column 'a': .*masked values: 1 of 2"):
            writer.write_batch({'a': np.ma.array([1, 2], mask=[False, True]), 'n': arrays})
        with pytest.raises(ValueError, match="Column 'n': .*masked values: 1 of 4"):
            writer.write_batch({'a': numbers, 'n': bad})
        writer.write_batch({'a': numbers, 'n': arrays})
        with pytest.raises(ValueError, match="column 'n': .*masked values: 1 of 2"):
            writer.write({'a': 7, 'n': bad[0]})
    found = StreamingDataset(local=str(tmp_path / 'data'))[:]
    assert [(sample['a'], sample['n'].tolist()) for sample in found] == [(1, [1, 2]), (2, [3, 4])]


class Point(Encoding):
    """Two small numbers."""

    size = 2

    def encode(self, obj):
        return bytes(obj)

    def decode(self, data):
        return tuple(data)


@pytest.mark.parametrize('given', [Point, Point()])
def test_an_encoding_of_the_users_is_registered(tmp_path, given):
    columns = {'at': given, 'text': Str, 'v': NDArray('int16', (2,))}
    config = written(tmp_path / 'data', [{'at': (1, 2), 'text': 'a', 'v': np.ones(2, 'i2')}], columns=columns)
    assert columns_of(config) == {'at': 'Point', 'text': 'str', 'v': 'ndarray:int16:2'}
    assert StreamingDataset(local=str(tmp_path / 'data'))[0]['at'] == (1, 2)
    del ENCODINGS['Point']


def test_functions_are_no_encodings(tmp_path):
    with pytest.raises(
        ConfigError, match="Column 'at' is given the function .*<lambda>, which says how values are written"
    ):
        MDSWriter(out=str(tmp_path / 'data'), columns={'at': lambda obj: bytes(obj)})


@pytest.mark.parametrize(
    ('writer', 'encoding', 'message'),
    [
        (
            MDSWriter,
            int,
            "unsupported encoding <class 'int'>. An encoding is a text. Write 'int' or 'int32' or 'int64'",
        ),
        (MDSWriter, float, "Write 'float64' or 'float32'."),
        (MDSWriter, str, "Write 'str'."),
        (MDSWriter, dict, "Write 'json'."),
        (MDSWriter, bool, "Write 'uint8' or 'int'."),
        (MDSWriter, decimal.Decimal, "Write 'str_decimal'."),
        (MDSWriter, np.ndarray, "Write 'ndarray'. .*ndarray:<dtype>:<d0>"),
        (MDSWriter, np.float32, "Write 'float32'."),
        (MDSWriter, np.dtype('int16'), "Write 'int16'."),
        (MDSWriter, torch.float16, "Write 'float16'."),
        (MDSWriter, torch.Tensor, "Write 'ndarray'."),
        (MDSWriter, None, 'encoding None. An encoding is a text. The encodings are bytes, '),
        (MDSWriter, ['int'], r"encoding \['int'\]. An encoding is a text. Write 'int'. The encodings are bytes, "),
        (
            MDSWriter,
            'jpg',
            "unsupported encoding `jpg`. Did you mean 'jpeg'. The encodings are bytes, float16, .*uint8",
        ),
        (MDSWriter, 'string', "Did you mean 'str'"),
        (MDSWriter, 'folat32', "Did you mean 'float32'"),
        (MDSWriter, 'ndarray:flot32', 'but got `flot32`. The dtypes are uint8, int8, .*float64'),
        (MDSWriter, 'int:1', '`int` takes no parameters'),
        (JSONWriter, int, "Write 'int'. The encodings are float, int, str"),
        (
            JSONWriter,
            'jpg',
            'JSONWriter passed column `x` with unsupported encoding `jpg`. The encodings are float, int',
        ),
        (CSVWriter, np.float64, "CSVWriter passed .* Write 'float'."),
    ],
)
def test_an_encoding_that_is_none(tmp_path, writer, encoding, message):
    with pytest.raises(ConfigError, match=message):
        writer(out=str(tmp_path / 'out'), columns={'id': 'int', 'x': encoding})
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('columns', [['x'], 'x', 7, {3: 'int'}])
def test_columns_that_are_none(tmp_path, columns):
    with pytest.raises(ConfigError, match=r'olumns.* of MDSWriter must '):
        MDSWriter(out=str(tmp_path / 'out'), columns=columns)
