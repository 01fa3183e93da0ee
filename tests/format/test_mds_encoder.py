"""Writing of MDS shards: options, wrong samples, and the bound of a shard."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.format import MDSEncoder, open_shard


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
