"""Which samples of a stream are offered, out of those that are stored: `subset`, `fraction` and `where`.

Each of the three decides alone whether it keeps a stored sample. The stream offers the samples that all three keep. So
a sample stays on its side of a split if other selections change. The order of the three matters only for the cost:
`where` is evaluated on the samples of `subset`, once per machine (`bitmap_file`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError, EmptyDatasetError, StreamError
from headrace.errors.redaction import logger_of
from headrace.format import ShardInfo, ShardReader, number_abbrev_to_int
from headrace.order import SPLIT_UNIT, RowSelection, SelectedBits, SelectedRanges, SelectedSplit, each_selected_row
from headrace.selection.bitmap_file import BitmapFile
from headrace.selection.predicate import Conditions, Mistake, Predicate, Where, check_columns, refusal
from headrace.storage.transfer.download import GeneratorPool

if TYPE_CHECKING:
    from fractions import Fraction as Rational

logger = logger_of(__name__)

T = TypeVar('T')

_THREADS: Final = 8  # shards that are fetched and read at once
SECONDS_BETWEEN_LINES: Final = 10.0
_LONGEST_TEXT: Final = 160  # of a selection in a checkpoint


@dataclass(frozen=True, slots=True)
class Subset:
    """Ranges of a stream's samples in stored order."""

    ranges: tuple[tuple[int, int | None], ...]
    """First sample, and the one after the last or None; ascending, disjoint, joined where they touch."""

    @classmethod
    def read(cls, raw: object, mistakes: list[Mistake]) -> Subset | None:
        """The ranges that a list of ``[start, stop]`` describes; None if there are mistakes, which are noted."""
        before = len(mistakes)
        if not isinstance(raw, (list, tuple)) or not raw:
            mistakes.append(Mistake((), raw, 'must be a list of ranges [start, stop], such as [[0, 1000]]'))
            return None
        ranges: list[tuple[int, int | None]] = []
        for number, item in enumerate(cast('Sequence[object]', raw)):
            bounds = _read_range(item)
            if bounds is None:
                rule = 'must be a range [start, stop] of sample numbers with 0 <= start < stop; null is the end'
                mistakes.append(Mistake((number,), item, rule))
            elif ranges and (ranges[-1][1] is None or bounds[0] < ranges[-1][1]):
                rule = f'must begin after the range before, {list(ranges[-1])}: ranges ascend and do not overlap'
                mistakes.append(Mistake((number,), item, rule))
            elif ranges and bounds[0] == ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], bounds[1])
            else:
                ranges.append(bounds)
        return cls(tuple(ranges)) if len(mistakes) == before else None

    @property
    def plain(self) -> list[list[int | None]]:
        """The list that gives these ranges."""
        return [list(pair) for pair in self.ranges]

    def within(self, samples: int, title: str) -> npt.NDArray[np.int64]:
        """The ranges in a stream of this many samples, int64[n, 2]; StreamError: one lies beyond the end."""
        for start, stop in self.ranges:
            if start >= samples or (stop or 0) > samples:
                raise StreamError(
                    f'`subset` of stream {title} names samples {[start, stop]}, but the stream has {samples}. '
                    f'Write null for its end.'
                )
        pairs = [(start, samples if stop is None else stop) for start, stop in self.ranges]
        return np.array(pairs, np.int64)


def _read_range(raw: object) -> tuple[int, int | None] | None:
    if not isinstance(raw, (list, tuple)) or len(cast('Sequence[object]', raw)) != 2:
        return None
    edges: list[int | None] = []
    for edge in cast('Sequence[Any]', raw):
        with contextlib.suppress(ConfigError, OverflowError, ValueError):
            edges.append(None if edge is None else _count(edge))
    if len(edges) != 2:
        return None
    start, stop = edges
    if start is None or start < 0 or start >= (2**62 if stop is None else stop):
        return None
    return start, stop


def _count(value: Any) -> int:
    """A whole number, however it is written; -1 for anything else."""
    if isinstance(value, str):
        return number_abbrev_to_int(value)
    is_number = isinstance(value, (int, float, np.integer)) and not isinstance(value, bool)
    return int(value) if is_number and value == int(value) else -1


