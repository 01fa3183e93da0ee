"""YAML of somebody who means harm, or whose editor did: an error of ours in bounded time and memory."""

from __future__ import annotations

import os
import random
import resource
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from headrace.errors import ConfigError
from headrace.mixing import Config, config_of_foundry, load_config
from tests.support.datasets.refusals import errors

GOOD = """
shuffle_seed: 7
device_batch_size: 4
variables: {root: /data, half: 0.5, name: code}
train: &train
  streams:
    code: {remote: 's3://b/${variables.name}', local: '${variables.root}/code', proportion: 0.7, split: train}
    prose: &prose
      remote: s3://b/prose
      local: ${variables.root}/prose
      proportion: ${variables.half}
      subset: [[0, 1m], [5m, null]]
  epoch_size: 1.5m
  schedule: null
  shuffle: true
  skip: [[4096, 8192], [1200ba, 1250ba]]
  loader: {num_workers: 4, timeout: 30.5, prefetch_factor: "${oc.decode:${oc.env:HEADRACE_NOT_SET,3}}"}
eval:
  <<: *train
  epoch_size: 1000
test: {local: "${train.streams.code.local}", <<: {split: val}}
"""


MOST_SECONDS = 30.0


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, **options)
    assert len(str(caught.value)) < 100_000
    return str(caught.value)


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f'{name}.yaml').write_text(text)
    return folder / f'{next(reversed(files))}.yaml'


def train(text: str) -> str:
    return f'device_batch_size: 4\ntrain:\n  local: /data\n{text}'


def billion_laughs(levels: int) -> str:
    first = 'a0: &a0 [x, x, x, x, x, x, x, x, x, x]'
    rest = [f'a{i}: &a{i} [{", ".join([f"*a{i - 1}"] * 10)}]' for i in range(1, levels)]
    return train('variables:\n  ' + '\n  '.join([first, *rest]))


def chain_of_interpolations(levels: int, reference: str) -> str:
    values = [f'v{i}: "{(reference % (i - 1)) * 2}"' for i in range(1, levels)]
    return (
        f'variables:\n  v0: "{"x" * 1000}"\n  '
        + '\n  '.join(values)
        + '\n'
        + train(f'  split: ${{variables.v{levels - 1}}}')
    )


def diamond_of_sections(levels: int) -> str:
    values = [f'v{i}: {{a: "${{variables.v{i - 1}}}", b: "${{variables.v{i - 1}}}"}}' for i in range(1, levels)]
    return (
        'variables:\n  v0: {x: 1}\n  '
        + '\n  '.join(values)
        + '\n'
        + train(f'  store_options: ${{variables.v{levels - 1}}}')
    )


BOMBS = {
    'aliases': (billion_laughs(12), 'at most 300,000 values'),
    'aliases of merge keys': (
        'a0: &a0 {'
        + ', '.join(f'k{i}: {i}' for i in range(100))
        + '}\n'
        + '\n'.join(f'a{i}: &a{i} {{<<: [{", ".join([f"*a{i - 1}"] * 20)}]}}' for i in range(1, 9)),
        'at most 300,000 values',
    ),
    'interpolations': (chain_of_interpolations(30, '${variables.v%d}'), 'gives a text of 32,000 characters'),
    'relative interpolations': (chain_of_interpolations(9, '${.v%d}'), 'gives a text of 32,000 characters'),
    'relative interpolations in a long chain': (
        chain_of_interpolations(40, '${.v%d}'),
        'too many interpolations refer to each other',
    ),
    'resolvers': (chain_of_interpolations(9, '${oc.select:variables.v%d}'), 'gives a text of 32,000 characters'),
    'interpolations of sections': (diamond_of_sections(30), 'at most 300,000 values'),
    'many interpolations': (train(f'  split: "{"${device_batch_size}" * 100}"'), 'at most 4,096 characters and 64'),
    'a chain of interpolations': (
        train(
            '  split: ${variables.v1}\nvariables:\n  '
            + '\n  '.join(f'v{i}: ${{variables.v{i + 1}}}' for i in range(1, 5000))
            + '\n  v5000: x'
        ),
        'more than 50 interpolations refer to each other',
    ),
    'interpolations within each other': (train(f'  split: "{"${" * 1000}"'), 'at most 4,096 characters and 64'),
    'an alias of itself': (train('  store_options: &a {a: *a}'), 'an alias refers to a value that contains it'),
    'depth': (train('  store_options: ' + '[' * 100_000), 'nested more than 50 deep'),
    'depth of blocks': ('- ' * 10_000, 'nested more than 50 deep'),
    'values': ('\n'.join(f'k{i}: 1' for i in range(300_001)), 'at most 300,000 values'),
    'a file': ('#' * ((16 << 20) + 1), 'at most 16,777,216 bytes'),
    'digits': (train('  epoch_size: ' + '9' * 5000), 'a number has at most 100 digits, got 5,000'),
    'digits to base 60': (train('  epoch_size: 1' + ':1' * 500_000), 'a number has at most 100 digits'),
    'digits in text': (train('  epoch_size: "' + '9' * 5000 + '"'), 'epoch_size'),
    'digits in a range': (train(f'  subset: [["{"9" * 5000}", null]]'), 'subset'),
    'digits in skip': (train(f'  skip: [["{"9" * 5000}ba", "{"9" * 5001}ba"]]'), 'skip'),
    'a long key': (f'{"k" * 1000}: 1\n' + train(''), 'unknown key'),
    'a long path': (train('  ' + 'local' + 'x' * 1_000 + ': 1'), 'unknown key'),
    'unknown keys': (train('\n'.join(f'  locl{i}: 1' for i in range(50_000))), 'and 49,800 more'),
    'wrong streams': (
        'device_batch_size: 4\ntrain:\n  streams:\n' + '\n'.join(f'    s{i}: {{remot: x}}' for i in range(20_000)),
        'more',
    ),
    'evaluation sets that are none': (
        train('eval:\n' + '\n'.join(f'  locl{i}: {{lcal: 1}}' for i in range(20_000))),
        'more',
    ),
}


