import contextlib
import io

import pytest

from headrace.errors import ChecksumError, ConfigError, StorageError, TransferError
from headrace.storage.protocol import ObjectInfo
from headrace.storage.transfer.http import ReadRequest, SourcePart


class Dribbling(io.BytesIO):
    """As an unbuffered file may, it gives less than it is asked for."""

    def read(self, size=-1):
        return super().read(min(size, 3) if size >= 0 else 3)


@pytest.mark.parametrize('sizes', [[-1], [None], [4, 4, 2], [10, 1], [7, -1]])
def test_less_than_was_asked_for_comes_at_the_end_only(sizes):
    source = Dribbling(b'__0123456789__')
    source.seek(2)
    part = SourcePart(source, 10)
    wanted = [10 if size is None or size < 0 else size for size in sizes]
    chunks = [part.read(size) for size in sizes]
    assert b''.join(chunks) == b'0123456789'
    assert [len(chunk) for chunk in chunks[:-1]] == wanted[:-1]
    assert part.read(1) == part.read() == b''
    part.seek(8)
    assert part.read() == b'89'


def test_a_source_that_ends_early_is_an_error():
    with pytest.raises(ConfigError, match='told 10 bytes, but the source ended 3 bytes early'):
        SourcePart(Dribbling(b'0123456'), 10).read()


def received(body, out=None, **answer):
    source = io.BytesIO(body)
    how = {'etag': 'v', 'length': len(body), 'part': None} | answer
    wanted = ReadRequest('s3://b/x', how.pop('offset', 0), how.pop('size', None), how.pop('wanted', None))
    sink = io.BytesIO() if out is None else out
    etag = wanted.receive(lambda: source.read(3), sink, mapped_errors=contextlib.nullcontext, **how)
    return etag, sink.getvalue()


class TestReceive:
    def test_it_tells_the_version(self):
        assert received(b'0123456789') == ('v', b'0123456789')
        assert received(b'0123456789', etag='') == ('', b'0123456789')
        assert received(b'2345', offset=2, size=4, part='bytes 2-5/10', wanted='v') == ('v', b'2345')

    @pytest.mark.parametrize('etag', ['w', ''])
    def test_another_version_than_the_one_that_was_asked_for_is_refused_before_a_byte(self, etag):
        out = io.BytesIO()
        with pytest.raises(TransferError, match='s3://b/x changed') as caught:
            received(b'01', out, wanted='v', etag=etag)
        assert caught.value.changed
        assert out.getvalue() == b''

    @pytest.mark.parametrize('asked', [{'offset': 2}, {'size': 4}, {'offset': 2, 'size': 4}])
    def test_a_server_that_ignores_the_range_is_named_as_one(self, asked):
        with pytest.raises(StorageError, match='ignored the range'):
            received(b'0123456789', **asked)

    def test_the_whole_may_be_the_range(self):
        assert received(b'0123', size=4) == ('v', b'0123')

    def test_a_shorter_object_has_no_such_range(self):
        with pytest.raises(ConfigError, match='offset 2, size 9 .* has 4 bytes from there'):
            received(b'2345', offset=2, size=9, part='bytes 2-5/6')

    @pytest.mark.parametrize('answer', [{'length': 9}, {'length': None, 'size': 9}])
    def test_a_body_that_ends_early_is_broken_and_names_its_version(self, answer):
        out = io.BytesIO()
        with pytest.raises(TransferError, match='broke off after 4 of 9 bytes') as caught:
            received(b'0123', out, **answer)
        assert caught.value.etag == 'v'
        assert out.getvalue() == b'0123'

    def test_an_answer_of_unknown_length_writes_no_more_than_was_asked_for(self):
        sink = io.BytesIO()
        with pytest.raises(StorageError, match='ignored the range'):
            received(b'hello world', sink, size=7, length=None)
        assert sink.getvalue() == b'hello '

    def test_an_answer_of_unknown_length_ends_where_it_ends(self):
        assert received(b'0123', length=None) == ('v', b'0123')


class TestNothingLeft:
    INFO = ObjectInfo('x', 10, 'v')

    @pytest.mark.parametrize('wanted', [None, 'v'])
    def test_right_at_the_end(self, wanted):
        assert ReadRequest('u', 10, None, wanted).nothing_left(self.INFO) == 'v'

    @pytest.mark.parametrize(('offset', 'size'), [(11, None), (10, 1), (11, 1)])
    def test_beyond_it(self, offset, size):
        message = (
            rf'offset {offset}, size {size} of s3://b/x, which has \d bytes .* shorter than its index says: restore'
        )
        with pytest.raises(ChecksumError, match=message) as raised:
            ReadRequest('s3://b/x', offset, size).nothing_left(self.INFO)
        assert isinstance(raised.value, ConfigError)  # as all stores have raised it
        assert str(raised.value).startswith('A range lies inside its object; got')

    @pytest.mark.parametrize(('offset', 'size', 'wanted'), [(10, None, 'w'), (4, None, None), (4, 2, 'v')])
    def test_of_another_version(self, offset, size, wanted):
        with pytest.raises(TransferError, match='changed'):
            ReadRequest('u', offset, size, wanted).nothing_left(self.INFO)
