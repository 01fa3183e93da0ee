"""What is refused, and in which words: file and line, key, value received, rule, and what may have been meant."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace.config.validate import field_types
from headrace.errors import ConfigError
from headrace.mixing import Config, LoaderConfig, StreamConfig, WorkerConfig, load_config
from headrace.order import shuffle

GOOD: dict[str, Any] = {
    'global_batch_size': 512,
    'train': {'streams': {'code': {'remote': 's3://b/code'}, 'prose': {'remote': 's3://b/prose'}}},
}


def errors(source: Any, overrides: Any = ()) -> list[str]:
    """The lines of the refusal, without the head and without the place of a mapping."""
    with pytest.raises(ConfigError) as raised:
        load_config(source, overrides=overrides)
    head, *lines = str(raised.value).split('\n')
    count = 'one error' if len(lines) == 1 else f'{len(lines)} errors'
    assert head == f'{count} in the configuration:'
    assert all(line.startswith('  ') for line in lines)
    return [line.removeprefix('  ').removeprefix('the given mapping: ') for line in lines]


def changed(**changes: Any) -> dict[str, Any]:
    """GOOD with values put in at keys written `a__b__c`."""
    result = copy.deepcopy(GOOD)
    for key, value in changes.items():
        *outer, last = key.split('__')
        container = result
        for part in outer:
            container = container.setdefault(part, {})
        container[last] = value
    return result


SIZE = "or text like '100kb', '64mb', '10gb'"
ALGORITHMS = ', '.join(shuffle.ALGORITHMS)
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
            "train.when_exhausted: got when_exhausted: 'stop'; `when_exhausted` must be `repeat` with a schedule; keep "
            'one of the two'
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
            "eval: got 's3://b/x'; must be one loader, or a mapping from names to loaders; write a folder as "
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
        "train.streams: got 's3://b'; must be a mapping from names, or a list, to streams",
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
        'eval: got [{}]; must be one loader, or a mapping from names to loaders',
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
""".lstrip()
    )
    fraction = 'must be [low, high] with 0 <= low < high <= 1, such as [0, 0.95]'
    subset = 'must begin after the range before, [0, 10]: ranges ascend and do not overlap'
    operators = 'must be one of equals, in, at_least, below, length, not; did you mean "at_least"?'
    size = 'must be a number of pixels from 1 to 65536, or a height and a width'
    decode = (
        "must be 'tensor' or an ImageTensor for all columns of images, or a mapping from columns to these; a mapping "
        'of the keys of ImageTensor stands for one'
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
    ]


def test_a_mapping_that_contains_itself_by_interpolation_ends() -> None:
    (line,) = errors(changed(train__streams__code='${train.streams}'))
    assert 'train.streams.code' in line
    assert 'cannot be resolved' in line or 'unknown key' in line or 'nested too deeply' in line


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


FILES = [
    ('missing', None, '{path}: no such file'),
    ('a folder', Path, '{path}: Is a directory'),
    ('not UTF-8', b'a: \xff', '{path}: not UTF-8 text (invalid start byte at byte 3)'),
    ('unclosed', b'train:\n  x: {a: 1\n', '{path}:3: not valid YAML: ...'),
    ('a tab', b'train:\n\tx: 1\n', '{path}:2: not valid YAML: ...'),
    (
        'a key twice',
        b'train:\n  shuffle: true\n  shuffle: false\n',
        '{path}:3: not valid YAML: found duplicate key shuffle',
    ),
    (
        'a stream twice',
        b'train:\n  streams:\n    a: {local: /a}\n    a: {local: /b}\n',
        '{path}:4: not valid YAML: found duplicate key a',
    ),
    ('a list', b'- a\n- b\n', '{path}: must hold a mapping of keys at its top level'),
    ('text', b'hello\n', '{path}: must hold a mapping of keys at its top level'),
    (
        'code',
        b'train: !!python/object/apply:os.system [exit]\n',
        (
            '{path}:1: not valid YAML: could not determine a constructor for the tag '
            "'tag:yaml.org,2002:python/object/apply:os.system'"
        ),
    ),
    ('empty', b'', '{path}: (top level): names no loader; give at least one of train, eval, test, predict'),
    (
        'includes itself',
        b'defaults: [mix.yaml]\n',
        '{path}:1: defaults[0]: files include each other: {path} -> {path}; remove one of these `defaults`',
    ),
    (
        'includes a missing file',
        b'\ndefaults:\n  - nope.yaml\n',
        '{path}:3: defaults[0]: {folder}/nope.yaml: no such file',
    ),
    ('includes what is not text', b'defaults: [3]\n', '{path}:1: defaults[0]: got 3; must be text that is not empty'),
]


@pytest.mark.parametrize(('content', 'expected'), [pytest.param(*rest, id=name) for name, *rest in FILES])
def test_a_file_that_cannot_be_read(content: Any, expected: str, tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    path = folder / 'mix.yaml'
    if content is Path:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    (line,) = errors(path)
    expected = expected.format(path=path, folder=folder)
    # What follows is in the words of the YAML library at hand.
    assert line.startswith(expected.removesuffix('...')) if expected.endswith('...') else line == expected


def test_a_circle_of_files_is_named(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    for name, included in (('a', 'b'), ('b', 'c'), ('c', 'b')):
        (folder / f'{name}.yaml').write_text(f'defaults: [{included}.yaml]\n')
    assert errors(folder / 'a.yaml') == [
        (
            f'{folder}/c.yaml:1: defaults[0]: files include each other: '
            f'{folder}/b.yaml -> {folder}/c.yaml -> {folder}/b.yaml; remove one of these `defaults`'
        )
    ]


@pytest.mark.parametrize(
    ('override', 'expected'),
    [
        pytest.param('train.shuffle', 'has no value; write key=value, or ~key to remove a key', id='no value'),
        pytest.param('=3', 'names no key; write key=value', id='no key'),
        pytest.param('~train.nope', 'there is no key train.nope to remove', id='nothing to remove'),
        pytest.param('global_batch_size.x=1', 'global_batch_size is 512, which holds no keys', id='into a number'),
        pytest.param('train.x={a', "the value is not valid YAML: did not find expected ',' or '}'", id='bad YAML'),
        pytest.param(
            'eval.0.local=/x',
            'eval is an interpolation, ${train}; override what it refers to',
            id='into an interpolation',
        ),
        pytest.param(
            'test.streams.2.local=/x',
            'test.streams is a list of 1; write a position from 0 to 0, or the whole list',
            id='beyond a list',
        ),
        pytest.param(
            'test.streams.a.local=/x',
            'test.streams is a list of 1; write a position from 0 to 0, or the whole list',
            id='a name into a list',
        ),
    ],
)
def test_an_override_that_cannot_be_laid_on(override: str, expected: str) -> None:
    source = changed(eval='${train}', test={'streams': [{'name': 'a', 'local': '/a'}]})
    assert errors(source, [override]) == [f"override '{override}': {expected}"]


def test_all_overrides_are_reported_at_once() -> None:
    assert len(errors(GOOD, ['a', '~b', 'train.shuffle=true', '=c'])) == 3


# -- misspellings ------------------------------------------------------------------------------------------------------

PLACES: list[tuple[type, tuple[str, ...]]] = [
    (Config, ()),
    (LoaderConfig, ('train',)),
    (StreamConfig, ('train', 'streams', 'code')),
    (WorkerConfig, ('train', 'loader')),
]
ALL_KEYS = {key for cls, _ in PLACES for key in field_types(cls)} | {'defaults', 'variables'}


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
