"""OpenTelemetry spans of batches: the whole step, the wait for its data, and the fetches that came with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader

__all__ = ['BatchSpans']


class BatchSpans:
    """Makes spans of each trained batch, for the tracer of the program.

    Give it to `DataStatistics(spans=...)`, or call `begin` once and the object after each batch. A span
    ``headrace.batch`` covers the time since the batch before. Its child ``headrace.wait`` is the wait for the batch.
    Its child ``headrace.fetch`` says in attributes what readers fetched since then: bytes, requests, shards, and their
    seconds of waiting and unpacking. Fetches run beside the training, mostly in workers, so this span has the batch's
    time.

    Args:
        tracer: an OpenTelemetry tracer; None: that of the program's provider, by the name headrace.
        clock: nanoseconds since 1970.

    Raises:
        MissingDependencyError: opentelemetry-api is not installed.
    """

    def __init__(self, tracer: Any = None, *, clock: Callable[[], int] = time.time_ns) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise MissingDependencyError(
                'BatchSpans needs opentelemetry-api, which is not installed: pip install "headrace[opentelemetry]".'
            ) from error
        self._trace = trace
        self._tracer = trace.get_tracer('headrace') if tracer is None else tracer
        self._clock = clock
        self._last: tuple[int, float, dict[str, float]] | None = None
        self._number = 0

    def begin(self, loaders: Iterable[StreamingDataLoader]) -> None:
        """Have the next batch's span begin now: the run begins, or continues after an evaluation."""
        self._last = self._now(tuple(loaders))

    def __call__(self, loaders: Iterable[StreamingDataLoader]) -> None:
        """A batch of these loaders was trained."""
        before, self._last = self._last, self._now(tuple(loaders))
        self._number += 1
        if before is None:
            return
        now, waited, fetched = self._last
        begun, waited_before, fetched_before = before
        batch = self._tracer.start_span(
            'headrace.batch', start_time=begun, attributes={'headrace.batch.number': self._number}
        )
        inside = self._trace.set_span_in_context(batch)
        wait = self._tracer.start_span('headrace.wait', context=inside, start_time=begun)
        wait.end(end_time=min(now, begun + round((waited - waited_before) * 1e9)))
        new = {name: value - fetched_before[name] for name, value in fetched.items()}
        if new['requests'] or new['shards']:
            attributes = {f'headrace.fetch.{name}': value for name, value in new.items()}
            self._tracer.start_span('headrace.fetch', context=inside, start_time=begun, attributes=attributes).end(
                end_time=now
            )
        batch.end(end_time=now)

    def _now(self, loaders: tuple[StreamingDataLoader, ...]) -> tuple[int, float, dict[str, float]]:
        """The time, the seconds waited so far, and what was fetched so far."""
        return self._clock(), sum(loader.seconds_waiting for loader in loaders), _fetched(loaders)


def _fetched(loaders: Iterable[StreamingDataLoader]) -> dict[str, float]:
    """The counts of the readers' fetches so far."""
    all_stats = [loader.stats() for loader in loaders]
    streams = [stream for stats in all_stats for stream in stats.streams.values()]
    return {
        'bytes': sum(stats.bytes_downloaded for stats in all_stats),
        'requests': sum(stats.requests for stats in all_stats),
        'shards': sum(stats.shards_fetched for stats in all_stats),
        'seconds_waited': sum(stream.seconds_waited for stream in streams),
        'seconds_unpacking': sum(stream.seconds_unpacking for stream in streams),
    }
