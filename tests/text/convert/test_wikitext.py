"""Plain text of wikitext."""

from __future__ import annotations

import pytest


@pytest.mark.usefixtures('parser')
def test_markup_becomes_words() -> None:
    from headrace.text.convert.enwiki import plain_text

    assert plain_text("''Two'' [[London|cities]] and [https://a.org a link].{{cite|x}}<ref name=a/>") == (
        'Two cities and a link.'
    )
    assert plain_text('[[File:a.png|thumb|A [[cat]]]]Text<math>x^2</math>\n\n\n\n* one\n* two') == 'Text\n\none\ntwo'
    assert plain_text('[[:Category:Cats]] [[Category:Cats]]') == ':Category:Cats'
    assert plain_text('{{unclosed [[link') == '{{unclosed [[link'
    assert plain_text('') == ''
