"""What a stream offers, against a model that goes through all of its samples; and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology, Where
from headrace.errors import EmptyDatasetError, ResumeError, StreamError
from headrace.selection import selection as selection_module
from headrace.testing.oracle import World, check_resume, walk
from tests.support.datasets.selectable import columns_of, write_json, write_mds
from tests.support.datasets.selected import SAMPLES, bits, ids
from tests.support.packings.no_tokens import no_tokens  # noqa: F401
from tests.support.suite.example_counts import scaled

TESTS: dict[str, tuple[Any, Any]] = {
    'equals': ({'lang': 'de'}, lambda s: s['lang'] == 'de'),
    'in': ({'lang': ['de', 'en']}, lambda s: s['lang'] in ('de', 'en')),
    'not': ({'lang': {'not': ['de', 'en']}}, lambda s: s['lang'] not in ('de', 'en')),
    'numbers': ({'id': {'in': [3, 5, 500]}}, lambda s: s['id'] in (3, 5)),
    'at_least': ({'score': {'at_least': 0.3}}, lambda s: s['score'] >= np.float32(0.3)),
    'between': ({'id': {'at_least': 7, 'below': 100}}, lambda s: 7 <= s['id'] < 100),
    'text order': ({'lang': {'below': 'en'}}, lambda s: s['lang'] < 'en'),
    'length': ({'text': {'length': {'at_least': 3}}}, lambda s: len(s['text']) >= 3),
    'array length': ({'tokens': {'length': 2}}, lambda s: 1 + s['id'] % 4 == 2),
    'two columns': ({'lang': 'fr', 'id': {'below': 60}}, lambda s: s['lang'] == 'fr' and s['id'] < 60),
    'function': (Where(lambda s: s['id'] % 3 == 0, name='thirds', columns=['id']), lambda s: s['id'] % 3 == 0),
    'whole samples': (Where(lambda s: len(s['tokens']) > 2, name='long'), lambda s: 1 + s['id'] % 4 > 2),
}


@pytest.mark.parametrize('name', TESTS)
def test_where_keeps_what_a_loop_over_all_samples_would(data: Path, name: str) -> None:
    where, model = TESTS[name]
    expected = [i for i in range(SAMPLES) if model(columns_of(i))]
    assert ids(StreamingDataset(local=str(data), where=where)) == expected


@pytest.mark.parametrize('name', [name for name in TESTS if name not in ('array length', 'whole samples')])
def test_the_same_of_lines(tmp_path: Path, name: str) -> None:
    where, model = TESTS[name]
    samples = [{**columns_of(i), 'score': i % 10 / 10} for i in range(50)]
    folder = write_json(tmp_path / 'json', 50)
    model_score = (lambda s: s['score'] >= 0.3) if name == 'at_least' else model
    expected = [s['id'] for s in samples if model_score(s)]
    assert ids(StreamingDataset(local=str(folder), where=where)) == expected


@st.composite
def some_ranges(draw: st.DrawFn) -> list[list[int | None]] | None:
    edges: list[int | None] = sorted(draw(st.sets(st.integers(0, SAMPLES), min_size=2, max_size=6)))
    pairs = [list(pair) for pair in zip(edges[::2], edges[1::2], strict=False)]
    if pairs[-1][1] == SAMPLES and draw(st.booleans()):
        pairs[-1][1] = None
    return draw(st.sampled_from([None, pairs]))


@settings(max_examples=scaled(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    some_ranges(),
    st.sampled_from([None, (0, 0.5), (0.5, 1), ('1/3', '2/3'), (0.05, 1)]),
    st.sampled_from([None, *(name for name in TESTS if name != 'numbers')]),
    st.integers(0, 3),
)
def test_what_each_keeps_is_intersected(data: Path, subset: Any, fraction: Any, name: str | None, seed: int) -> None:
    where, model = (None, lambda s: True) if name is None else TESTS[name]
    side = set(range(SAMPLES))
    if fraction is not None:
        side = set(ids(StreamingDataset(local=str(data), fraction=fraction, fraction_seed=seed)))
    spans = [range(a, SAMPLES if b is None else b) for a, b in subset or [[0, None]]]
    expected = [i for i in range(SAMPLES) if i in side and any(i in s for s in spans) and model(columns_of(i))]
    options = dict(subset=subset, fraction=fraction, fraction_seed=seed, where=where)
    if not expected:
        with pytest.raises(EmptyDatasetError, match='keeps none'):
            StreamingDataset(local=str(data), **options)
        return
    dataset = StreamingDataset(local=str(data), **options)
    assert sorted(ids(dataset)) == expected
    assert dataset.size == dataset.epoch_size == len(dataset) == len(expected)
    if fraction is None or where is not None:
        assert ids(dataset) == expected, 'not in stored order'
    shuffled = StreamingDataset(local=str(data), shuffle=True, batch_size=4, **options)
    assert sorted(int(sample['id']) for sample in shuffled) == expected


@settings(max_examples=scaled(25), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.floats(0.01, 0.99), st.integers(0, 2**40))
def test_train_and_val_share_nothing_and_leave_nothing_out(data: Path, edge: float, seed: int) -> None:
    try:
        parts = [ids(StreamingDataset(local=str(data), fraction=part, fraction_seed=seed)) for part in
                 ([0, edge], [edge, 1])]  # fmt: skip
    except EmptyDatasetError:
        return
    assert sorted(parts[0] + parts[1]) == list(range(SAMPLES))


def test_a_whole_that_is_written_down_is_no_selection(data: Path) -> None:
    plain = StreamingDataset(local=str(data))
    whole = StreamingDataset(local=str(data), subset=[[0, None]], fraction=[0, 1], fraction_seed=5)
    assert whole.streams[0].row_selection is None
    assert whole.streams[0].fingerprint == plain.streams[0].fingerprint


def test_a_stream_has_its_own_selection_or_the_dataset_s(data: Path) -> None:
    streams = [Stream(local=str(data), fraction=[0, 1]), Stream(local=str(data))]
    dataset = StreamingDataset(streams=streams, fraction=[0, 0.5])
    assert [size.size for size in dataset.mixture.streams] == [SAMPLES, StreamingDataset(
        local=str(data), fraction=[0, 0.5]).size]  # fmt: skip


def test_two_languages_of_one_folder_mix_by_proportion(data: Path) -> None:
    streams = [Stream(local=str(data), name=lang, where={'lang': lang}, proportion=share)
               for lang, share in (('de', 3), ('fr', 1))]  # fmt: skip
    dataset = StreamingDataset(streams=streams, epoch_size=80, shuffle=True, batch_size=4)
    found = [sample['lang'] for sample in dataset]
    assert (found.count('de'), found.count('fr')) == (60, 20)


def test_local_data_gets_no_file_and_neither_does_arithmetic(data: Path, private: Path) -> None:
    StreamingDataset(local=str(data), subset=[[0, 50]], fraction=[0, 0.5])
    assert bits(private) == []
    before = sorted(data.rglob('*'))
    StreamingDataset(local=str(data), where={'lang': 'de'})
    assert sorted(data.rglob('*')) == before
    assert len(bits(private)) == 1


def test_shards_of_which_nothing_is_kept_are_not_fetched(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / 'cache'
    dataset = StreamingDataset(
        remote=str(data), local=str(cache), subset=[[0, 20]], where={'lang': 'de'}, batch_size=4, shuffle=True
    )
    kept = dataset.streams[0].row_selection
    assert kept is not None
    touched = {int(shard) for shard in dataset.locate(np.arange(dataset.size))[0]}
    list(StreamingDataLoader(dataset, batch_size=4, topology=Topology(), num_workers=1))
    there = {path.name for path in cache.glob('*.mds')}
    first_twenty = {info.files[0].raw.basename for info in dataset.shards[: max(touched) + 1]}
    assert there <= first_twenty
    assert len(first_twenty) < len(dataset.shards) / 2


SELECTIONS: list[dict[str, Any]] = [
    {'subset': [[3, 20], [40, 100]]},
    {'fraction': [0, 0.6]},
    {'where': {'lang': ['de', 'fr']}, 'fraction': [0.25, 1]},
]


WORLDS = [World(), World(ranks=2), World(ranks=4, nodes=2), World(ranks=8, nodes=2, replication=2)]


@pytest.fixture
def mix(data: Path, tmp_path: Path):
    other = write_mds(tmp_path / 'other', 90, first=1000)

    def make(topology: Topology, workers: int, *, third: Any = SELECTIONS[2], **options: Any) -> StreamingDataLoader:
        streams = [
            Stream(local=str(data), name='a', repeat=1.5, **SELECTIONS[0]),
            Stream(local=str(other), name='b', **SELECTIONS[1]),
            Stream(local=str(other), name='c', **third),
        ]
        dataset = StreamingDataset(
            streams=streams, batch_size=8 // topology.replicas, shuffle=True, num_canonical_nodes=2, **options
        )
        return StreamingDataLoader(dataset, num_workers=workers, topology=topology)

    return make


def test_any_state_of_a_mix_of_selections_resumes_on_any_topology(mix) -> None:
    assert check_resume(mix, WORLDS, every=3) > 10
    assert check_resume(mix, [WORLDS[2], World(ranks=2, workers=1)], every=9, horizon=4) > 3


@pytest.mark.parametrize('algorithm', ['py1e', 'py1s', 'naive'])
def test_mosaicml_s_orders_too(mix, algorithm: str) -> None:
    def make(topology: Topology, workers: int) -> StreamingDataLoader:
        return mix(topology, workers, shuffle_algo=algorithm)

    seen = [sample for step in walk(make, World(ranks=2)) for sample in step.ids]
    assert len(set(seen)) > 100


def test_a_state_of_another_selection_is_refused_with_both_named(mix) -> None:
    state = next(iter(walk(mix, World()))).state
    loader = mix(Topology(), 0, third={'where': {'lang': ['de', 'en']}, 'fraction': [0.25, 1]})
    with pytest.raises(ResumeError) as raised:
        loader.load_state_dict(state)
    assert 'fraction 1/4 to 1 of seed 0, where {"lang": ["de", "fr"]}' in str(raised.value)
    assert 'fraction 1/4 to 1 of seed 0, where {"lang": ["de", "en"]}' in str(raised.value)


def test_a_function_that_changed_under_its_name_is_refused_where_it_is_evaluated_anew(
    data: Path, private: Path
) -> None:
    def make(modulus: int) -> StreamingDataLoader:
        where = Where(lambda s: s['id'] % 10 != modulus, name='most', columns=['id'])
        return StreamingDataLoader(StreamingDataset(local=str(data), where=where, batch_size=4), topology=Topology())

    state = make(0).state_dict()
    make(1).load_state_dict(state)  # the same name: the file is believed
    for path in bits(private):
        path.unlink()
    with pytest.raises(ResumeError, match='function "most"'):
        make(1).load_state_dict(state)


def write_ids(folder: Path, first: int) -> Path:
    """40 samples; the index does not depend on their ids."""
    with MDSWriter(out=str(folder), columns={'id': 'int'}, size_limit=500, exist_ok=True) as writer:
        for i in range(first, first + 40):
            writer.write({'id': i})
    return folder


def test_another_dataset_with_the_same_index_is_evaluated_itself(data: Path, tmp_path: Path) -> None:
    twin = write_mds(tmp_path / 'twin', SAMPLES, first=5)
    where = {'id': {'below': 40}}
    assert ids(StreamingDataset(local=str(data), where=where)) == list(range(40))
    assert ids(StreamingDataset(local=str(twin), where=where)) == list(range(5, 40))
    fixed = [write_ids(tmp_path / str(first), first) for first in range(2)]
    assert (fixed[0] / 'index.json').read_bytes() == (fixed[1] / 'index.json').read_bytes()
    where = {'id': {'at_least': 5}}
    assert [len(StreamingDataset(local=str(folder), where=where)) for folder in fixed] == [35, 36]


def test_data_written_anew_in_place_is_evaluated_anew(tmp_path: Path) -> None:
    for first in range(2):
        write_ids(tmp_path / 'a', first)
        assert len(StreamingDataset(local=str(tmp_path / 'a'), where={'id': {'at_least': 5}})) == 35 + first


def test_under_a_cache_limit_it_is_evaluated_shard_by_shard(tmp_path: Path) -> None:
    remote = write_mds(tmp_path / 'remote', 600, size_limit=3000)
    shards = sorted(remote.glob('*.mds'))
    assert len(shards) > 8
    limit = 3 * 3000 + 20_000  # the index counts too
    dataset = StreamingDataset(
        remote=str(remote), local=str(tmp_path / 'cache'), cache_limit=limit, where={'lang': 'de'}, batch_size=5
    )
    expected = [i for i in range(600) if columns_of(i)['lang'] == 'de']
    assert ids(dataset) == expected
    held = sum(path.stat().st_size for path in (tmp_path / 'cache').glob('*.mds'))
    assert held <= limit


def test_progress_is_logged(data: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_module, 'SECONDS_BETWEEN_LINES', -1.0)
    caplog.set_level('INFO')
    StreamingDataset(local=str(data), where={'lang': 'de'})
    assert 'Evaluating where {"lang": "de"}' in caplog.messages[0]
    assert any(' of ' in message and 'shards' in message for message in caplog.messages[1:-1])
    assert 'where keeps' in caplog.messages[-1]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    'no list': ({'subset': 5}, 'subset: got 5; must be a list of ranges'),
    'no ranges': ({'subset': []}, 'must be a list of ranges'),
    'a flat range': ({'subset': [0, 10]}, r'subset\[0\]: got 0; must be a range \[start, stop\]'),
    'an empty range': ({'subset': [[5, 5]]}, r'got \[5, 5\]; must be a range'),
    'backwards': ({'subset': [[5, 4]]}, 'must be a range'),
    'negative': ({'subset': [[-5, 4]]}, 'must be a range'),
    'half a sample': ({'subset': [[0.5, 4]]}, 'must be a range'),
    'infinite': ({'subset': [[0, float('inf')]]}, 'must be a range'),
    'bool': ({'subset': [[False, True]]}, 'must be a range'),
    'overlapping': ({'subset': [[0, 10], [9, 12]]}, r'subset\[1\]: got \[9, 12\]; must begin after .*\[0, 10\]'),
    'not sorted': ({'subset': [[20, 30], [0, 10]]}, 'ranges ascend and do not overlap'),
    'after the end': ({'subset': [[0, None], [20, 30]]}, r'must begin after the range before, \[0, None\]'),
    'one number': ({'fraction': [0.5]}, 'fraction: got .* must be'),
    'not a list': ({'fraction': 0.5}, r'must be \[low, high\]'),
    'out of order': ({'fraction': [0.95, 0.9]}, 'with 0 <= low < high <= 1'),
    'nothing between': ({'fraction': [0.5, 0.5]}, 'with 0 <= low < high <= 1'),
    'beyond 1': ({'fraction': [0.5, 1.5]}, 'with 0 <= low < high <= 1'),
    'no number': ({'fraction': [0, 'half']}, 'with 0 <= low < high <= 1'),
    'nan': ({'fraction': [0, float('nan')]}, 'with 0 <= low < high <= 1'),
    'a negative seed': ({'fraction': [0, 0.5], 'fraction_seed': -1}, '`fraction_seed` must be at least 0, but is -1'),
    'no mapping': ({'where': 'lang == de'}, 'where: got .*; must be a mapping from columns to tests'),
    'no columns': ({'where': {}}, 'must be a mapping from columns to tests'),
    'a number as column': ({'where': {5: 'de'}}, 'the name of a column is text'),
    'no operator': ({'where': {'lang': {}}}, 'must hold an operator: equals, in, at_least'),
    'unknown operator': ({'where': {'id': {'at_leest': 5}}}, r"where\['id'\]\['at_leest'\]: got 5; unknown operator.*did you mean \"at_least\""),  # noqa: E501
    'inside not': ({'where': {'id': {'not': {'over': 5}}}}, r"\['not'\]\['over'\]: got 5; unknown operator"),
    'nothing in': ({'where': {'lang': []}}, 'must be a list of values, at least one'),
    'in of one': ({'where': {'lang': {'in': 'de'}}}, 'must be a list of values'),
    'in of lists': ({'where': {'lang': [['de']]}}, 'must be a text or a finite number'),
    'in of both': ({'where': {'lang': ['de', 5]}}, 'must be all text or all numbers'),
    'null': ({'where': {'lang': None}}, 'equals takes a text or a finite number'),
    'nan as operand': ({'where': {'score': float('nan')}}, 'equals takes a text or a finite number'),
    'bool as bound': ({'where': {'score': {'below': True}}}, 'below takes a text or a finite number'),
    'a function without a name': ({'where': lambda s: True}, 'a function needs a name, under which its result is kept'),
}  # fmt: skip


@pytest.mark.parametrize('name', BAD)
def test_an_argument_that_breaks_a_rule_is_refused_at_once(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(StreamError, match=message):
        Stream(local='/nowhere', **options)


NOT_OF_THIS_DATA: dict[str, tuple[dict[str, Any], str]] = {
    'beyond the end': ({'subset': [[0, 131]]}, r'names samples \[0, 131\], but the stream has 130'),
    'starts beyond the end': ({'subset': [[130, None]]}, r'names samples \[130, None\], but the stream has 130'),
    'no such column': ({'where': {'langs': 'de'}}, r"the column 'langs', but shard.00000.mds .*did you mean \"lang\""),
    'no such column of a function': ({'where': Where(len, name='a', columns=['x'])}, "the column 'x'"),
    'a number for text': ({'where': {'lang': 5}}, "'lang' holds str values such as 'de', but equals compares with the number 5"),  # noqa: E501
    'Norway': ({'where': {'lang': False}}, 'in YAML, quote it'),
    'text for a number': ({'where': {'id': {'in': ['5']}}}, "'id' holds int64 values"),
    'text for a bound': ({'where': {'score': {'not': {'below': '5'}}}}, "'score' holds float32 values"),
    'an array': ({'where': {'tokens': 5}}, r"'tokens' holds ndarray values.* Test the number of its items, as with"),
    'length of a number': ({'where': {'id': {'length': 5}}}, 'length needs a text'),
}  # fmt: skip


@pytest.mark.parametrize('name', NOT_OF_THIS_DATA)
def test_a_selection_that_does_not_fit_the_data(data: Path, private: Path, name: str) -> None:
    options, message = NOT_OF_THIS_DATA[name]
    with pytest.raises(StreamError, match=message):
        StreamingDataset(local=str(data), **options)
    assert bits(private) == []


def test_a_selection_that_keeps_nothing_is_named_with_its_stream(data: Path) -> None:
    with pytest.raises(EmptyDatasetError, match=r'130 samples of stream web \(.*keeps none: where {"lang": "it"}'):
        StreamingDataset(streams=[Stream(local=str(data), name='web', where={'lang': 'it'})])


def test_a_long_selection_is_shortened_in_checkpoints_and_still_its_own(data: Path) -> None:
    ranges = [[i, i + 1] for i in range(0, 120, 2)]
    prints = [StreamingDataset(local=str(data), subset=ranges[:n]).streams[0].fingerprint for n in (59, 60)]
    assert prints[0] != prints[1]
    assert max(map(len, prints)) < 300


def test_importing_it_needs_no_torch() -> None:
    code = (
        'import sys, types, importlib.util\n'
        "spec = importlib.util.find_spec('headrace')\n"
        "bare = sys.modules['headrace'] = types.ModuleType('headrace')\n"
        'bare.__path__ = spec.submodule_search_locations\n'
        'import headrace.selection\n'
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=120)
