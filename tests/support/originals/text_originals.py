"""Small originals of C4, the Pile and English Wikipedia, in the layout of their owners, with broken members."""

from __future__ import annotations

import bz2
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import zstandard

__all__ = ['Made', 'make_c4', 'make_enwiki', 'make_pile', 'words']

WORDS = ('the', 'river', 'runs', 'past', 'old', 'stones', 'while', 'a', 'boat', 'drifts', 'slowly', 'naïve', 'rain')


@dataclass
class Made:
    """An original."""

    rows: dict[str, list[dict[str, Any]]]
    """The samples that a conversion finds, by split."""
    broken: dict[str, int] = field(default_factory=dict)
    """The broken members that it reports, by split."""


def words(chosen: random.Random, least: int = 20, most: int = 200) -> str:
    return ' '.join(chosen.choice(WORDS) for _ in range(chosen.randint(least, most)))


def lines(records: list[Any], broken: list[bytes]) -> bytes:
    """JSON lines, with broken ones spread among them."""
    found = [json.dumps(record).encode() for record in records]
    for i, line in enumerate(broken):
        found.insert(2 + 3 * i, line)
    return b'\n'.join(found) + b'\n'


def make_c4(root: Path, *, train: int = 60, val: int = 12, files: int = 3, broken: bool = True) -> Made:
    """``root/en/c4-train.00000-of-00003.json.gz`` and so on; with a file that ends too early."""
    chosen = random.Random(5)
    made = Made({'train': [], 'val': []}, {'train': 0, 'val': 0})
    (root / 'en').mkdir(parents=True)
    for split, name, total, count in (('train', 'train', files, train), ('val', 'validation', 1, val)):
        for number in range(total):
            rows = [
                {
                    'text': f'{number}-{i} {words(chosen)}',
                    'timestamp': f'2019-04-{1 + i % 28:02}T10:00:00Z',
                    'url': f'https://example.org/{split}/{number}/{i}',
                }
                for i in range(count // total)
            ]
            bad = [b'{"text": "cut', b'{"text": 7, "timestamp": "", "url": ""}', b'{"text": "no url", "timestamp": ""}']
            bad += [
                b'{"text": "\\ud800", "timestamp": "", "url": ""}',
                b'[1]',
                b'{"text": "\xff", "timestamp": "", "url": ""}',
            ]
            bad = bad if broken and split == 'train' and number == 0 else []
            data = gzip.compress(lines(rows, bad), mtime=0)
            if broken and split == 'train' and number == total - 1:
                # A second member that was not fetched whole.
                data += gzip.compress(json.dumps({**rows[0], 'url': 'lost'}).encode() * 50, mtime=0)[:-20]
                made.broken[split] += 1
            made.rows[split] += rows
            made.broken[split] += len(bad)
            (root / 'en' / f'c4-{name}.{number:05}-of-{total:05}.json.gz').write_bytes(data)
    (root / 'en' / 'README.md').write_text('C4')
    return made


def make_pile(root: Path, *, train: int = 60, other: int = 8, files: int = 3, broken: bool = True) -> Made:
    """``root/train/00.jsonl.zst`` and so on, ``root/val.jsonl.zst`` and ``root/test.jsonl.zst``."""
    chosen = random.Random(6)
    made = Made({}, {})
    (root / 'train').mkdir(parents=True)
    places = {'train': [f'train/{i:02}.jsonl.zst' for i in range(files)], 'val': ['val.jsonl.zst']}
    for split, names in {**places, 'test': ['test.jsonl.zst']}.items():
        made.rows[split], made.broken[split] = [], 0
        for number, name in enumerate(names):
            count = train // files if split == 'train' else other
            rows = [
                {'text': f'{split} {number} {i} {words(chosen)}', 'pile_set_name': chosen.choice(['Pile-CC', 'ArXiv'])}
                for i in range(count)
            ]
            bad = [b'{"text": "a", "meta": {}}', b'{"text": "a", "meta": "ArXiv"}', b'\x00\x01']
            bad = bad if broken and split == 'train' and number == 1 else []
            records = [{'text': row['text'], 'meta': {'pile_set_name': row['pile_set_name']}} for row in rows]
            # Frames of a few lines each, as parallel compressors write.
            content = lines(records, bad).splitlines(keepends=True)
            frames = [zstandard.compress(b''.join(content[i : i + 20])) for i in range(0, len(content), 20)]
            data = b''.join(frames)
            if broken and split == 'train' and number == files - 1:
                data += zstandard.compress(b'{"text": "lost"}\n' * 100)[:-5]
                made.broken[split] += 1
            made.rows[split] += rows
            made.broken[split] += len(bad)
            (root / name).write_bytes(data)
    return made


def page_xml(
    number: int, title: str, text: str, *, space: int = 0, redirect: bool = False, model: str = 'wikitext'
) -> str:
    return (
        f'  <page>\n    <title>{escape(title)}</title>\n    <ns>{space}</ns>\n    <id>{number}</id>\n'
        + (f'    <redirect title="{escape(title)} 2" />\n' if redirect else '')
        + f'    <revision>\n      <id>{9000 + number}</id>\n      <contributor><id>7</id></contributor>\n'
        f'      <model>{model}</model>\n      <format>text/x-wiki</format>\n'
        f'      <text bytes="{len(text)}" xml:space="preserve">{escape(text)}</text>\n'
        f'      <sha1>abc</sha1>\n    </revision>\n  </page>\n'
    )


def wiki_pages(count: int) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """XML of a page, and its sample, if it is one."""
    chosen = random.Random(7)
    for number in range(1, count + 1):
        title = f'Article {number} & more'
        if number % 10 == 3:
            yield page_xml(number, title, '#REDIRECT [[Other]]', redirect=True), None
        elif number % 10 == 6:
            yield page_xml(number, f'Talk:{title}', words(chosen), space=1), None
        else:
            first, second = words(chosen), words(chosen)
            text = (
                f"{{{{Infobox|name=hidden}}}}'''{title}''' is {first}.<ref>hidden source</ref>\n\n"
                f'[[File:hidden.jpg|thumb|hidden [[caption]]]]\n== Section ==\n'
                f'{{| class="wikitable"\n| hidden\n|}}\n[[Link|Shown]] {second} &nbsp;&lt;b&gt;.\n'
                f'[[Category:Hidden]]\n__NOTOC__'
            )
            shown = f'{title} is {first}.\n\nSection\n\nShown {second} <b>.'
            yield page_xml(number, title, text), {'id': number, 'title': title, 'text': shown}


def make_enwiki(root: Path, *, articles: int = 60, pages_per_stream: int = 7, broken: bool = True) -> Made:
    """A multistream dump in two files, and the index beside it, which is none."""
    root.mkdir(parents=True)
    made = Made({'': []}, {'': 0})
    pages = list(wiki_pages(articles))
    head = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">\n  <siteinfo>\n'
    head += '    <sitename>Wikipedia</sitename>\n  </siteinfo>\n'
    half = articles // 2
    for number, (begin, end) in enumerate(((0, half), (half, articles)), 1):
        data = bz2.compress(head.encode())
        for at in range(begin, end, pages_per_stream):
            some = pages[at : min(at + pages_per_stream, end)]
            xml = ''.join(page for page, _ in some)
            good = [sample for _, sample in some if sample is not None]
            if broken and at == begin + pages_per_stream and number == 1:
                xml = xml.replace('</title>', '</tittle>', 1)  # of the first page, an article or not
                good = [sample for _, sample in some[1:] if sample is not None]
                made.broken[''] += 1
            stream = bz2.compress(xml.encode())
            if broken and at == begin + pages_per_stream and number == 2:
                middle = len(stream) // 2
                stream = stream[:middle] + bytes(40) + stream[middle + 40 :]
                good = []
                made.broken[''] += 1
            made.rows[''] += good
            data += stream
        data += bz2.compress(b'</mediawiki>\n')
        name = f'enwiki-20240101-pages-articles-multistream{number}.xml-p{begin + 1}p{end}'
        (root / f'{name}.bz2').write_bytes(data)
        (root / f'{name.replace("multistream", "multistream-index").replace(".xml", ".txt")}.bz2').write_bytes(b'index')
    return made
