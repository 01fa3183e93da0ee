"""Separated shards: bad lines, and encodings."""

from __future__ import annotations

import struct

import pytest

from headrace.errors import ConfigError, FormatError, ShardError
from headrace.format import xsv
from tests.support.formats.line_shards import opened


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        (b'1,abc', '3 columns'),
        (b'1,abc,0.5,', '3 columns'),
        (b'x,abc,0.5', '`int` is expected'),
        (b'1,abc,x', '`float` is expected'),
        (b'9' * 5000 + b',abc,1', '`int` is expected'),
        (b'1,\xff,1', 'not UTF-8'),
    ],
)
def test_a_bad_csv_line_is_refused(line: bytes, message: str) -> None:
    header = b'n,text,x\n'
    line += b'\n'
    at = [len(header) + i * len(line) for i in range(4)]
    reader = opened('csv', header + line * 3, struct.pack('<5I', 3, *at))
    with pytest.raises(ShardError, match=message):
        reader.sample(1)


def test_encodings_of_separated_columns() -> None:
    assert xsv.get_xsv_encodings() == {'str', 'int', 'float'}
    assert xsv.is_xsv_encoding('int')
    assert not xsv.is_xsv_encoding('bytes')
    for name, kind, obj, text in [
        ('str', xsv.Str, 'a', 'a'),
        ('int', xsv.Int, -5, '-5'),
        ('float', xsv.Float, 0.1, '0.1'),
    ]:
        assert xsv.xsv_encode(name, obj) == kind().encode(obj) == text
        assert xsv.xsv_decode(name, text) == kind().decode(text) == obj
        with pytest.raises(AttributeError):
            kind().encode(b'x')
    with pytest.raises(FormatError):
        xsv.xsv_decode('int', 'x')
    with pytest.raises(ConfigError):
        xsv.xsv_encode('bytes', b'')
