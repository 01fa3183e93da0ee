"""Names that were misspelt by a letter."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from refusals import ALL_KEYS, PLACES, changed, errors

from headrace.config.validate import field_types


@st.composite
def misspellings(draw: st.DrawFn) -> tuple[tuple[str, ...], str, str]:
    """A place, one of its keys of at least four letters, and that key with one letter wrong."""
    cls, place = draw(st.sampled_from(PLACES))
    key = draw(st.sampled_from(sorted(key for key in field_types(cls) if len(key) >= 4)))
    at = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from('abcdefghijklmnopqrstuvwxyz'))
    kind = draw(st.sampled_from(['leave out', 'put in', 'replace', 'swap']))
    swapped = key[:at] + key[at + 1 : at + 2] + key[at] + key[at + 2 :]
    wrong = {
        'leave out': key[:at] + key[at + 1 :],
        'put in': key[:at] + letter + key[at:],
        'replace': key[:at] + letter + key[at + 1 :],
        'swap': swapped,
    }[kind]
    assume(wrong not in ALL_KEYS)
    return place, key, wrong


@given(misspelling=misspellings())
def test_one_wrong_letter_gets_the_right_suggestion(misspelling: tuple[tuple[str, ...], str, str]) -> None:
    place, key, wrong = misspelling
    lines = errors(changed(**{'__'.join((*place, wrong)): 'x'}))
    (line,) = [line for line in lines if line.startswith('.'.join((*place, wrong)))]
    assert f'"{key}"' in line.split('did you mean')[1]
