"""English Wikipedia as MDS: ``headrace convert enwiki IN OUT``.

IN is a dump ``enwiki-*-pages-articles*.xml.bz2``, or a folder of the files of one. Many processes read a multistream
dump, 32 MiB of it at a time. The columns are ``id`` and ``title`` of an article, and ``text``, its plain text. Pages of
other namespaces, redirects, and articles without text are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.convert.inputs.records import BadRow, RecordInputs
from headrace.errors import FormatError, ObjectNotFoundError
from headrace.originals import run_module
from headrace.originals.members import Member, files_of
from headrace.text.convert.descriptions import ENWIKI as ORIGINAL
from headrace.text.convert.wikipedia_dump import is_multistream, pages, parse_page
from headrace.text.convert.wikitext import plain_text, require_parser

__all__ = ['ORIGINAL', 'main', 'records']

_COLUMNS: Final = {'id': 'int', 'title': 'str', 'text': 'str'}
_DUMP: Final = re.compile(r'.*pages-(articles|meta).*\.xml(-p\d+p\d+)?(\.bz2|\.gz)?')
_RUN: Final = 32 << 20
_UNPACKED: Final = 2
"""Bytes of plain text for a compressed byte, about."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Reads one run of a dump."""

    root: Path

    def __call__(self, member: Member) -> Iterator[dict[str, Any] | BadRow]:
        found = pages(self.root / member.path, member.begin, member.begin + member.size)
        for number, xml in enumerate(found, 1):
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


def records(source: Path, split: None) -> RecordInputs[Member]:
    """The records of a split; see `Original.module`."""
    del split
    require_parser()
    root = source if source.is_dir() else source.parent
    files = [member for member in files_of(root, '.') if source.is_dir() or Path(member.path).name == source.name]
    dumps = [member for member in files if _DUMP.fullmatch(Path(member.path).name) or not source.is_dir()]
    # The index of a multistream dump is no dump.
    dumps = [member for member in dumps if 'multistream-index' not in member.path]
    if not dumps:
        raise ObjectNotFoundError(f'{source} holds no file such as enwiki-20240101-pages-articles-multistream.xml.bz2.')
    runs = [run for member in sorted(dumps, key=_place) for run in _runs(root, member)]
    return RecordInputs(
        _Read(root),
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The program, with the names of MosaicML Streaming's arguments; returns the exit status."""
    return run_module(ORIGINAL, arguments)


if __name__ == '__main__':
    sys.exit(main())
