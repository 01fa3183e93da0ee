"""Samples or tokens of each stream, and the number that the mixture promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from headrace.dataset.statistics import StreamCount

__all__ = ['add_counts', 'drift_of', 'from_state', 'labelled', 'mix_figures', 'scaled_to', 'shares_of', 'to_state']

T = TypeVar('T')


def labelled(label: str, of_streams: Mapping[str, T]) -> dict[str, T]:
    """Values by 'loader/stream' in place of 'stream'; the same names if the loader has no label, ''."""
    return {f'{label}/{stream}' if label else stream: value for stream, value in of_streams.items()}


def to_state(counts: Mapping[str, StreamCount]) -> dict[str, list[float]]:
    """The counts as a checkpoint holds them: actual and promised number of each stream."""
    return {name: [count.samples, count.promised] for name, count in counts.items()}


def from_state(plain: Mapping[str, Sequence[float]]) -> dict[str, StreamCount]:
    """The counts of a checkpoint."""
    return {name: StreamCount(int(n), float(m)) for name, (n, m) in plain.items()}


def add_counts(counts: dict[str, StreamCount], label: str, more: Mapping[str, StreamCount]) -> None:
    """Add the counts of a loader's streams; see `labelled`."""
    for name, count in labelled(label, more).items():
        had = counts.get(name, StreamCount(0, 0.0))
        counts[name] = StreamCount(had.samples + count.samples, had.promised + count.promised)


def scaled_to(counts: Mapping[str, StreamCount], samples: Mapping[str, int]) -> dict[str, StreamCount]:
    """Counts with other samples; as many are promised in all."""
    factor = sum(samples.values()) / max(sum(count.samples for count in counts.values()), 1)
    return {name: StreamCount(samples[name], count.promised * factor) for name, count in counts.items()}


def mix_figures(counts: Mapping[str, StreamCount], unit: str) -> dict[str, float]:
    """Figures for a logger, if there are several streams.

    Args:
        counts: samples or tokens of each stream.
        unit: name of what is counted, such as 'samples'.
    """
    if len(counts) < 2:
        return {}
    figures: dict[str, float] = {}
    shares = shares_of(counts)
    for name, count in counts.items():
        share, promised = shares[name]
        figures[f'mix/{name}/{unit}'] = count.samples
        figures[f'mix/{name}/share'], figures[f'mix/{name}/promised'] = share, promised
    return figures


def shares_of(counts: Mapping[str, StreamCount]) -> dict[str, tuple[float, float]]:
    """Each stream's share of all samples, and its promised share."""
    samples = max(sum(count.samples for count in counts.values()), 1)
    promised = max(sum(count.promised for count in counts.values()), 1e-9)
    return {name: (count.samples / samples, count.promised / promised) for name, count in counts.items()}


def drift_of(counts: Mapping[str, StreamCount]) -> float | None:
    """The largest difference between a stream's share and its promised share, from 0 to 1; None below two streams."""
    if len(counts) < 2:
        return None
    return max(abs(share - promised) for share, promised in shares_of(counts).values())
