"""States that somebody has changed: an error of ours, or a state that works, in bounded time and memory."""

from __future__ import annotations

import copy
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.dataset.streams.stream import Stream
from headrace.errors import HeadraceError, ResumeError
from headrace.order import Mixture, OrderConfig, ResumeState, StreamSize, make_order
from headrace.order.resume import resume
from headrace.packing import PackedDataset, Packing

Make = Callable[[], StreamingDataLoader]
MOST_SECONDS = 20.0


def write(folder: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        with MDSWriter(columns={'id': 'int', 'tokens': 'bytes'}, out=str(folder / name), size_limit=512) as out:
            for number in range(size):
                out.write({'id': number, 'tokens': np.arange(1 + number % 7, dtype='uint16').tobytes()})
    return folder


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp('data'), {'a': 60, 'b': 36})


def loaders(folder: Path) -> dict[str, tuple[Make, Make]]:
    """By kind of run: what begins it, and what continues."""

    def loader(weights: tuple[float, float] | None = None, **options: Any) -> StreamingDataLoader:
        streams = [
            Stream(local=str(folder / name), name=name, **({} if weights is None else {'proportion': weights[i]}))
            for i, name in enumerate('ab')
        ]
        options = {'shuffle': True, 'batch_size': 6, 'streams': streams, **options}
        return StreamingDataLoader((PackedDataset if 'packing' in options else StreamingDataset)(**options))

    def of(weights: tuple[float, float] | None = None, **options: Any) -> Make:
        return lambda: loader(weights, **options)

    schedule = [
        {'at': 0, 'proportions': {'a': 1, 'b': 1}},
        {'at': 150, 'proportions': {'a': 1, 'b': 3}, 'change': 'linear'},
    ]
    packing = Packing(sequence_length=8, lanes=6, sequences_per_epoch=30, column='tokens', token_dtype='uint16')
    plain, changes = of(num_canonical_nodes=4), of((1, 1), on_mixture_change='continue')
    return {
        'native': (plain, of()),
        'py1e': (of(shuffle_algo='py1e', num_canonical_nodes=2), of(shuffle_algo='py1e')),
        'py2s, per stream': (of(shuffle_algo='py2s', batching_method='per_stream'),) * 2,
        'per stream': (of((1, 1), batching_method='device_per_stream', num_canonical_nodes=2),) * 2,
        'stratified': (of((1, 1), batching_method='stratified', num_canonical_nodes=2),) * 2,
        'schedule': (of(schedule=schedule, epoch_size=90),) * 2,
        'dropped streams': (of((1, 3), when_exhausted='drop_stream'),) * 2,
        'skip': (of(skip=[[12, 24], ['20ba', '22ba']]),) * 2,
        'another mixture': (of((3, 1), num_canonical_nodes=2), changes),
        'packing': (of(packing=packing, num_canonical_nodes=2), of(packing=packing)),
    }


def states(folder: Path, batches: int = 21) -> list[tuple[str, dict[str, Any], Make]]:
    """States of all kinds of runs, each with what continues from it."""
    found: list[tuple[str, dict[str, Any], Make]] = []
    for kind, (begin, go_on) in loaders(folder).items():
        loader, left = begin(), batches
        while left:
            for _ in loader:
                left -= 1
                if not left:
                    found.append((kind, dict(loader.state_dict()), go_on))
                    break
        if kind == 'another mixture':  # its next state says where the mixture took over
            other = go_on()
            other.load_state_dict(found[-1][1])
            next(iter(other))
            found.append((kind, dict(other.state_dict()), go_on))
        if kind.startswith('py'):  # as MosaicML Streaming writes it
            state = {
                key: value for key, value in found[-1][1].items() if key not in ('headrace', 'epoch_size', 'config')
            }
            found.append((f'MosaicML, {kind}', state, go_on))
    return found


