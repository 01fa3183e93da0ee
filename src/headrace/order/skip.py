"""Ranges of a run's global sequence that are skipped, and the other positions of an epoch.

A run's sequence is that of epoch 0, then that of epoch 1, and so on. Positions count all its slots, skipped ones
included, so a position means the same with any ranges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import numpy as np

from headrace.errors import ConfigError
from headrace.order.arrays import IntArray
from headrace.order.mixture.mixture import Mixture
from headrace.order.topology import Remainder

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges [begin, end) of positions of an epoch, or of the run: sorted, not empty, with a gap between any two."""

SkipRange: TypeAlias = Sequence[int | str]
"""A range as configured: begin, inclusive, and end, exclusive. A number or ``'4096sp'``: samples; ``'1200ba'``: global
batches; ``'17doc'``: documents of packed data, by sample id."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A place in a run's sequence."""

    count: int
    unit: Literal['sp', 'ba', 'doc']
    """``sp``: samples from the run's beginning. ``ba``: global batches from there, as a trainer counts its steps if it
    skips nothing and keeps one global batch size. A smaller last batch of an epoch counts; a dropped one does not.
    ``doc``: ids of documents; such a range is not part of the run's sequence."""

    def __str__(self) -> str:
        return f'{self.count}{self.unit}'

    def sample(self, *, epoch_size: int, global_batch_size: int, batches: int) -> int:
        """The run's sample at this bound. `batches`: of an epoch without skipped samples."""
        if self.unit == 'sp':
            return self.count
        epoch, batch = divmod(self.count, max(batches, 1))
        return epoch * epoch_size + min(batch * global_batch_size, epoch_size)


Skip: TypeAlias = tuple[tuple[Bound, Bound], ...]  # Ranges of a run as they were written: begin and end of each.


def parse_skip(ranges: Iterable[SkipRange]) -> Skip:
    """Read ranges as users write them: ``[[4096, 8192], ['1200ba', '1250ba']]``.

    Raises:
        ConfigError: a range is not a pair, a bound does not count samples or batches, or a range is empty or reversed.
    """
    if isinstance(ranges, (str, bytes)) or not isinstance(cast('object', ranges), Iterable):
        raise ConfigError(f'skip must be a list of ranges [begin, end], got {ranges!r}.')
    parsed: list[tuple[Bound, Bound]] = []
    for given in ranges:
        bounds = read_range(given)
        if isinstance(bounds, str):
            raise ConfigError(f'a range of skip {bounds}, got {given!r}.')
        parsed.append(bounds)
    return tuple(parsed)


def read_range(given: object) -> tuple[Bound, Bound] | str:
    """One range as users write it; or, as text, the rule that it breaks."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or len(cast('SkipRange', given)) != 2:
        return "must be a pair [begin, end], such as [4096, 8192] or ['1200ba', '1250ba']"
    begin, end = (_bound(part) for part in cast('SkipRange', given))
    if begin is None or end is None:
        return (
            "must have bounds that are numbers of samples of at least 0 and below 10^18, or text such as '4096sp' "
            "(samples), '1200ba' (global batches) or '17doc' (ids of packed documents)"
        )
    if (begin.unit == 'doc') != (end.unit == 'doc'):
        return "must have two bounds of documents or none, such as ['17doc', '18doc']"
    return _EMPTY if begin.unit == end.unit and begin.count >= end.count else (begin, end)


_EMPTY = 'must end after it begins; its end is exclusive'


_END = 10**18  # of the samples of a run: 64 bits hold a position and a batch beyond it


def _bound(given: int | str) -> Bound | None:
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < _END:
        return Bound(given, 'sp')
    match = re.fullmatch(r'(\d{1,18})(sp|ba|doc)', given.strip(), re.ASCII) if isinstance(given, str) else None
    return None if match is None else Bound(int(match[1]), cast("Literal['sp', 'ba', 'doc']", match[2]))


def split_documents(skip: Skip) -> tuple[Skip, Ranges]:
    """The ranges of the run's sequence, and those of documents' ids."""
    documents = merged((begin.count, end.count) for begin, end in skip if begin.unit == 'doc')
    return tuple(bounds for bounds in skip if bounds[0].unit != 'doc'), documents


def skipped_in_run(skip: Skip, *, epoch_size: int, global_batch_size: int, batches: int) -> Ranges:
    """The skipped positions of the run. `batches`: of an epoch without skipped samples."""
    cut: list[tuple[int, int]] = []
    for bounds in skip:
        begin, end = (
            bound.sample(epoch_size=epoch_size, global_batch_size=global_batch_size, batches=batches)
            for bound in bounds
        )
        if begin >= end:
            got = f'[{bounds[0]}, {bounds[1]}], which is samples [{begin}, {end}]'
            raise ConfigError(f'a range of skip {_EMPTY}, got {got} in global batches of {global_batch_size}.')
        cut.append((begin, end))
    return merged(cut)


def skipped_in_epoch(ranges: Ranges, begin: int, epoch_size: int) -> Ranges:
    """The skipped positions of an epoch, which begins at a position of the run; ``ranges`` are those of the run."""
    return merged((max(a - begin, 0), min(b - begin, epoch_size)) for a, b in ranges)


def in_whole_batches(ranges: Ranges, first: int, global_batch_size: int, epoch_size: int) -> Ranges:
    """Ranges of an epoch, widened to whole batches from `first` on: the rest of one would be of two streams."""

    def begin_of(position: int) -> int:
        return min(max(first + (position - first) // global_batch_size * global_batch_size, 0), epoch_size)

    return merged((begin_of(begin), begin_of(end + global_batch_size - 1)) for begin, end in ranges)


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """The positions that are in ``ranges``, but not in ``others``."""
    left: list[tuple[int, int]] = []
    for begin, end in ranges:
        for a, b in others:
            left.append((begin, min(a, end)))
            begin = max(begin, b)  # noqa: PLW2901
        left.append((begin, end))
    return merged(left)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same positions in ranges that are sorted and neither overlap nor touch; without empty ones."""
    out: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if begin >= end:
            continue
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((begin, end))
    return tuple(out)


