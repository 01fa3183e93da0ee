"""Errors of a configuration: each names file and line, key, received value, rule and a suggestion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace.errors import ConfigError
from headrace.mixing import Config, load_config
from headrace.options.constraints import field_types
from tests.support.datasets.refusals import ALGORITHMS, ALL_KEYS, SIZE, changed, errors

COUNT = "or text like '100k', '64m', '1.5b'"
DECODE = 'the value is text: write it without quotes, or, from the environment, ${oc.decode:${oc.env:NAME}}'
POINT = {'at': 0, 'proportions': {'code': 1}}


CASES = [
    # Schedules.
    (
        'a schedule that begins late',
        changed(train__schedule=[{'at': 5, 'proportions': {'code': 1}}]),
        'train.schedule: the first point is at 0, and no ramp',
    ),
    (
        'points that do not rise',
        changed(train__schedule=[POINT, {'at': '1k', 'proportions': {'code': 1}}, {**POINT, 'at': 900}]),
        'train.schedule: points stand in the order of rising `at`; they are at [0, 1000, 900]',
    ),
    (
        'a point for no stream',
        changed(train__schedule=[{'at': 0, 'proportions': {'code': 1, 'prosa': 2}}]),
        'train.schedule: a schedule names streams that do not exist: prosa; there are: code, prose',
    ),
    (
        'a share that is no number',
        changed(train__schedule=[{'at': 0, 'proportions': {'code': 'much'}}]),
        "train.schedule[0].proportions.code: got 'much'; must be a number of at least 0",
    ),
    (
        'a point without shares',
        changed(train__schedule=[{'at': 0}]),
        'train.schedule[0]: a point needs `proportions`: numbers of at least 0, one of them above 0, with a finite sum',
    ),
    (
        'a misspelt key of a point',
        changed(train__schedule=[{**POINT, 'chang': 'linear'}]),
        'train.schedule[0].chang: got \'linear\'; unknown key; did you mean "change"?',
    ),
    (
        'a schedule and weights',
        changed(train__schedule=[POINT], train__streams__code__repeat=2),
        'train.schedule: a schedule is in the place of weights, which are given by: code; remove them',
    ),
    (
        'a schedule and an end of streams',
        changed(train__schedule=[POINT], train__when_exhausted='stop'),
        (
            "train.when_exhausted: got when_exhausted: 'stop'; `when_exhausted` must be 'repeat' with a schedule, but "
            "is 'stop'; keep one of the two"
        ),
    ),
    (
        'growth of data for evaluation',
        {**changed(), 'eval': {'local': '/val', 'on_growth': 'delta'}},
        (
            "eval: a loader for evaluation reads one epoch always, without the samples that `on_growth` 'delta' would "
            "take; set `on_growth` to 'ignore'"
        ),
    ),
    # Unknown keys.
    ('misspelt', changed(train__shufle=True), 'train.shufle: got true; unknown key; did you mean "shuffle"?'),
    (
        'misspelt in a stream',
        changed(train__streams__code__propotion=1),
        'train.streams.code.propotion: got 1; unknown key; did you mean "proportion"?',
    ),
    ('misspelt section', changed(trian={}), 'trian: got {}; unknown key; did you mean "train"?'),
    (
        'misspelt directive',
        changed(varables={'a': 1}),
        'varables: got {\'a\': 1}; unknown key; did you mean "variables"?',
    ),
    ('capitals', changed(train__Shuffle=True), 'train.Shuffle: got true; unknown key; did you mean "shuffle"?'),
    ('like nothing', changed(train__zzz=1), 'train.zzz: got 1; unknown key'),
    (
        'val is called eval',
        changed(val={'remote': 's3://b/x'}),
        "val: got {'remote': 's3://b/x'}; unknown key; did you mean \"eval\"?",
    ),
    (
        'of the level below',
        changed(train__num_workers=4),
        'train.num_workers: got 4; unknown key; did you mean "train.loader.num_workers"?',
    ),
    (
        'of two levels below',
        changed(num_workers=4),
        'num_workers: got 4; unknown key; did you mean "train.loader.num_workers"?',
    ),
    (
        'of the level above',
        changed(train__loader__shuffle=True),
        'train.loader.shuffle: got true; unknown key; did you mean "train.shuffle"?',
    ),
    (
        'of the level above, misspelt',
        changed(train__loader__shuffle_sed=1),
        'train.loader.shuffle_sed: got 1; unknown key; did you mean "train.shuffle_seed"?',
    ),
    (
        'as in Python',
        changed(train__batch_size=4),
        'train.batch_size: got 4; unknown key; did you mean "global_batch_size" or "device_batch_size"?',
    ),
    (
        'a secret is not repeated',
        changed(train__streams__code__aws_secret_access_key='hunter2'),
        'train.streams.code.aws_secret_access_key: got (hidden); unknown key',
    ),
    ('long values are cut', changed(zzz='x' * 200), f"zzz: got '{'x' * 76}...; unknown key"),
    # Types and bounds.
    ('text for a bool', changed(train__shuffle='maybe'), "train.shuffle: got 'maybe'; must be true or false"),
    ('quoted bool', changed(train__shuffle='true'), f"train.shuffle: got 'true'; must be true or false; {DECODE}"),
    ('number for a bool', changed(train__shuffle=1), 'train.shuffle: got 1; must be true or false'),
    (
        'quoted number',
        changed(train__loader__num_workers='4'),
        f"train.loader.num_workers: got '4'; must be an integer of at least 0; {DECODE}",
    ),
    (
        'bool for a number',
        changed(train__loader__num_workers=True),
        'train.loader.num_workers: got true; must be an integer of at least 0',
    ),
    (
        'fraction for an integer',
        changed(train__loader__num_workers=1.5),
        'train.loader.num_workers: got 1.5; must be an integer of at least 0',
    ),
    (
        'negative',
        changed(train__loader__num_workers=-1),
        'train.loader.num_workers: got -1; must be an integer of at least 0',
    ),
    ('zero batch', changed(global_batch_size=0), 'global_batch_size: got 0; must be an integer of at least 1'),
    (
        'zero seconds',
        changed(train__download_timeout=0),
        'train.download_timeout: got 0; must be a number greater than 0',
    ),
    (
        'not a number',
        changed(train__download_timeout=float('nan')),
        'train.download_timeout: got nan; must be a number greater than 0',
    ),
    (
        'infinite',
        changed(train__epoch_size=float('inf')),
        f'train.epoch_size: got inf; must be an integer of at least 1, {COUNT}',
    ),
    (
        'beyond 64 bits',
        changed(train__shuffle_seed=2**63),
        'train.shuffle_seed: got 9223372036854775808; must be an integer of at least 0',
    ),
    (
        'negative weight',
        changed(train__streams__code__repeat=-0.5),
        'train.streams.code.repeat: got -0.5; must be a number of at least 0',
    ),
    (
        'number for text',
        changed(train__streams__code__split=1),
        'train.streams.code.split: got 1; must be text that is not empty',
    ),
    (
        'empty text',
        changed(train__streams__code__split=''),
        "train.streams.code.split: got ''; must be text that is not empty",
    ),
    (
        'size with a wrong unit',
        changed(train__cache_limit='10 gigs'),
        f"train.cache_limit: got '10 gigs'; must be an integer of at least 1, {SIZE}",
    ),
    (
        'size of zero',
        changed(train__cache_limit='0gb'),
        f"train.cache_limit: got '0gb'; must be an integer of at least 1, {SIZE}",
    ),
    (
        'count with a wrong unit',
        changed(train__epoch_size='10x'),
        f"train.epoch_size: got '10x'; must be an integer of at least 1, {COUNT}",
    ),
    (
        'count with a fraction',
        changed(train__epoch_size=1.5),
        f'train.epoch_size: got 1.5; must be an integer of at least 1, {COUNT}',
    ),
    (
        'unknown algorithm',
        changed(train__shuffle_algo='natve'),
        (f'train.shuffle_algo: got \'natve\'; must be one of {ALGORITHMS}; did you mean "native"?'),
    ),
    (
        'unknown batching',
        changed(train__batching_method='stratifed'),
        (
            "train.batching_method: got 'stratifed'; must be one of random, stratified, per_stream, device_per_stream; "
            'did you mean "stratified"?'
        ),
    ),
    (
        'unknown remainder',
        changed(train__remainder='pad'),
        "train.remainder: got 'pad'; must be one of repeat, exact, drop",
    ),
    (
        'a folder for a loader',
        changed(train='/data'),
        "train: got '/data'; must be a mapping of keys; write a folder as `{local: FOLDER}`, a URL as `{remote: URL}`",
    ),
    (
        'a URL for an evaluation set',
        changed(eval='s3://b/x'),
        (
            "eval: got 's3://b/x'; must be one loader, or map loader names to loaders; write a folder as "
            '`{local: FOLDER}`, a URL as `{remote: URL}`'
        ),
    ),
    (
        'a URL for a stream',
        changed(train__streams__code='s3://b/x'),
        (
            "train.streams.code: got 's3://b/x'; must be a mapping with the keys of a stream; write a folder as "
            '`{local: FOLDER}`, a URL as `{remote: URL}`'
        ),
    ),
    (
        'text for a section',
        changed(train__packing__tokenizer='gpt2', train__packing__sequence_length=8),
        "train.packing.tokenizer: got 'gpt2'; must be a mapping of keys; its keys are library, path",
    ),
    (
        'the name of another library',
        changed(train={'path': '/data'}),
        'train.path: got \'/data\'; unknown key; did you mean "remote" or "local"?',
    ),
    (
        'the name of another library in a stream',
        changed(train__streams__code__url='s3://b/x'),
        'train.streams.code.url: got \'s3://b/x\'; unknown key; did you mean "remote"?',
    ),
    (
        'a key of a section that is not there',
        changed(train__bos_token_id=1),
        'train.bos_token_id: got 1; unknown key',
    ),
    (
        'a key of a section that is there',
        changed(train__bos_token_id=1, train__packing__sequence_length=8),
        'train.bos_token_id: got 1; unknown key; did you mean "train.packing.bos_token_id"?',
    ),
    ('text for a mapping', changed(train__loader=4), 'train.loader: got 4; must be a mapping of keys'),
    ('list for a mapping', changed(train=[1]), 'train: got [1]; must be a mapping of keys'),
    # Streams.
    ('no streams', changed(train__streams={}), 'train.streams: got {}; holds no stream; name at least one'),
    ('no streams in a list', changed(train__streams=[]), 'train.streams: got []; holds no stream; name at least one'),
    (
        'no data',
        changed(train={'shuffle': True}),
        'train: names no data; give `streams`, or `remote` and `local` of a single stream',
    ),
    (
        'streams of the wrong type',
        changed(train__streams='s3://b'),
        "train.streams: got 's3://b'; must map stream names to streams, or be a list of streams",
    ),
    (
        'an empty stream',
        changed(train__streams__code=None),
        'train.streams.code: got null; must be a mapping with the keys of a stream',
    ),
    (
        'a stream without a place',
        changed(train__streams__code={'split': 'train'}),
        'train.streams.code: a stream needs `remote`, `local`, or both',
    ),
    (
        'a name that is no text',
        changed(train__streams={1: {'remote': 's3://b/x'}}),
        'train.streams.1: got 1; the name of a stream must be text: quote it',
    ),
    (
        'a name inside a mapping',
        changed(train__streams__code__name='prose'),
        "train.streams.code.name: got 'prose'; the name is the key that it stands at, 'code'; remove `name`",
    ),
    (
        'a name of a loader',
        changed(train__name='text'),
        "train.name: got 'text'; the name is the key that it stands at, 'train'; remove `name`",
    ),
    (
        'no name in a list',
        changed(train__streams=[{'remote': 's3://b/x'}]),
        'train.streams[0].name: must be set: each stream of a list says its name',
    ),
    (
        'a name twice in a list',
        changed(train__streams=[{'name': 'a', 'remote': 's3://b/x'}, {'name': 'a', 'remote': 's3://b/y'}]),
        "train.streams[1].name: got 'a'; is the name of train.streams[0] too; names must differ",
    ),
    (
        'two weights',
        changed(train__streams__code__repeat=2, train__streams__code__choose='1k'),
        (
            "train.streams.code.repeat: got repeat: 2, choose: '1k'; "
            'a stream has at most one of `proportion`, `repeat` and `choose`; keep one'
        ),
    ),
    (
        'proportion and no weight',
        changed(train__streams__code__proportion=0.5),
        'train.streams: either all streams have `proportion` or none has; without it: prose',
    ),
    (
        'proportion and repeat',
        changed(train__streams__code__proportion=0.5, train__streams__prose__repeat=2),
        'train.streams: either all streams have `proportion` or none has; without it: prose',
    ),
    (
        'proportions of zero',
        changed(train__streams__code__proportion=0, train__streams__prose__proportion=0),
        'train.streams: all proportions are 0; one must be greater',
    ),
    (
        'epoch size with repeat',
        changed(train__epoch_size='1m', train__streams__prose__repeat=2),
        (
            "train.epoch_size: got epoch_size: '1m'; "
            '`epoch_size` needs proportions, or no weights; leave it out, or use `proportion` in the place of '
            '`repeat` or `choose`, which are given by: prose'
        ),
    ),
    (
        'streams and a single one',
        changed(train__remote='s3://b/x'),
        (
            "train.remote: got remote: 's3://b/x'; "
            '`streams` and `remote`, `local`, `split` exclude each other; move them into the streams'
        ),
    ),
    (
        'one folder for two',
        changed(train__streams__code__local='/c', train__streams__prose__local='/c'),
        'train.streams: streams code and prose would share the folder /c; give each its own',
    ),
    # Batch size and sections.
    (
        'two batch sizes',
        changed(device_batch_size=4),
        (
            'global_batch_size: got global_batch_size: 512, device_batch_size: 4; '
            '`global_batch_size` and `device_batch_size` exclude each other; keep one'
        ),
    ),
    (
        'two batch sizes in a loader',
        changed(train__device_batch_size=4, train__global_batch_size=8),
        (
            'train.global_batch_size: got global_batch_size: 8, device_batch_size: 4; '
            '`global_batch_size` and `device_batch_size` exclude each other; keep one'
        ),
    ),
    (
        'uneven device batches',
        changed(global_batch_size=None, train__device_batch_size=4, train__uneven='pad'),
        (
            "train.uneven: got uneven: 'pad', device_batch_size: 4; "
            '`uneven` deals a `global_batch_size`; give it in place of `device_batch_size`'
        ),
    ),
    (
        'no batch size',
        changed(global_batch_size=None),
        'train: has no batch size; give `global_batch_size` or `device_batch_size`, here or at the top level',
    ),
    (
        'no batch size in one of several',
        changed(global_batch_size=None, train__device_batch_size=2, eval__a__local='/a'),
        'eval: has no batch size; give `global_batch_size` or `device_batch_size`, here or at the top level',
    ),
    ('nothing', {}, '(top level): names no loader; give at least one of train, eval, test, predict'),
    ('no evaluation sets', changed(eval={}), 'eval: got {}; holds no loader; name at least one'),
    (
        'a list of evaluation sets',
        changed(eval=[{}]),
        'eval: got [{}]; must be one loader, or map loader names to loaders',
    ),
    (
        'evaluation, one loader, misspelt',
        changed(eval={'straems': {'a': {'local': '/a'}}}),
        "eval.straems: got {'a': {'local': '/a'}}; unknown key; did you mean \"streams\"?",
    ),
    (
        'evaluation, several, misspelt',
        changed(eval={'c4': {'local': '/c4', 'splt': 'val'}}),
        'eval.c4.splt: got \'val\'; unknown key; did you mean "split"?',
    ),
    (
        'evaluation, several, one empty',
        changed(eval={'c4': {'local': '/c4'}, 'pile': {}}),
        'eval.pile: names no data; give `streams`, or `remote` and `local` of a single stream',
    ),
    # Interpolation and directives.
    (
        'unset variable of the environment',
        changed(train__streams__code__local='${oc.env:NOT_SET}/x'),
        (
            "train.streams.code.local: got '${oc.env:NOT_SET}/x'; environment variable NOT_SET is not set; "
            'set it, or write a default: ${oc.env:NOT_SET,default}'
        ),
    ),
    (
        'unknown variable',
        changed(train__streams__code__local='${variables.x}'),
        "train.streams.code.local: got '${variables.x}'; cannot be resolved: Interpolation key 'variables.x' not found",
    ),
    (
        'unknown resolver',
        changed(train__streams__code__local='${nope:x}'),
        "train.streams.code.local: got '${nope:x}'; cannot be resolved: Unsupported interpolation type nope",
    ),
    (
        'an interpolation of itself',
        changed(train__streams__code__local='${train.streams.code.local}'),
        (
            "train.streams.code.local: got '${train.streams.code.local}'; cannot be resolved: "
            'Recursive interpolation detected'
        ),
    ),
    (
        'a value to be given',
        changed(train__streams__code__remote='???'),
        "train.streams.code.remote: got '???'; must be set; here, or by an override",
    ),
    ('defaults of the wrong type', changed(defaults='base.yaml'), "defaults: got 'base.yaml'; must be a list"),
    ('a default of the wrong type', changed(defaults=[1]), 'defaults[0]: got 1; must be text that is not empty'),
    ('variables of the wrong type', changed(variables=3), 'variables: got 3; must be a mapping of keys'),
]


@pytest.mark.parametrize(('source', 'expected'), [pytest.param(source, line, id=name) for name, source, line in CASES])
def test_one_mistake_gives_one_line(source: dict[str, Any], expected: str) -> None:
    assert errors(source) == [expected]


def test_mistakes_in_selections_have_their_own_lines(tmp_path: Path) -> None:
    path = tmp_path / 'mix.yaml'
    path.write_text(
        """
