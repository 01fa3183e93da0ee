"""JSONL shards: bad lines, and encodings."""

from __future__ import annotations

import struct

import pytest

from headrace.errors import ConfigError, ShardError
from headrace.format import jsonl
from tests.support.formats.line_shards import opened


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        (b'[1, 2]', 'JSON object'),
        (b'3', 'JSON object'),
        (b'{"n": 1, "x": 0.5}', 'with the keys'),
        (b'{"n": 1, "x": 0.5, "text": "", "y": 1}', 'with the keys'),
        (b'{"n": 1, "x": 0.5, "text": ', 'not JSON'),
        (b'{"n": ' + b'9' * 5000 + b', "x": 0.5, "text": ""}', 'not JSON'),
        (b'[' * 100_000, 'nested too deeply'),
        (b'\xff', 'not UTF-8'),
    ],
)
def test_a_bad_json_line_is_refused(line: bytes, message: str) -> None:
    line += b'\n'
    meta = struct.pack('<5I', 3, 0, len(line), 2 * len(line), 3 * len(line))
    reader = opened('json', line * 3, meta)
    with pytest.raises(ShardError, match=message):
        reader.sample(1)


def test_encodings_of_jsonl_columns() -> None:
    assert jsonl.get_json_encodings() == {'str', 'int', 'float'}
    assert jsonl.is_json_encoding('float')
    assert not jsonl.is_json_encoding('json')
    for name, kind, obj in [('str', jsonl.Str, 'a'), ('int', jsonl.Int, 3), ('float', jsonl.Float, 0.1)]:
        assert jsonl.is_json_encoded(name, obj)
        assert kind().is_encoded(obj)
        with pytest.raises(AttributeError):
            kind().is_encoded(b'x')
    with pytest.raises(ConfigError):
        jsonl.is_json_encoded('json', 3)


def test_half_a_surrogate_pair_is_refused() -> None:
    encoder = jsonl.JSONEncoder({'text': 'str', 'n': 'int'})
    encoder.add({'text': 'a pair \U0001f600', 'n': 0})
    for add in (
        lambda: encoder.add({'text': 'half \ud83d a pair', 'n': 1}),
        lambda: encoder.add_batch({'text': ['half \ud83d a pair'], 'n': [2]}),
    ):
        with pytest.raises(ValueError, match=r"^Sample \d, column 'text': .*half a surrogate pair. Correct the text"):
            add()
    (shard,) = encoder.finish()
    assert shard.info.samples == 1