@pytest.mark.parametrize(('text', 'rule'), BOMBS.values(), ids=BOMBS.keys())
def test_what_grows_is_refused_in_bounded_time(text: str, rule: str, tmp_path: Path) -> None:
    path = write(tmp_path, mix=text)
    began = time.process_time()
    assert rule in refusal(path)
    assert time.process_time() - began < MOST_SECONDS


def test_files_in_a_diamond_are_bounded_and_few_of_them_work(tmp_path: Path) -> None:
    for level in range(1, 19):
        write(tmp_path, **{f'level{level}': f'defaults: [level{level - 1}.yaml, level{level - 1}.yaml]\n'})
    top = write(tmp_path, level0=train(''), mix='defaults: [level18.yaml]')
    assert 'at most 1,000 files are included' in refusal(top)
    config = load_config(tmp_path / 'level7.yaml').train  # 254 inclusions
    assert config is not None
    assert config.local == '/data'


def test_files_that_include_each_other_in_a_long_chain_are_refused(tmp_path: Path) -> None:
    for level in range(1, 400):
        write(tmp_path, **{f'level{level}': f'defaults: [level{level - 1}.yaml]\n'})
    write(tmp_path, level0=train(''))
    assert 'more than 20 deep' in refusal(tmp_path / 'level399.yaml')
    assert isinstance(load_config(tmp_path / 'level19.yaml'), Config)


def test_values_of_files_that_are_included_often_are_counted_each_time(tmp_path: Path) -> None:
    wide = 'variables:\n' + '\n'.join(f'  k{i}: 1' for i in range(5_000))
    path = write(tmp_path, wide=wide, mix=f'defaults: [{", ".join(["wide.yaml"] * 900)}]\n' + train(''))
    assert 'at most 300,000 values' in refusal(path)


def test_devices_fifos_and_folders_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / 'fifo.yaml')
    (tmp_path / 'folder.yaml').mkdir()
    (tmp_path / 'circle.yaml').symlink_to('circle.yaml')
    for name, rule in {
        str(tmp_path / 'fifo.yaml'): 'must be a file, but is a FIFO',
        str(tmp_path / 'folder.yaml'): 'Is a directory',
        str(tmp_path / 'circle.yaml'): 'symbolic links',
        '/dev/zero': 'must be a file, but is a device',
        str(tmp_path / ('x' * 300)): 'name too long',
    }.items():
        assert rule in refusal(name)
        assert rule in refusal(write(tmp_path, mix=f'defaults: [{name}]'))


@pytest.mark.parametrize('name', ['a\0b.yaml', 'a\ud800b.yaml', '\udcff'])
def test_a_path_with_what_no_path_has(name: str) -> None:
    text = refusal(name)
    assert 'not a path' in text or 'no such file' in text
    text = refusal({'defaults': [name], 'device_batch_size': 4, 'train': {'local': '/x'}})
    assert 'defaults[0]' in text


@pytest.mark.parametrize(
    'secret',
    [
        '[profile]\nkey = hunter2\n',
        'hunter2\n',
        'root:hunter2:x\n',
        '- hunter2\n',
        '"hunter2',
        'a: {hunter2',
        'a: *hunter2\n',
    ],
)
def test_an_included_file_that_is_no_configuration_is_not_quoted(secret: str, tmp_path: Path) -> None:
    path = write(tmp_path, secret=secret, mix='defaults: [secret.yaml]\n' + train(''))
    assert 'hunter2' not in refusal(path)