def skipped_ranges(
    skip: Skip, mixture: Mixture, global_batch_size: int, remainder: Remainder, batches: int | None = None
) -> Ranges:
    """Return the skipped positions of the run; arguments as those of `headrace.order.make_plan`.

    ``batches``: batches of an epoch without skipped samples; by default, as many as its samples make. ConfigError: a
    range is empty or reversed; or it counts batches, and epochs before had another size.
    """
    size, takeover = mixture.epoch_size, mixture.takeover
    if takeover.begin != takeover.epoch * size and any(bound.unit == 'ba' for bounds in skip for bound in bounds):
        ranges = ', '.join(f'[{begin}, {end}]' for begin, end in skip)
        raise ConfigError(
            f'ranges of skip must count samples after the epochs have changed their size, got {ranges}: epoch '
            f'{takeover.epoch} begins at sample {takeover.begin} of the run, and has {size} samples.'
        )
    if batches is None:
        whole, rest = divmod(size, global_batch_size)
        batches = whole + (rest > 0 and remainder != 'drop')
    return skipped_in_run(skip, epoch_size=size, global_batch_size=global_batch_size, batches=batches)


def documents_skip(ids: Iterable[tuple[int, int]]) -> list[list[int | str]]:
    """Ranges as users write them, of documents with ids in these ranges."""
    return [[f'{begin}doc', f'{end}doc'] for begin, end in merged(ids)]


def with_more(skip: Skip, ranges: Iterable[tuple[int, int]]) -> list[list[int | str]]:
    """Ranges as users write them, those of ``skip`` and more of samples; ranges of samples are merged."""
    counted: list[tuple[int, int]] = []
    others: list[list[int | str]] = []
    for begin, end in skip:
        if begin.unit == end.unit == 'sp':
            counted.append((begin.count, end.count))
        else:  # which samples these are depends on the batch size
            others.append([bound.count if bound.unit == 'sp' else str(bound) for bound in (begin, end)])
    return [*others, *([begin, end] for begin, end in merged([*counted, *ranges]))]


class UnskippedPositions:
    """The positions of an epoch that are not skipped, numbered from 0."""

    __slots__ = ('_begins', '_ends', '_firsts', 'size')

    def __init__(self, length: int, skip: Ranges) -> None:
        """Take the epoch's size, and what `merged` gives, within it."""
        edges = np.array([0, *(edge for gap in skip for edge in gap), length], np.int64)
        # Runs of unskipped positions, whose numbers follow each other.
        begins, ends = edges[::2], edges[1::2]
        there = begins < ends
        self._begins, self._ends = begins[there], ends[there]
        lengths = self._ends - self._begins
        self._firsts = np.cumsum(lengths) - lengths
        self.size = int(lengths.sum())

    def at(self, numbers: IntArray) -> IntArray:
        """Positions int64[n] of unskipped ones int64[n], each in [0, size)."""
        runs = np.searchsorted(self._firsts, numbers, side='right') - 1
        return self._begins[runs] + (numbers - self._firsts[runs])

    def before(self, position: int) -> int:
        run = int(np.searchsorted(self._ends, position, side='right'))
        if run == len(self._ends):
            return self.size
        return int(self._firsts[run]) + max(position - int(self._begins[run]), 0)

    def befores(self, positions: IntArray) -> IntArray:
        """As `before`, int64[n]."""
        runs = np.searchsorted(self._ends, positions, side='right')
        begins, firsts = np.append(self._begins, positions.max(initial=0)), np.append(self._firsts, self.size)
        return firsts[runs] + np.maximum(positions - begins[runs], 0)

    def spans(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Ranges of the positions of unskipped ones from begin on and below end, in [0, size]."""
        runs = zip(self._begins.tolist(), self._firsts.tolist(), (self._ends - self._begins).tolist(), strict=True)
        cut = [(at, max(begin - first, 0), min(end - first, length)) for at, first, length in runs]
        return [(at + low, at + high) for at, low, high in cut if low < high]

    def position(self, number: int) -> int:
        """The position of an unskipped one, in [0, size)."""
        run = int(np.searchsorted(self._firsts, number, side='right')) - 1
        return int(self._begins[run]) + number - int(self._firsts[run])