device_batch_size: 4
train:
  local: /a
  fraction: [0.95, 0.9]
  fraction_seed: -1
  subset:
    - [0, 10]
    - [5, 20]
  where:
    lang: [de, 5]
    size:
      at_leest: 5
  decode:
    image: {size: 0, crop: centre}
    mask: pil
    speech: {seconds: 0, crop: end}
""".lstrip()
    )
    fraction = 'must be [low, high] with 0 <= low < high <= 1, such as [0, 0.95]'
    subset = 'must begin after the range before, [0, 10]: ranges ascend and do not overlap'
    operators = 'must be one of equals, in, at_least, below, length, not; did you mean "at_least"?'
    size = 'must be a number of pixels from 1 to 65536, or a height and a width'
    decode = (
        "must be 'tensor' or an ImageTensor for all columns of images, or a mapping from columns to these or to an "
        'AudioTensor; a mapping of the keys of ImageTensor or AudioTensor stands for one'
    )
    assert errors(path) == [
        f'{path}:4: train.fraction: got [0.95, 0.9]; {fraction}',
        f'{path}:5: train.fraction_seed: got -1; must be an integer of at least 0',
        f'{path}:8: train.subset[1]: got [5, 20]; {subset}',
        f"{path}:10: train.where.lang: got ['de', 5]; must be all text or all numbers",
        f'{path}:12: train.where.size.at_leest: got 5; unknown operator; {operators}',
        f"{path}:14: train.decode.image.crop: got 'centre'; must be one of 'random', 'center'",
        f'{path}:14: train.decode.image.size: got 0; {size}',
        f"{path}:15: train.decode.mask: got 'pil'; {decode}",
        f'{path}:16: train.decode.speech.sample_rate: got null; must be a whole number of hertz, from 1 to 1048576',
        f"{path}:16: train.decode.speech.crop: got 'end'; must be one of 'random', 'center', 'start'",
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5).filter(lambda text: '$' not in text),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(sorted(ALL_KEYS - {'defaults'})) | st.text('ab.[]= ', max_size=3), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(source=st.dictionaries(st.sampled_from(sorted(field_types(Config))), values, max_size=5))
def test_whatever_is_given_is_a_configuration_or_a_config_error(source: dict[str, Any]) -> None:
    try:
        OmegaConf.create(source)
    except Exception:
        assume(False)
    try:
        config = load_config(source)
    except ConfigError:
        return
    assert isinstance(config, Config)
