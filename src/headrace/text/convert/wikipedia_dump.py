"""The pages of a dump of Wikipedia: ``pages-articles``, as XML, packed by bzip2 or gzip, or not packed.

A multistream dump is a chain of bzip2 streams with 100 whole pages each, so that many processes can read it. A run of
bytes has the streams that begin in it. Pages are cut out by their tags, which text cannot hold, and parsed one by one.
So a broken page costs only itself, and a broken stream costs 100 pages at most.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from xml.etree import ElementTree as ET

from headrace.convert.inputs.records import BadRow
from headrace.errors import FormatError
from headrace.text.convert.json_lines import read_chunks

__all__ = ['Page', 'is_multistream', 'pages', 'parse_page']

_STREAM: Final = re.compile(rb'BZh[1-9]1AY&SY')
"""The first bytes of a bzip2 stream with content."""
_HEAD: Final = 10
_READ: Final = 1 << 20
_PIECE: Final = 1 << 18
_MAX_STREAM: Final = 1 << 30
"""Bytes of content of a stream: 100 pages of 2 MiB, which is MediaWiki's limit, and a reserve."""
_MAX_PAGE: Final = 64 << 20
_BEGIN, _END = b'<page>', b'</page>'


@dataclass(frozen=True, slots=True)
class Page:
    """An article."""

    id: int
    title: str
    markup: str


def is_multistream(path: Path) -> bool:
    """Whether a dump is a chain of bzip2 streams of whole pages. Its first stream then has the site, and no page."""
    if path.suffix != '.bz2':
        return False
    with open(path, 'rb') as file:
        decoder = bz2.BZ2Decompressor()
        try:
            first = decoder.decompress(file.read(_READ), _READ)
        except OSError:
            return False
        return decoder.eof and _BEGIN not in first


def pages(path: Path, begin: int, end: int) -> Iterator[bytes | BadRow]:
    """The XML of each page.

    Args:
        path: the dump.
        begin: first byte of a run of a multistream dump; 0 for the whole of another one.
        end: byte behind the run.
    """
    if is_multistream(path):
        with open(path, 'rb') as file:
            at = _next_stream(file, begin, end)
            while at is not None:
                after = yield from _one_stream(file, at)
                at = _next_stream(file, after, end)
    else:
        yield from _cut(read_chunks(path), path.name)


def _next_stream(file: BinaryIO, begin: int, end: int) -> int | None:
    """Where the next stream begins, if that is before `end`."""
    at = begin
    while at < end:
        file.seek(at)
        data = file.read(_READ + _HEAD - 1)
        found = _STREAM.search(data)
        if found is not None:
            return at + found.start() if at + found.start() < end else None
        if len(data) < _READ:
            return None
        at += _READ
    return None


def _one_stream(file: BinaryIO, begin: int) -> Iterator[bytes | BadRow]:
    """The pages of the stream at a byte; returns the byte where the search for the next one begins."""
    end = _End(begin + _HEAD)
    yield from _cut(_unpacked(file, begin, end), f'the stream at byte {begin}')
    return end.at


@dataclass(slots=True)
class _End:
    """The byte behind a stream, or behind its head if it is damaged."""

    at: int


def _unpacked(file: BinaryIO, begin: int, end: _End) -> Iterator[bytes]:
    decoder, at, total = bz2.BZ2Decompressor(), begin, 0
    while not decoder.eof:
        data = b''
        if decoder.needs_input:
            file.seek(at)
            data = file.read(_PIECE)
            at += len(data)
            if not data:
                raise FormatError('The file ends within a bzip2 stream. Fetch it again.')
        try:
            piece = decoder.decompress(data, _PIECE)
        except OSError as error:
            raise FormatError(f'A bzip2 stream is damaged: {error}. Fetch the file again.') from None
        total += len(piece)
        if total > _MAX_STREAM:
            raise FormatError(f'A stream of a dump has at most {_MAX_STREAM} bytes of pages, but this one has more.')
        yield piece
    end.at = at - len(decoder.unused_data)


def _cut(chunks: Iterable[bytes], where: str) -> Iterator[bytes | BadRow]:
    """The pages in a text that comes in pieces."""
    held, number = b'', 0
    try:
        for chunk in chunks:
            held += chunk
            at = 0
            while (begin := held.find(_BEGIN, at)) >= 0 and (end := held.find(_END, begin)) >= 0:
                at = end + len(_END)
                number += 1
                yield held[begin:at]
            # A page that has begun, or what may be a part of its tag.
            held = held[begin:] if begin >= 0 else held[max(at, len(held) - len(_BEGIN) + 1) :]
            if len(held) > _MAX_PAGE:
                yield BadRow(
                    f'{where}, after page {number}', FormatError(f'A page has at most {_MAX_PAGE} bytes of XML.')
                )
                held = b''
    except FormatError as error:
        yield BadRow(f'{where}, after page {number}', error)
    else:
        if held.startswith(_BEGIN):
            yield BadRow(f'{where}, after page {number}', FormatError('The file ends within a page. Fetch it again.'))


def parse_page(xml: bytes) -> Page | None:
    """An article; None for a page of another namespace, a redirect, and one without wikitext.

    Raises:
        FormatError: it is not the XML of a page.
    """
    try:
        page = ET.fromstring(xml)  # noqa: S314 - `<page>` has no document type before it, so no entities of its own
    except ET.ParseError as error:
        raise FormatError(f'A page is XML, but: {error}.') from None
    title, number, space = page.findtext('title'), page.findtext('id'), page.findtext('ns')
    if title is None or number is None or space is None or not number.isdecimal():
        raise FormatError(f'A page has `title`, `ns` and a number as `id`, but got {title!r:.80}, {space}, {number}.')
    if space != '0' or page.find('redirect') is not None:
        return None
    # Dumps of histories have several; the last one is the newest.
    revisions = page.findall('revision')
    if not revisions:
        raise FormatError(f'A page has a `revision`, but {title!r:.80} has none.')
    if revisions[-1].findtext('model', 'wikitext') != 'wikitext':
        return None
    return Page(int(number), title, revisions[-1].findtext('text') or '')