# -- mutations ---------------------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**31 - 1, 2**32, 2**53, 2**62, 2**63, -(2**63), 2**64, 10**12, 10**18),
    *(10**30, 10**5000, -(10**5000), 0.5, 1.0, -0.0, 1e308, float('nan'), float('inf'), '', '1', 'a', 'native', 'py1e'),
    *('x' * 100_000, '\ud800', b'', (), [], {}, [[]], [0], [[0, 1]], [[1, 0]], {'0': 1}, {'a': {}}, [None] * 4),
    *([2**62] * 4, [0] * 4, [-1, 1, 0, 0], [10**9] * 2, object(), {1: 2}, [1.5], ['1'], {'name': 'a'}),
]  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def changed_value(value: Any, choices: random.Random) -> Any:
    if type(value) is int and choices.random() < 0.4:
        return value + choices.choice([-1, 1, 6, -6, 97, 10**6, 10**10, 10**15, -value, 3 * value])
    if isinstance(value, (list, dict)) and choices.random() < 0.4:
        return None if not value else (value * 2 if isinstance(value, list) else {**value, 'more': 1})
    return nested(choices.choice([30, 500])) if choices.random() < 0.03 else choices.choice(VALUES)


def change_somewhere(value: Any, choices: random.Random) -> Any:
    """The value with one place within it changed."""
    if isinstance(value, (list, dict)) and value and choices.random() < 0.85:
        changed: Any = copy.copy(value)
        key: Any = choices.choice(sorted(value)) if isinstance(value, dict) else choices.randrange(len(value))
        if choices.random() < 0.1:
            del changed[key]
        else:
            changed[key] = change_somewhere(value[key], choices)
        return changed
    return changed_value(value, choices)


def mutated(state: dict[str, Any], choices: random.Random) -> Any:
    if choices.random() < 0.02:
        return choices.choice([None, 3, 'x', [], [state], {}, {'state': state}, {1: 2, 'a': 3}, float('nan')])
    state = dict(state)
    for _ in range(choices.choice([1, 1, 1, 2, 3])):
        kind = choices.random()
        if kind < 0.5 and isinstance(state.get('config'), str):
            text = state['config']
            try:
                pinned = json.loads(text)
            except (ValueError, RecursionError):
                pinned = {}
            if kind < 0.42:
                try:
                    state['config'] = json.dumps(change_somewhere(pinned, choices))
                except (TypeError, ValueError):
                    depth = choices.choice([0, 100, 10_000])
                    state['config'] = '[' * depth + ']' * depth
            else:
                at = choices.randrange(len(text) + 1)
                state['config'] = choices.choice(
                    [text[:at], text[at:], text[:at] + choices.choice('{}[]",:0-e9n') + text[at + 1 :], '[' * 100_000,
                     text.replace('1', '9' * 5000), text.replace('0', '1e999'), text.replace('6', 'NaN')]
                )  # fmt: skip
        elif state and kind < 0.95:
            key = choices.choice(sorted(map(str, state)))
            state[key] = changed_value(state.get(key), choices)
        elif state:
            state.pop(choices.choice(list(state)))
        if choices.random() < 0.05:
            state[choices.choice(['more', '', 3])] = choices.choice(VALUES)  # type: ignore[index]
    return state


