"""English Wikipedia as MDS: ``headrace convert enwiki IN OUT``.

IN is a dump ``enwiki-*-pages-articles*.xml.bz2``, or a folder of the files of one. Many processes read a multistream
dump, 32 MiB of it at a time. The columns are ``id`` and ``title`` of an article, and ``text``, its plain text. Pages of
other namespaces, redirects, and articles without text are left out.

A multistream dump is a chain of bzip2 streams with 100 whole pages each, so that many processes can read it. A run of
bytes has the streams that begin in it. Pages are cut out by their tags, which text cannot hold, and parsed one by one.
So a broken page costs only itself, and a broken stream costs 100 pages at most.
"""

from __future__ import annotations

import bz2
import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from headrace.convert.inputs.records import BadRow, RecordInputs
from headrace.errors import FormatError, ObjectNotFoundError, import_optional
from headrace.originals.members import Member, files_of
from headrace.originals.texts import read_chunks

_COLUMNS: Final = {'id': 'int', 'title': 'str', 'text': 'str'}
_DUMP: Final = re.compile(r'.*pages-(articles|meta).*\.xml(-p\d+p\d+)?(\.bz2|\.gz)?')
_RUN: Final = 32 << 20
_UNPACKED: Final = 2  # bytes of plain text for a compressed byte, about
_STREAM: Final = re.compile(rb'BZh[1-9]1AY&SY')  # the first bytes of a bzip2 stream with content
_HEAD: Final = 10
_READ: Final = 1 << 20
_PIECE: Final = 1 << 18
_MAX_STREAM: Final = 1 << 30
"""Bytes of content of a stream: 100 pages of 2 MiB, which is MediaWiki's limit, and a reserve."""
_MAX_PAGE: Final = 64 << 20
_BEGIN, _END = b'<page>', b'</page>'
_NOT_TEXT: Final = frozenset({'file', 'image', 'category', 'media'})
"""Namespaces whose links are not words of the sentence."""
_TAGS: Final = frozenset({'table', 'ref', 'gallery', 'math', 'timeline', 'score'})
_SWITCHES: Final = re.compile(r'__[A-Z]+__')
_SPACES: Final = re.compile(r'[ \t\xa0]+')
_LINES: Final = re.compile(r'\n{3,}')


class Page(NamedTuple):
    id: int
    title: str
    markup: str


def _read(root: Path, member: Member) -> Iterator[dict[str, Any] | BadRow]:
    for number, xml in enumerate(pages(root / member.path, member.begin, member.begin + member.size), 1):
        if isinstance(xml, BadRow):
            yield xml
            continue
        place = f'page {number} there'
        try:
            page = parse_page(xml)
            if page is None:
                continue
            place = f'page {page.id} ({page.title})'
            text = plain_text(page.markup)
        except FormatError as error:
            yield BadRow(place, error)
            continue
        if text:
            yield {'id': page.id, 'title': page.title, 'text': text}


def enwiki_records(source: Path, split: None) -> RecordInputs[Member]:
    del split
    _require_parser()
    root = source if source.is_dir() else source.parent
    files = [member for member in files_of(root, '.') if source.is_dir() or Path(member.path).name == source.name]
    dumps = [member for member in files if _DUMP.fullmatch(Path(member.path).name) or not source.is_dir()]
    # A multistream dump has an index beside it.
    dumps = [member for member in dumps if 'multistream-index' not in member.path]
    if not dumps:
        raise ObjectNotFoundError(f'{source} holds no file such as enwiki-20240101-pages-articles-multistream.xml.bz2.')
    runs = [run for member in sorted(dumps, key=_place) for run in _runs(root, member)]
    return RecordInputs(
        partial(_read, root),
        runs,
        kind='enwiki',
        columns=_COLUMNS,
        identity={'source': str(source)},
        label=_label,
        sizes=[run.size * _UNPACKED for run in runs],
        one_row=False,
    )


def _place(member: Member) -> tuple[int, str]:
    """Files of one dump by their first page: ``...multistream10.xml-p5p9.bz2`` comes behind ``...2.xml-p1p4.bz2``."""
    first = re.search(r'-p(\d+)p\d+', member.path)
    return int(first[1]) if first else 0, member.path


def _runs(root: Path, member: Member) -> Iterator[Member]:
    step = _RUN if is_multistream(root / member.path) else max(member.size, 1)
    for begin in range(0, max(member.size, 1), step):
        yield member._replace(begin=begin, size=min(step, member.size - begin))


def _label(member: Member) -> str:
    return f'{member.path}, bytes {member.begin} to {member.begin + member.size - 1}'


# The pages of a dump


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
    """The XML of each page of a run of a multistream dump, or of another one from byte 0 on."""
    if not is_multistream(path):
        yield from _cut(read_chunks(path), path.name)
        return
    with open(path, 'rb') as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        while (head := _STREAM.search(data, begin, end + _HEAD - 1)) is not None:
            ends = [head.end()]  # of a damaged stream the end is not known
            yield from _cut(_unpacked(data, head.start(), ends), f'the stream at byte {head.start()}')
            begin = ends[-1]


def _unpacked(data: mmap, at: int, ends: list[int]) -> Iterator[bytes]:
    """The content of the stream at a byte, whose end is added to `ends`."""
    decoder, total = bz2.BZ2Decompressor(), 0
    while not decoder.eof:
        packed = b''
        if decoder.needs_input:
            packed = data[at : at + _PIECE]
            at += len(packed)
            if not packed:
                raise FormatError('The file ends within a bzip2 stream. Fetch it again.')
        try:
            piece = decoder.decompress(packed, _PIECE)
        except OSError as error:
            raise FormatError(f'A bzip2 stream is damaged: {error}. Fetch the file again.') from None
        total += len(piece)
        if total > _MAX_STREAM:
            raise FormatError(f'A stream of a dump has at most {_MAX_STREAM} bytes of pages, but this one has more.')
        yield piece
    ends.append(at - len(decoder.unused_data))


def _cut(chunks: Iterable[bytes], where: str) -> Iterator[bytes | BadRow]:
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
    """An article; None for a page of another namespace, a redirect, and one without wikitext."""
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


# Plain text of wikitext, by mwparserfromhell


def _require_parser() -> ModuleType:
    return import_optional('mwparserfromhell', 'The markup of Wikipedia needs mwparserfromhell', 'wiki')


def plain_text(markup: str) -> str:
    """The words and titles of an article, without templates, tables, files, categories, references and formulas."""
    parser = _require_parser()
    try:
        code = parser.parse(markup, skip_style_tags=True)
        for link in code.filter_wikilinks():
            if str(link.title).partition(':')[0].strip().lower() in _NOT_TEXT and ':' in link.title:
                with contextlib.suppress(ValueError):  # removed with an outer node already
                    code.remove(link)
        for tag in code.filter_tags(matches=lambda node: str(node.tag).strip().lower() in _TAGS):
            with contextlib.suppress(ValueError):
                code.remove(tag)
        text = code.strip_code(normalize=True, collapse=True)
    except (parser.parser.ParserError, RecursionError) as error:
        raise FormatError(f'Wikitext cannot be parsed: {type(error).__name__}: {error}.') from None
    text = _SPACES.sub(' ', _SWITCHES.sub('', text).replace("'''", '').replace("''", ''))
    lines = (line.strip() for line in text.split('\n'))
    return _LINES.sub('\n\n', '\n'.join(lines)).strip()
