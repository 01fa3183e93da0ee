"""The members of a tar, read from a window of its bytes.

Headers are those of POSIX ustar, with GNU's long names and large numbers and the extended headers of pax. Member names
are text only: nothing is ever written under one.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.sources.windows import Window

__all__ = ['Member', 'read_members']

_BLOCK: Final = 512
_MAX_EXTENSION: Final = 1 << 20
"""Bytes of a long name or of an extended header."""
_REGULAR: Final = b'0', b'\0', b'7'
_EXTENDED: Final = b'x', b'X'
_FOLDER: Final = b'5'
_LEFT_OUT: Final = _FOLDER, b'D', b'V'
"""Folders, lists of their names, and the label of the tar."""
_REFUSED: Final = {
    b'1': ('a hard link', ' with `tar --hard-dereference`'),
    b'2': ('a symbolic link', ' with `tar --dereference`'),
    b'S': ('a sparse file', ' without `--sparse`'),
}
"""Members that do not hold the content of a file, and how to write them with it."""


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    start: int
    """Offset of its first header."""
    data: int
    """Offset of its bytes."""
    size: int
    end: int
    """Offset behind its last block."""


def read_members(window: Window, where: str, *, has_end: bool) -> Iterator[Member]:
    """The files of a tar, or of several that were joined, in order. Folders are left out.

    Args:
        window: the tar's bytes.
        where: the tar, for messages.
        has_end: whether the window has the end of the tar, and not only a run of its members.

    Raises:
        FormatError: the bytes are no tar, or end too early; or a member has no content, such as a link.
    """
    at = start = 0
    name: str | None = None
    size: int | None = None
    is_sparse = is_ended = False
    while block := bytes(window.take(at, _BLOCK)):
        if not any(block):  # the end, of which joined tars have several
            if start != at:
                raise FormatError(f'{where} ends after the extended header at byte {start}. Restore or write it again.')
            at = start = at + len(block)
            is_ended = True
            continue
        is_ended = False
        head = _Header(block, at, where)
        if head.kind in {b'L', b'K', b'g', *_EXTENDED}:
            if head.size > _MAX_EXTENSION:
                raise FormatError(
                    f'{where} announces {head.size} bytes of extended header at byte {at}, but {_MAX_EXTENSION} is '
                    f'the most that is read. Write it again with shorter names.'
                )
            data = bytes(window.take(at + _BLOCK, head.size))
            if len(data) < head.size:
                raise _truncated(where, at)
            if head.kind == b'L':
                name = _text(data.partition(b'\0')[0], at, where)
            elif head.kind in _EXTENDED:
                for key, value in _pax_records(data, at, where):
                    if key == b'path':
                        name = _text(value, at, where)
                    elif key == b'size':
                        size = _decimal(value, at, where)
                    elif key.startswith(b'GNU.sparse.'):
                        is_sparse = True
            at += _BLOCK + _padded(head.size)
            continue
        full_name = head.name if name is None else name
        kind = b'S' if is_sparse else head.kind
        if kind not in _REGULAR and kind not in _LEFT_OUT:
            what, how = _REFUSED.get(kind, (f'of kind {kind!r}', ' without it'))
            raise FormatError(
                f'A member of a tar holds its content, but {full_name!r} at byte {start} of {where} is {what}. Write '
                f'the tar again{how}.'
            )
        length = 0 if kind == _FOLDER else head.size if size is None else size
        data_start = at + _BLOCK
        at = data_start + _padded(length)
        if kind in _REGULAR and not full_name.endswith('/'):
            yield Member(full_name, start, data_start, length, at)
        name = size = None
        start = at
    if has_end and not is_ended:
        raise FormatError(
            f'A tar ends with a block of zeros, but {where} ends without one at byte {at}, so members may be missing. '
            f'Restore or write it again. If it is whole, add the end: `truncate --size=+1024 FILE`.'
        )


class _Header:
    """One header block."""

    def __init__(self, block: bytes, at: int, where: str) -> None:
        if len(block) < _BLOCK:
            raise _truncated(where, at)
        field = block[148:156]
        stored = _number(field, at, where)
        # The checksum is the sum of the bytes, its own counted as spaces. Adler-32 has that sum, plus 1, modulo 65,521.
        difference = stored - 8 * 32 + sum(field) - ((zlib.adler32(block) & 0xFFFF) - 1)
        if difference % 65521 and stored != _signed_sum(block):
            raise FormatError(
                f'{where} has no valid tar header at byte {at}: its checksum is wrong. Restore or write it again.'
            )
        self.kind = block[156:157]
        self.size = _number(block[124:136], at, where)
        name = block[:100].partition(b'\0')[0]
        prefix = block[345:500].partition(b'\0')[0] if block[257:263] == b'ustar\0' else b''
        self.name = _text(prefix + b'/' + name if prefix else name, at, where)


def _signed_sum(block: bytes) -> int:
    """The checksum as some old programs made it, of signed bytes."""
    counted = block[:148] + b' ' * 8 + block[156:]
    return sum(counted) - 256 * sum(byte >= 128 for byte in counted)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _number(field: bytes, at: int, where: str) -> int:
    """A number in octal digits, or in GNU's base 256."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], 'big')
    digits = field.partition(b'\0')[0].strip()
    if not digits:
        return 0
    try:
        return int(digits if digits.isdigit() else b'', 8)
    except ValueError:
        raise FormatError(
            f'{where} has no number in the header at byte {at}, but {field!r}. Restore or write it again.'
        ) from None


def _decimal(value: bytes, at: int, where: str) -> int:
    if not value.isdigit() or len(value) > 18:
        raise FormatError(
            f'{where} has no size in the header at byte {at}, but {value[:40]!r}. Restore or write it again.'
        )
    return int(value)


def _text(name: bytes, at: int, where: str) -> str:
    try:
        return name.decode('utf-8')
    except UnicodeDecodeError:
        raise FormatError(
            f'Names in a tar are UTF-8, but that at byte {at} of {where} is {name[:80]!r}. Write it with another name.'
        ) from None


def _pax_records(data: bytes, at: int, where: str) -> Iterator[tuple[bytes, bytes]]:
    """The records of an extended header: decimal length, space, key=value, newline."""
    rest = data.rstrip(b'\0')
    while rest:
        digits, _, _ = rest.partition(b' ')
        length = int(digits) if digits.isdigit() and len(digits) <= 8 else 0
        record = rest[len(digits) + 1 : length]
        if length > len(rest) or not record.endswith(b'\n') or b'=' not in record:
            raise FormatError(f'{where} has a damaged extended header at byte {at}. Restore or write it again.')
        key, _, value = record[:-1].partition(b'=')
        yield key, value
        rest = rest[length:]


def _truncated(where: str, at: int) -> FormatError:
    return FormatError(f'{where} ends within the header at byte {at}. Restore or write it again.')