def cycle() -> dict[str, Any]:
    source: dict[str, Any] = {'device_batch_size': 4}
    source['train'] = {'local': '/data', 'store_options': source}
    return source


@pytest.mark.parametrize(
    'source',
    [
        cycle(),
        {'device_batch_size': 10**5000, 'train': {'local': '/data'}},
        {'device_batch_size': 4, 'train': {'local': object()}},
        {'device_batch_size': 4, 'train': {'local': '/data', 'epoch_size': float('nan')}},
        {'device_batch_size': 4, 'train': {'local': '/data', ('a', 'b'): 1}},
        {'device_batch_size': 4, 'train': {'local': '/data', None: 1}},
        {'device_batch_size': 4, 'train': {'local': b'/data'}},
    ],
    ids=['cycle', 'digits', 'object', 'nan', 'tuple as key', 'none as key', 'bytes'],
)
def test_a_mapping_that_no_yaml_could_be(source: dict[str, Any]) -> None:
    refusal(source)


@pytest.mark.parametrize(
    'override',
    [
        'train.skip[' + '9' * 5000 + ']=1',
        '.'.join('a' * 5000) + '=1',
        'train.x=\udcff',
        f'train.x={"[" * 10_000}',
        '[=',
        '~',
    ],
)
def test_overrides_are_bounded_too(override: str) -> None:
    refusal({'device_batch_size': 4, 'train': {'local': '/data', 'skip': [[0, 1]]}}, overrides=[override])


def test_ten_thousand_streams_of_six_keys_load_in_seconds(tmp_path: Path) -> None:
    streams = ''.join(
        f'    stream{i}:\n      remote: s3://bucket/{i}\n      local: ${{variables.root}}/{i}\n      split: train\n'
        f'      proportion: {i % 7 + 1}\n      download_retry: 3\n      keep_zip: false\n'
        for i in range(10_000)
    )
    path = write(tmp_path, mix=f'device_batch_size: 4\nvariables: {{root: /data}}\ntrain:\n  streams:\n{streams}')
    began = time.process_time()
    config = load_config(path).train
    assert time.process_time() - began < 10
    assert config is not None
    assert config.streams[9999].local == '/data/9999'
    assert len(config.streams) == 10_000


def test_10_000_streams_with_variables_of_the_environment_in_their_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('HEADRACE_ROOT', 's3://bucket')
    path = '${oc.env:HEADRACE_ROOT}/${oc.env:HEADRACE_ABSENT,corpora}/${variables.version}/%d/' + 'x' * 60
    streams = {f's{number}': {'remote': path % number} for number in range(10_000)}
    config = load_config({'device_batch_size': 4, 'variables': {'version': 2}, 'train': {'streams': streams}}).train
    assert config is not None
    assert config.streams[9999].remote == 's3://bucket/corpora/2/9999/' + 'x' * 60


