import io

import pytest

from headrace.errors import ConfigError
from headrace.storage.body import SourcePart


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
