"""Pages of a dump, and the plain text of wikitext."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.text.convert.enwiki import ORIGINAL as ENWIKI
from tests.support.originals.text_originals import make_enwiki, page_xml


@pytest.mark.usefixtures('parser')
def test_runs_of_a_multistream_dump_have_each_page_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_enwiki(tmp_path / 'in', broken=False)
    from headrace.convert.inputs.records import BadRow
    from headrace.originals.enwiki import is_multistream, pages, parse_page

    for path in (tmp_path / 'in').glob('*multistream?.xml*'):
        assert is_multistream(path)
        size = path.stat().st_size
        whole = list(pages(path, 0, size))
        assert len(whole) == 30
        for step in (1, 7, 100, 1000, size - 1):
            parts = [page for begin in range(0, size, step) for page in pages(path, begin, min(begin + step, size))]
            assert parts == whole
        assert not any(isinstance(page, BadRow) for page in whole)
        assert sum(parse_page(page) is not None for page in whole if isinstance(page, bytes)) == 24


@pytest.mark.usefixtures('parser')
def test_a_page_cannot_bring_entities_of_its_own(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><page><title>&b;</title></page>'
    (tmp_path / 'enwiki-pages-articles.xml').write_text(bomb + page_xml(4, 'Good', 'good'))
    report = ENWIKI.convert(tmp_path, tmp_path.parent / 'bomb', progress_bar=False)['']
    assert report.rows == 1
    assert 'undefined entity' in report.errors[0].error


@pytest.mark.usefixtures('parser')
def test_markup_becomes_words() -> None:
    from headrace.originals.enwiki import plain_text

    assert plain_text("''Two'' [[London|cities]] and [https://a.org a link].{{cite|x}}<ref name=a/>") == (
        'Two cities and a link.'
    )
    assert plain_text('[[File:a.png|thumb|A [[cat]]]]Text<math>x^2</math>\n\n\n\n* one\n* two') == 'Text\n\none\ntwo'
    assert plain_text('[[:Category:Cats]] [[Category:Cats]]') == ':Category:Cats'
    assert plain_text('{{unclosed [[link') == '{{unclosed [[link'
    assert plain_text('') == ''