@dataclass(frozen=True, slots=True)
class Fraction:
    """A random part of each shard, from `low` to `high` of it."""

    low: str  # Where it begins, 0 to 1, as it was written: a decimal, or a fraction such as 1/3.
    high: str  # Where it ends, exclusive.

    @classmethod
    def read(cls, raw: object, mistakes: list[Mistake]) -> Fraction | None:
        """The part that ``[low, high]`` describes; None if that is a mistake, which is noted."""
        edges = [_rational(edge) for edge in cast('Sequence[Any]', raw)] if isinstance(raw, (list, tuple)) else []
        if len(edges) != 2 or None in edges or not 0 <= cast('Rational', edges[0]) < cast('Rational', edges[1]) <= 1:
            mistakes.append(Mistake((), raw, 'must be [low, high] with 0 <= low < high <= 1, such as [0, 0.95]'))
            return None
        return cls(str(edges[0]), str(edges[1]))

    @property
    def plain(self) -> list[str]:
        """The list that gives this part."""
        return [self.low, self.high]

    @property
    def parts(self) -> tuple[int, int]:
        """Low and high in units of `SPLIT_UNIT`, rounded: the same text, the same edge."""
        from fractions import Fraction as Rational

        low, high = (round(Rational(edge) * SPLIT_UNIT) for edge in (self.low, self.high))
        return low, high


def _rational(value: object) -> Rational | None:
    """A number as it is written, so that 0.1 is a tenth and no float's rounding matters."""
    from fractions import Fraction as Rational  # with its decimals it takes a while to import, and few select a part

    with contextlib.suppress(ValueError, ZeroDivisionError):
        if isinstance(value, (int, float, np.number, str, Rational)) and not isinstance(value, bool):
            number = value.item() if isinstance(value, np.number) else value
            return Rational(str(number))
    return None


