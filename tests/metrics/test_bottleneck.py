"""The sentence about the slow part of the data path, by counters and a clock of the test's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.dataset.statistics import StreamStats
from headrace.metrics import BottleneckWatch

NOTHING = StreamStats(*[0] * len(StreamStats._fields))


@dataclass
class Loader:
    """A loader with counters that a test sets."""

    num_workers: int = 2
    seconds_waiting: float = 0.0
    stalls: int = 0
    bytes_downloaded: int = 0
    bytes_from_peers: int = 0
    first_batch: float = 0.1
    waited: dict[str, float] = field(default_factory=lambda: {'a': 0.0, 'b': 0.0})
    unpacking: float = 0.0
    places: int = 0
    padding: int = 0
    dataset: Any = field(default_factory=lambda: SimpleNamespace(topology=SimpleNamespace(ranks_per_node=1)))

    def stats(self) -> Any:
        streams = {
            name: NOTHING._replace(seconds_waited=seconds, seconds_unpacking=self.unpacking / 2)
            for name, seconds in self.waited.items()
        }
        return SimpleNamespace(
            seconds_waiting=self.seconds_waiting,
            stalls=self.stalls,
            bytes_downloaded=self.bytes_downloaded,
            bytes_from_peers=self.bytes_from_peers,
            seconds_to_first_batch=self.first_batch,
            streams=streams,
            padded_places=self.places,
            padding_places=self.padding,
        )


class World:
    """A loader, and a watch that looks at it every 30 s."""

    def __init__(self, cores: int = 8, **loader: Any) -> None:
        self.now = 1000.0
        self.loader = Loader(**loader)
        self.watch = BottleneckWatch(clock=lambda: self.now, cores=cores)

    def pass_time(self, seconds: float = 30.0, **more: Any) -> Any:
        """Add to counters, and look."""
        self.now += seconds
        for name, value in more.items():
            setattr(self.loader, name, getattr(self.loader, name) + value if name != 'waited' else value)
        return self.watch.look({'': self.loader})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ('world', 'more', 'part', 'text'),
    [
        ({}, {'waited': {'a': 1.0, 'b': 22.0}, 'bytes_downloaded': 60_000_000}, 'store', "stream 'b', .* 2.0 MB/s"),
        (
            {},
            {'waited': {'a': 22.0}, 'bytes_downloaded': 6_000_000, 'bytes_from_peers': 54_000_000},
            'store',
            'downloads, which come at 2.0 MB/s, 90 % of them from peers',
        ),
        ({}, {'waited': {'a': 1.0, 'b': 22.0}, 'unpacking': 20.0}, 'decompression', 'headrace reshard'),
        ({'num_workers': 0}, {}, 'workers', 'Set num_workers'),
        ({'cores': 8}, {'stalls': 5}, 'workers', '2 workers cannot .* 8 cores for 1 rank. Raise num_workers'),
        ({'cores': 2}, {'stalls': 5}, 'decoding', 'decoding, transform and collate'),
        ({'first_batch': 11.0}, {}, 'start', 'persistent_workers=True'),
    ],
)
def test_the_slow_part_is_named(world: Any, more: Any, part: str, text: str) -> None:
    at = World(**world)
    assert at.pass_time() is None
    found = at.pass_time(seconds_waiting=12.0, **more)
    assert found.part == part
    assert found.share == pytest.approx(0.4)
    assert str(found).startswith('The trainer waits 40% of its time for data. ')
    assert re.search(text, str(found)), str(found)


def test_fast_data_and_times_between_looks_say_nothing() -> None:
    at = World()
    at.pass_time()
    assert at.pass_time(seconds_waiting=2.9) is None  # below 10 %
    assert at.pass_time(20, seconds_waiting=20.0) is None  # no look is due
    assert at.pass_time(10, seconds_waiting=0.0).part == 'workers'


def test_one_sentence_in_ten_minutes() -> None:
    at = World()
    at.pass_time()
    said = [at.pass_time(seconds_waiting=20.0) is not None for _ in range(45)]
    assert [n for n, is_said in enumerate(said) if is_said] == [0, 20, 40]


def test_time_of_an_evaluation_is_left_out() -> None:
    at = World()
    at.pass_time()
    at.watch.skip()
    assert at.pass_time(seconds_waiting=25.0) is None
    assert at.pass_time(seconds_waiting=25.0) is not None


@pytest.mark.parametrize(
    ('how', 'text'),
    [
        (
            {},
            r'Name the column of lengths in `cost`: the start of the next run then says what `bucket` would make .*\.',
        ),
        ({'cost': 'tokens'}, r'`bucket: 64` would make it \d+%\.'),
        ({'cost': 'tokens', 'bucket': 8}, None),
        ({'shuffle_algo': 'py1e', 'cost': 'tokens'}, None),
        ({'shuffle_algo': 'py1e'}, None),
        ({'batching_method': 'per_stream'}, None),
    ],
)
@pytest.mark.parametrize('workers', [0, 1])
def test_padding_is_counted_and_said_once(tmp_path: Path, how: Any, text: str | None, workers: int) -> None:
    lengths = np.exp(np.random.default_rng(0).normal(3, 1, 512)).astype(int) + 1
    with MDSWriter(out=str(tmp_path / 'data'), columns={'tokens': 'ndarray:int32'}) as out:
        for length in lengths.tolist():
            out.write({'tokens': np.zeros(length, np.int32)})
    dataset = StreamingDataset(local=str(tmp_path / 'data'), shuffle=True, batch_size=16, **how)
    loader = StreamingDataLoader(dataset, num_workers=workers, pad={'tokens': {'value': -1, 'multiple_of': 4}})
    padding = places = 0
    for batch in loader:
        padding += int((batch['tokens'] == -1).sum())
        places += batch['tokens'].numel()
    stats = loader.stats()
    assert (stats.padded_places, stats.padding_places) == (places, padding)
    now = [0.0]
    watch = BottleneckWatch(clock=lambda: now[0], cores=8)
    said: list[str] = []
    for _ in range(3):
        now[0] += 1000
        said += [str(found)] if (found := watch.look({'': loader})) else []
    if text is None:
        assert not said
    else:
        (sentence,) = said
        assert re.fullmatch(f'{padding / places:.0%} of the places of padded columns are padding. {text}', sentence)