@pytest.mark.parametrize(
    'text',
    [
        *(
            '${oc.env:HEADRACE_ROOT}',
            'a${oc.env:HEADRACE_ROOT}b',
            '$${oc.env:HEADRACE_ROOT}}',
            "'${oc.env:HEADRACE_ROOT}'",
        ),
        *('${oc.env:HEADRACE_ABSENT,4}', '${oc.env:HEADRACE_ABSENT, a b }|', "${oc.env:HEADRACE_ABSENT,'a b'}"),
        *(
            '${oc.env: HEADRACE_ROOT}/${variables.number}',
            'x${oc.env:HEADRACE_ABSENT,null}',
            '{${oc.env:HEADRACE_ROOT}',
        ),
        *('${oc.env:HEADRACE_ROOT}/\\${kept}', '${oc.env:HEADRACE_ROOT}${oc.decode:${oc.env:HEADRACE_ABSENT,3}}'),
    ],
)
def test_variables_of_the_environment_are_what_omegaconf_makes_of_them(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('HEADRACE_ROOT', '/env')
    values = {'device_batch_size': 4, 'variables': {'number': 1}, 'train': {'local': text}}
    config = load_config(values).train
    assert config is not None
    assert config.local == OmegaConf.create(values).train.local


def test_merge_keys_aliases_and_interpolations_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('HEADRACE_ROOT', '/env')
    text = """
device_batch_size: 4
variables:
  {root: '${oc.env:HEADRACE_ROOT}', options: {connect_timeout: 3, at: '${..root}'}, names: [a, b], split: names}
train: &train
  streams:
    a: &a {local: '${variables.root}/a', split: '${variables.names[1]}', store_options: '${variables.options}'}
    b: {<<: *a, local: '${train.streams.a.local}/${variables.${variables.split}[0]}'}
    c: {<<: [*a, {split: never}], local: '\\${kept}'}
eval: {<<: *train, streams: null, local: '${train.streams.a.local}', loader: '${test.loader}'}
test: {local: /t, loader: {num_workers: '${oc.decode:${oc.env:HEADRACE_ABSENT,2}}', timeout: '${.num_workers}'}}
"""
    config = load_config(write(tmp_path, mix=text))
    assert config.train is not None
    a, b, c = config.train.streams
    assert (a.local, a.split, a.store_options) == ('/env/a', 'b', {'connect_timeout': 3, 'at': '/env'})
    assert (b.local, b.split, b.store_options) == ('/env/a/a', 'b', a.store_options)
    assert (c.local, c.split) == ('${kept}', 'b')
    assert (config.eval[0].local, config.eval[0].loader.num_workers, config.eval[0].loader.timeout) == ('/env/a', 2, 2)


PIECES = [
    *('${', '}', '${oc.env:X}', '${train}', '${..}', '${.}', '${oc.select:train}', '${variables.root}', '???', '\\'),
    *('&a ', '*a', '*train', '<<: ', '[', ']', '{', '}', ': ', '- ', '\n', '  ', '\t', '"', "'", '|', '>', '#', '!'),
    *('!!int ', '!!binary ', '%', '@', '`', '? ', '---\n', '...\n', '9' * 5000, '-1', '1e999', '.nan', '-.inf', '0x_'),
    *('0b', '1:1:1', 'null', '~', 'true', '2020-01-01', '\0', '\ufeff', '\ud7ff', '\x85', 'x' * 5000, '[' * 60),
    *('defaults: [mix.yaml]\n', 'defaults: [/dev/zero]\n'),
]


def mutated(text: str, choices: random.Random) -> bytes:
    for _ in range(choices.choice([1, 1, 2, 4])):
        at, end = sorted(choices.randrange(len(text) + 1) for _ in range(2))
        end = min(end, at + choices.choice([0, 1, 5, 40]))
        lines = text.splitlines(keepends=True) or ['']
        match choices.randrange(5):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + text[at:end] * choices.choice([2, 50]) + text[end:]
            case 2:
                line = choices.randrange(len(lines))
                lines.insert(line, lines[choices.randrange(len(lines))])
                text = ''.join(lines)
            case _:
                text = text[:at] + choices.choice(PIECES) + text[end:]
    data = bytearray(text.encode(errors='surrogatepass'))
    if choices.random() < 0.1 and data:
        data[choices.randrange(len(data))] = choices.randrange(256)
    return bytes(data)


def fuzz(folder: Path, count: int, seed: int) -> tuple[int, float, int]:
    """Load mutated files; returns how many loaded, the seconds of the slowest and the peak of memory in bytes."""
    choices, path = random.Random(seed), folder / 'mix.yaml'
    loaded, slowest, longest = 0, 0.0, 0
    tracemalloc.start()
    try:
        for number in range(count):
            data = mutated(GOOD, choices)
            path.write_bytes(data)
            began = time.process_time()
            try:
                load = load_config if number % 8 else config_of_foundry
                assert isinstance(load(path), Config)
                loaded += 1
            except ConfigError as error:
                longest = max(longest, len(str(error)))
            except Exception as error:
                raise AssertionError(f'mutation {number} of seed {seed} raises {error!r}: {data!r}') from error
            slowest = max(slowest, time.process_time() - began)
        assert longest < 100_000
        return loaded, slowest, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_hundred_and_fifty_mutated_files_give_a_configuration_or_an_error_of_ours(tmp_path: Path) -> None:
    loaded, slowest, peak = fuzz(tmp_path, 150, seed=1)
    assert 0 < loaded < 150
    assert slowest < MOST_SECONDS
    assert peak < 100 << 20


@pytest.mark.slow
def test_a_thousand_mutated_files_and_their_figures(tmp_path: Path) -> None:
    loaded, slowest, peak = fuzz(tmp_path, 1000, seed=2)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(
        f'1000 files, {loaded} loaded; slowest {slowest:.2f} s, peak {peak >> 20} MiB, RSS {resident >> 10} MiB\n'
    )
    assert slowest < MOST_SECONDS
    assert peak < 100 << 20


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
    # The rest of the message depends on the installed YAML library.
    assert line.startswith(expected.removesuffix('...')) if expected.endswith('...') else line == expected