def read_where(raw: object, mistakes: list[Mistake]) -> Predicate | None:
    """The predicate of a `Where`, of conditions or of their mapping; None if there are mistakes, which are noted."""
    if isinstance(raw, (Where, Conditions)):
        return raw
    if callable(raw):
        rule = "a function needs a name, under which its result is kept: write Where(function, name='...')"
        mistakes.append(Mistake((), raw, rule))
        return None
    return Conditions.read(raw, mistakes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The facts of a stream that its selection needs."""

    infos: Sequence[ShardInfo]
    sizes: npt.NDArray[np.int64]  # int64[shards]: stored samples of each.
    read: Callable[[int], AbstractContextManager[ShardReader]]
    """Fetches a shard and lends its reader; called by several threads."""
    lengths_of: Callable[[int, str], Iterable[Any] | None]
    """The values of a column of all rows of a shard, or their lengths, in runs: what is known without its data."""
    title: str
    folder: Path  # Where bitmaps are kept.
    identity: str  # The identity of the stored samples, their place, and their time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The stored samples that a stream offers. None of all three: every sample."""

    subset: Subset | None
    fraction: Fraction | None
    fraction_seed: int
    where: Predicate | None

    @classmethod
    def read(cls, *, subset: object, fraction: object, fraction_seed: object, where: object) -> Selection | None:
        """The selection of a stream's arguments; None if it is every sample."""
        values: dict[str, Any] = {}
        readers: dict[str, tuple[object, Callable[[object, list[Mistake]], Any], type]] = {
            'subset': (subset, Subset.read, Subset),
            'fraction': (fraction, Fraction.read, Fraction),
            'where': (where, read_where, Where),
        }
        for name, (raw, read, kind) in readers.items():
            mistakes: list[Mistake] = []
            values[name] = raw if raw is None or isinstance(raw, kind) else read(raw, mistakes)
            if mistakes:
                raise refusal(name, mistakes)
        seed = 0 if fraction_seed is None else fraction_seed
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise StreamError(f'fraction_seed must be an integer of at least 0, but is {fraction_seed!r}.')
        made = cls(**values, fraction_seed=int(seed))
        return made if made.text else None

    @property
    def text(self) -> str:
        """The identity of the selection; the same text, the same samples of the same data. Empty: every sample."""
        said: list[str] = []
        if self.subset is not None and self.subset.ranges != ((0, None),):
            said.append(f'subset {json.dumps(self.subset.plain)}')
        if self.fraction is not None and self.fraction.parts != (0, SPLIT_UNIT):
            said.append(f'fraction {self.fraction.low} to {self.fraction.high} of seed {self.fraction_seed}')
        if self.where is not None:
            said.append(f'where {self.where.text}')
        return ', '.join(said)

    def apply(self, shards: Shards) -> tuple[RowSelection, str]:
        """The selected rows of a stream's shards, and a text that identifies them; EmptyDatasetError: none are."""
        sizes = shards.sizes
        samples = int(sizes.sum())
        ranges = None if self.subset is None else SelectedRanges(sizes, self.subset.within(samples, shards.title))
        split = None
        if self.fraction is not None:
            low, high = self.fraction.parts
            within = ranges if self.where is None else None  # a bitmap is cut to the ranges itself
            split = SelectedSplit(sizes, low, high, seed=self.fraction_seed, within=within)
        said = shortened(self.text)
        if self.where is not None:
            selected, digest = self._evaluated(shards, ranges or SelectedRanges(sizes, np.array([[0, samples]])))
            if split is not None:
                selected, digest = self._intersected(shards, selected, split)
            said = f'{said} ({digest[:16]})'  # the samples that a function of that name selects
        else:
            selected = split or ranges
        assert selected is not None
        if not selected.counts.any():
            raise EmptyDatasetError(
                f'Of the {samples} samples of stream {shards.title} the selection keeps none: {shortened(self.text)}. '
                f'Widen it, or leave the stream out.'
            )
        return selected, said

    def _evaluated(self, shards: Shards, ranges: SelectedRanges) -> tuple[SelectedBits, str]:
        """The samples of the ranges for which `where` holds."""
        assert self.where is not None
        where = self.where
        check_columns(where, shards.infos, shards.title)
        subset = '' if self.subset is None else json.dumps(self.subset.plain)
        file = BitmapFile(shards.folder, json.dumps([shards.identity, subset, where.text]), shards.sizes)
        return file.load(lambda out: _evaluate(where, shards, ranges, out))

    def _intersected(self, shards: Shards, selected: SelectedBits, split: SelectedSplit) -> tuple[SelectedBits, str]:
        def fill(out: npt.NDArray[np.uint8]) -> None:
            starts = np.cumsum(shards.sizes) - shards.sizes
            for numbers, rows in each_selected_row(split, (selected.counts > 0).nonzero()[0]):
                stored = starts[numbers] + rows
                stored = stored[selected.holds(stored)]
                np.bitwise_or.at(out, stored >> 3, (1 << (stored & 7)).astype(np.uint8))

        return BitmapFile(shards.folder, json.dumps([shards.identity, self.text]), shards.sizes).load(fill)


def shortened(text: str) -> str:
    """A text that fits into a message or a checkpoint, and still differs from every other."""
    if len(text) <= _LONGEST_TEXT:
        return text
    return f'{text[:_LONGEST_TEXT]}... {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}'


def _evaluate(where: Predicate, shards: Shards, ranges: SelectedRanges, out: npt.NDArray[np.uint8]) -> None:
    """Set the bits of the samples of the ranges for which a predicate holds, reading every shard that they touch."""
    wanted = ranges.counts.nonzero()[0].tolist()
    starts = (np.cumsum(shards.sizes) - shards.sizes).tolist()
    logger.info('Evaluating where %s on %d shards of stream %s.', where.text, len(wanted), shards.title)
    one_at_a_time = Lock()  # functions need not be safe to call from several threads

    def read(shard: int) -> npt.NDArray[np.bool_]:
        # A lease is held by each thread while it waits for its turn, which waits for no other lease.
        with shards.read(shard) as reader, one_at_a_time:
            rows = ranges.rows(np.full(ranges.counts[shard], shard), np.arange(ranges.counts[shard]))
            mask = np.zeros(int(shards.sizes[shard]), np.bool_)
            mask[rows] = where.evaluate(shards.infos[shard], reader, rows)
            return mask

    selected, began = 0, time.monotonic()
    said = began
    for number, (shard, mask) in enumerate(in_threads(read, wanted), 1):
        _put(out, starts[shard], mask)
        selected += int(mask.sum())
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            logger.info('Evaluated where on %d of %d shards of stream %s.', number, len(wanted), shards.title)
    seconds = time.monotonic() - began
    logger.info('where keeps %d samples of stream %s; that took %.1f s.', selected, shards.title, seconds)


def _put(out: npt.NDArray[np.uint8], begin: int, mask: npt.NDArray[np.bool_]) -> None:
    """Set the bits of a mask from bit `begin` on."""
    packed = np.packbits(np.concatenate([np.zeros(begin & 7, np.bool_), mask]), bitorder='little')
    out[begin >> 3 :][: len(packed)] |= packed


def in_threads(read: Callable[[int], T], shards: Sequence[int], threads: int = _THREADS) -> Generator[tuple[int, T]]:
    """The results for shards in their order, read a few ahead. The threads end here: a DataLoader may fork next."""
    running: deque[tuple[int, Future[T]]] = deque()
    with GeneratorPool(min(threads, max(1, len(shards)))) as pool:
        for shard in shards:
            running.append((shard, pool.submit(read, shard)))
            if len(running) > 2 * threads:
                first, future = running.popleft()
                yield first, future.result()
        while running:
            first, future = running.popleft()
            yield first, future.result()