def is_near(state: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether packing has not much to do again between two positions: it may tokenise from the last known cut on."""
    return state['epoch'] < 100 and abs(state['sample_in_epoch'] - other['sample_in_epoch']) < 100


def fuzz(folder: Path, count: int, seed: int) -> tuple[int, float, int]:
    """Load mutated states; returns how many loaded, the seconds of the slowest and the peak of memory in bytes."""
    choices = random.Random(seed)
    found = states(folder)
    loaded, slowest = 0, 0.0
    tracemalloc.start()
    try:
        for number in range(count):
            kind, state, make = found[number % len(found)]
            given = mutated(state, choices)
            loader = make()
            began = time.process_time()
            try:
                (loader.dataset if number % 3 == 0 else loader).load_state_dict(given)
                ResumeState.from_dict(loader.state_dict())
                if kind != 'packing' or is_near(loader.state_dict(), state):
                    next(iter(loader), None)
                ResumeState.from_dict(loader.state_dict())
                loaded += 1
            except HeadraceError as error:
                text = str(error)
            except Exception as error:
                raise AssertionError(
                    f'state {number} of seed {seed}, {kind}: {error!r}: {str(given)[:3000]}'
                ) from error
            else:
                text = ''
            assert len(text) < 20_000, text[:1000]
            slowest = max(slowest, time.process_time() - began)
        return loaded, slowest, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_states_that_nobody_changed_load(folder: Path) -> None:
    for kind, state, make in states(folder):
        loader = make()
        loader.load_state_dict(state)
        assert loader.state_dict()['sample_in_epoch'] == state['sample_in_epoch'], kind
        assert next(iter(loader), None) is not None, kind


def test_two_hundred_changed_states_work_or_give_an_error_of_ours(folder: Path) -> None:
    loaded, slowest, peak = fuzz(folder, 200, seed=1)
    assert 0 < loaded < 200
    assert slowest < MOST_SECONDS
    assert peak < 200 << 20


def test_changed_states_of_a_stream_whose_rest_is_drawn_work_or_give_an_error_of_ours() -> None:
    def mix(a: float, b: float) -> Mixture:
        return Mixture.resolve(
            [
                StreamSize(name=name, shard_sizes=sizes, repeat=r)
                for name, sizes, r in (('a', [90], a), ('b', [9, 9], b))
            ]
        )

    config = OrderConfig(shuffle=True, num_canonical_nodes=4, block_size=5)
    state = ResumeState.of(config, mix(1, 8), epoch=0, sample_in_epoch=62)
    for to in (mix(1, 0.06), mix(1.1, 0.06)):
        changed, state = resume(state, config, to, may_change_mixture=True)
        state = ResumeState.of(config, changed, epoch=state.epoch + 1, sample_in_epoch=3)
    assert state.takeover.positions['b'].cells
    choices, loaded, mutations = random.Random(3), 0, 150
    for _ in range(mutations):
        pinned = json.loads(state.config or '')
        position = pinned['origin']['positions']
        position['b'] = change_somewhere(position['b'], choices)
        try:
            text = json.dumps(pinned)
        except (TypeError, ValueError):
            continue
        try:
            found, _ = resume(ResumeState.from_dict(state.to_dict() | {'config': text}), config, mix(1.1, 0.06))
            make_order(found, config, state.epoch + 1).at(np.arange(found.epoch_size))
            loaded += 1
        except HeadraceError:
            pass
    assert 0 < loaded < mutations


@pytest.mark.slow
def test_a_thousand_changed_states_and_their_figures(folder: Path) -> None:
    loaded, slowest, peak = fuzz(folder, 1000, seed=2)
    sys.stdout.write(f'1000 states, {loaded} loaded; slowest {slowest:.2f} s, peak {peak >> 20} MiB\n')
    assert slowest < MOST_SECONDS
    assert peak < 200 << 20


# -- single ones -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('change', 'rule'),
    [
        ({'num_canonical_nodes': 2**31}, 'num_canonical_nodes must be at most 65536, got 2147483648'),
        ({'shuffle_seed': 10**5000}, 'shuffle_seed must be at most'),
        ({'epoch': 10**17}, 'epoch must be one of a run of 2\\^61 samples at most'),
        ({'initial_physical_nodes': 2**31}, 'initial_physical_nodes must be at most'),
        ({'config': '[' * 100_000}, 'config must be a JSON object'),
        ({'config': '{"streams": ' + '9' * 5000 + '}'}, 'config must be a JSON object'),
        ({'headrace': True}, 'states of version 1, got True'),
    ],
    ids=['nodes', 'seed', 'epoch', 'machines', 'depth', 'digits', 'version'],
)
def test_numbers_beyond_all_use_are_refused_before_anything_is_made(
    change: dict[str, Any], rule: str, folder: Path
) -> None:
    make, go_on = loaders(folder)['native']
    state = {**make().state_dict(), **change}
    tracemalloc.start()
    try:
        with pytest.raises(ResumeError, match=rule):
            go_on().load_state_dict(state)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize('state', [3, 'x', [], [('epoch', 1)], {1: 2, 'a': 3}], ids=str)
def test_what_is_no_state_is_refused(state: Any, folder: Path) -> None:
    with pytest.raises(ResumeError):
        loaders(folder)['native'][1]().load_state_dict(state)
