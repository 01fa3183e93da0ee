"""All mistakes of a configuration in one error, each with its place."""

from __future__ import annotations

from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.options.constraints import field_types
from tests.support.datasets.refusals import ALGORITHMS, ALL_KEYS, PLACES, SIZE, TWO_STREAMS, changed, errors


def test_everything_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / 'mix.yaml'
    path.write_text(
        """
global_batch_size: 512
device_batch_size: 2
train:
  streams:
    code: {remoet: s3://b/code, proportion: 0.7}
    prose:
      remote: s3://b/prose
      proportion: -1
  shuffle_algo: natve
  loader:
    num_workers: four
eval:
  c4: {remote: "${oc.env:NOT_SET}", splt: val}
""".lstrip()
    )
    assert errors(path, ['train.cache_limit=10 gigs', 'train.loder.x=1']) == [
        (
            f'{path}:1: global_batch_size: got global_batch_size: 512, device_batch_size: 2; '
            '`global_batch_size` and `device_batch_size` exclude each other; keep one'
        ),
        f'{path}:5: train.streams.code.remoet: got \'s3://b/code\'; unknown key; did you mean "remote"?',
        f'{path}:8: train.streams.prose.proportion: got -1; must be a number of at least 0',
        (f'{path}:9: train.shuffle_algo: got \'natve\'; must be one of {ALGORITHMS}; did you mean "native"?'),
        f"{path}:11: train.loader.num_workers: got 'four'; must be an integer of at least 0",
        (
            f"{path}:13: eval.c4.remote: got '${{oc.env:NOT_SET}}'; environment variable NOT_SET is not set; "
            'set it, or write a default: ${oc.env:NOT_SET,default}'
        ),
        f'{path}:13: eval.c4.splt: got \'val\'; unknown key; did you mean "split"?',
        (
            f"override 'train.cache_limit=10 gigs': train.cache_limit: got '10 gigs'; "
            f'must be an integer of at least 1, {SIZE}'
        ),
        "override 'train.loder.x=1': train.loder: got {'x': 1}; unknown key; did you mean \"loader\"?",
    ]


def test_a_message_points_to_the_file_that_wrote_the_key(tmp_path: Path) -> None:
    base, mix = tmp_path / 'base.yaml', tmp_path / 'mix.yaml'
    base.write_text('device_batch_size: 4\ntrain:\n  local: /data\n  shufle: true\n')
    mix.write_text('defaults: [base.yaml]\ntrain:\n  splitt: x\n')
    assert errors(mix) == [
        f'{base}:4: train.shufle: got true; unknown key; did you mean "shuffle"?',
        f'{mix}:3: train.splitt: got \'x\'; unknown key; did you mean "split"?',
    ]


def test_all_overrides_are_reported_at_once() -> None:
    assert len(errors(TWO_STREAMS, ['a', '~b', 'train.shuffle=true', '=c'])) == 3


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
