"""Writing of MDS shards: options, wrong samples, and the bound of a shard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.format import MDSEncoder, open_shard
from headrace.format.encodings.encoding import warn_once


def test_config_of_a_writer() -> None:
    encoder = MDSEncoder({'b': 'int', 'a': 'str'}, compression='', hashes=['md5'], size_limit='1kb')
    assert encoder.get_config() == {
        'version': 2,
        'format': 'mds',
        'compression': None,
        'hashes': ['md5'],
        'size_limit': 1024,
        'column_names': ['a', 'b'],
        'column_encodings': ['str', 'int'],
        'column_sizes': [None, 8],
    }
    encoder.add({'a': 'x', 'b': 1})
    (shard,) = encoder.finish()
    assert [name for name, _ in shard.files] == ['shard.00000.mds']
    assert MDSEncoder({'a': 'int'}).size_limit == 1 << 26
    assert MDSEncoder({'a': 'int'}, size_limit=0).size_limit is None


WRONG = [
    ({'columns': {'a': 'nosuch'}}, 'MDSWriter passed column `a` with unsupported encoding'),
    ({'columns': {'a': 'int:1'}}, 'unsupported encoding'),
    ({'compression': 'lz4'}, 'is not a supported compression algorithm'),
    ({'compression': 'zstd:23'}, 'is not a supported compression algorithm'),
    ({'compression': 'zstd:0'}, 'is not a supported compression algorithm'),
    ({'compression': 'snappy:1'}, 'is not a supported compression algorithm'),
    ({'hashes': ['crc32']}, 'is not a supported hash'),
    ({'hashes': ['xxh64', 'sha1']}, 'sorted'),
    ({'size_limit': -1}, '`size_limit`'),
    ({'size_limit': 2**32}, '`size_limit` must be less than'),
    ({'size_limit': '4gb'}, '`size_limit` must be less than'),
    ({'size_limit': 'tiny'}, 'A size in bytes'),
    ({'size_limit': [1]}, r'A size is a number, but got \[1\]'),
    ({'compression': 5}, '`compression` is the name of an algorithm, .*, but is 5'),
    ({'hashes': 'sha1'}, r"`hashes` is a list of names, such as \['sha1'\], but is 'sha1'"),
    ({'hashes': 5}, '`hashes` is a list of names, .*, but is 5'),
]


@pytest.mark.parametrize(('options', 'message'), WRONG)
def test_wrong_options_of_a_writer(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MDSEncoder(**({'columns': {'a': 'int'}} | options))


def test_wrong_samples_change_nothing() -> None:
    encoder = MDSEncoder({'a': 'int', 'b': 'str'})
    encoder.add({'a': 1, 'b': 'x'})
    for wrong, error in [
        ({'a': 1}, KeyError),
        ({'a': 'x', 'b': 'x'}, AttributeError),
        ({'a': 2**63, 'b': 'x'}, OverflowError),
        ({'a': b'123', 'b': 'x'}, ValueError),
        ({'a': 1, 'b': None}, AttributeError),
    ]:
        with pytest.raises(error):
            encoder.add(wrong)
    encoder.add({'a': 2, 'b': 'y', 'ignored': object()})
    (shard,) = encoder.finish()
    reader = open_shard(shard.info, [memoryview(shard.files[0][1])], source='here')
    assert [reader.sample(i) for i in range(2)] == [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    assert encoder.finish() == []


def test_a_shard_never_passes_32_bit_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('headrace.format.encoder.MAX_OFFSET', 1000)
    encoder = MDSEncoder({'a': 'bytes'}, size_limit=None)
    encoder.add({'a': bytes(500)})
    with pytest.raises(ValueError, match='smaller than 4 GiB'):
        encoder.add({'a': bytes(500)})
    (shard,) = encoder.finish()
    assert shard.info.samples == 1


INTEGERS = ['uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64']
NARROW = {'float16': (65520.0, 1e5, 1e300), 'float32': (3.5e38, 1e300), 'float64': ()}


def ways_to_add(encoder: MDSEncoder, value: Any) -> list[Callable[[], object]]:
    """Functions that give an encoder a sample whose column `a` has the value."""
    rest = {name: [1 if encoding == 'int' else ''] for name, encoding in encoder.schema.columns.items() if name != 'a'}
    array = np.empty(1, object)
    array[0] = value
    return [
        lambda: encoder.add({'a': value, **{name: values[0] for name, values in rest.items()}}),
        lambda: encoder.add_batch({'a': [value], **rest}),
        lambda: encoder.add_batch({'a': np.asarray([value]) if np.isscalar(value) else array, **rest}),
    ]


def refused_numbers() -> Iterator[tuple[str, Any]]:
    """Encoding, and a value that it cannot hold, in each type of Python, numpy and torch that has it."""
    torch = pytest.importorskip('torch')
    for name in ['int', *INTEGERS]:
        limits = np.iinfo('int64' if name == 'int' else name)
        for number in (int(limits.min) - 1, int(limits.max) + 1, 10**30, -(10**5000)):
            yield name, number
            if -(2**63) <= number < 2**63:
                yield name, np.int64(number)
        for value in (float('nan'), float('inf'), np.float32('nan'), np.array(np.inf), torch.tensor(np.nan), '1.5'):
            yield name, value
    for name, numbers in NARROW.items():
        for number in numbers:
            yield from ((name, kind(number)) for kind in (float, np.float64, np.array, Decimal, str))
            yield name, torch.tensor(number, dtype=torch.float64)
            yield name, -number
        yield from ((name, value) for value in (10**400, Decimal('-1e400'), np.longdouble('1e4000'), '1e999', 'many'))
    yield 'float16', 70_000


@pytest.mark.parametrize('name', ['int', *INTEGERS, *NARROW])
def test_numbers_that_a_column_cannot_hold(name: str) -> None:
    for value in (value for encoding, value in refused_numbers() if encoding == name):
        encoder = MDSEncoder({'a': name, 'text': 'str'})
        encoder.add({'a': 1.0 if name in NARROW else 1, 'text': ''})
        for add in ways_to_add(encoder, value):
            with pytest.raises((ValueError, OverflowError, AttributeError)) as caught:
                add()
            message = str(caught.value)
            assert re.match(
                rf"Sample \d, column 'a': A column of encoding `{name}` holds .*, but got .*\. \w+", message
            )
        assert encoder.num_samples == 1


@pytest.mark.parametrize('source', [np.float64, np.float32, np.int64])
@pytest.mark.parametrize('name', [*INTEGERS, *NARROW])
def test_columns_of_arrays_and_tensors_that_do_not_fit(name: str, source: type) -> None:
    """The second value is refused; without it the others are stored."""
    torch = pytest.importorskip('torch')
    bad = {'float16': 1e6, 'float32': 1e39}.get(name, np.nan if name in INTEGERS else None)
    if source is np.int64:
        bad = {'float16': 10**6, 'float32': None, 'float64': None, 'int64': None, 'uint64': -1}.get(name, 2**40)
    if bad is None or (name, source) == ('float32', np.float32):
        return
    values = np.array([1, bad, 3], source)
    for column in (
        values,
        torch.from_numpy(values),
        list(values),
        values.tolist(),
        values.astype('>' + values.dtype.str[1:]),
    ):
        encoder = MDSEncoder({'a': name})
        with pytest.raises((OverflowError, ValueError), match=r"Sample 1, column 'a': .*`") as caught:
            encoder.add_batch({'a': column})
        assert ('whole numbers' in str(caught.value)) == (name in INTEGERS and source is not np.int64)
        encoder.add_batch({'a': column[::2] if isinstance(column, list) else values[::2]})
        assert encoder.num_samples == 2


@pytest.mark.parametrize('name', INTEGERS)
def test_fractions_are_cut_off_with_a_warning(name: str) -> None:
    warn_once.cache_clear()
    encoder = MDSEncoder({'a': name})
    with pytest.warns(UserWarning, match=f'`{name}` holds whole numbers, so fractions of its floats were cut off'):
        encoder.add({'a': 3.7})
    assert encoder.finish()[0].files[0][1][-np.dtype(name).itemsize :] == np.array(3, name).tobytes()


def test_what_a_float_column_may_round() -> None:
    for name in NARROW:
        encoder = MDSEncoder({'a': name})
        values = [0.1, float('inf'), float('-inf'), float('nan'), 1e-300, 65519.0, 7]
        for value in values:
            encoder.add({'a': value})
        encoder.add({'a': 'inf'})
        encoder.add_batch({'a': np.array(values)})
        encoder.add_batch({'a': values})
        (shard,) = encoder.finish()
        reader = open_shard(shard.info, [memoryview(data) for _, data in shard.files], source='x')
        with np.errstate(over='ignore'):
            stored = np.array(values).astype(name)
        found = [reader.sample(i)['a'] for i in range(reader.num_samples)]
        np.testing.assert_array_equal(found, [*stored, stored[1], *stored, *stored])


NO_TEXT = [b'\xff\xfe', b'\x80', 'half \ud800 a pair']


@pytest.mark.parametrize('value', NO_TEXT)
def test_a_text_column_holds_text(value: Any) -> None:
    encoder = MDSEncoder({'a': 'str', 'b': 'int'})
    for add in ways_to_add(encoder, value):
        with pytest.raises(
            ValueError, match=r"^Sample \d, column 'a': .*(not UTF-8 text|half a surrogate pair).*make the"
        ):
            add()
    encoder.add({'a': b'text', 'b': 1})
    assert encoder.num_samples == 1


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('json', b'{"a": '),
        ('json', b'1' * 5000),
        ('json', 10**5000),
        ('json', [10**5000]),
        ('str_int', b'one'),
        ('str_int', 10**5000),
        ('str_float', b'\xff'),
        ('str_decimal', b'1,5'),
        ('ndarray', b'\x00\x01'),
        ('ndarray:int32', b'\x05\x02\x00\x00\x00'),
        ('bytes', 'text'),
        ('bytes', bytearray(b'x')),
    ],
    ids=range(12),
)
def test_encoded_values_and_limits_of_python(name: str, value: Any) -> None:
    encoder = MDSEncoder({'a': name, 'z': 'int'})
    for add in ways_to_add(encoder, value)[:2]:
        with pytest.raises((ValueError, AttributeError), match=r"^Sample \d, column 'a': "):
            add()


class _Huge(bytes):
    """Bytes that say they are of 4 GiB."""

    def __len__(self) -> int:
        return 1 << 32


@pytest.mark.parametrize('name', ['bytes', 'jpeg'])
def test_a_value_of_4_gib_is_named(name: str) -> None:
    encoder = MDSEncoder({'a': name, 'z': 'str'})
    for add in ways_to_add(encoder, _Huge())[:2]:
        with pytest.raises(ValueError, match=r"^Sample \d, column 'a': .*smaller than 4 GiB.* 4294967296 bytes"):
            add()


def test_one_text_is_no_column_of_a_batch() -> None:
    encoder = MDSEncoder({'a': 'str'})
    with pytest.raises(TypeError, match="Column 'a': .* but got one str, 'abc'. Put it into a list"):
        encoder.add_batch({'a': 'abc'})
    with pytest.raises(TypeError, match="Column 'a': "):
        encoder.add_batch({'a': 5})
