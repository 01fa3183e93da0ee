"""Figures for programs beside the training: an endpoint that Prometheus scrapes, and OpenTelemetry spans of batches."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, import_optional
from headrace.errors.redaction import warn

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

    from headrace.dataset import StreamingDataLoader


def export_figures(exporters: Iterable[Callable[[Mapping[str, float]], object]], figures: Mapping[str, float]) -> None:
    """Give figures to each exporter; what one raises is a warning, and ends no training."""
    for export in exporters:
        try:
            export(figures)
        except Exception as error:  # noqa: PERF203 - an exporter is any function
            warn(f'The exporter {type(export).__name__} raised {type(error).__name__}: {error} The training continues.')


_LABEL = re.compile('[a-zA-Z][a-zA-Z0-9_]*')
_COUNTERS = (
    'bad_samples',
    'bytes_downloaded',
    'bytes_from_peers',
    'bytes_unpacked',
    'cache_hits',
    'evictions',
    'requests',
    'retries',
    'samples',
    'seconds_waited',
    'shards_waited_for',
    'stalls',
    'tokens',
)


class PrometheusEndpoint:
    """Serves figures of `DataMeter.read` at ``http://ADDRESS:PORT/metrics``, from a thread of this process.

    Give it to `DataStatistics(exporters=[...])`, or call it with the figures. Between two calls the same ones are
    served. ``data/wait_share`` becomes ``headrace_data_wait_share``, and ``mix/code/share`` becomes
    ``headrace_mix_share{stream="code"}``.

    Args:
        port: of the endpoint, which the first call opens, so that only the process that logs does; 0: any free one.
        address: of the network interface; '0.0.0.0' answers other machines.
        labels: labels of every figure, such as ``{'run': 'a', 'rank': '0'}``.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
        ConfigError: Prometheus has no such name of a label; or, at the first call, the port is in use, or the address
            is not this machine's.
    """

    def __init__(
        self, port: int = 9400, *, address: str = '127.0.0.1', labels: Mapping[str, str] | None = None
    ) -> None:
        import_optional('prometheus_client', 'PrometheusEndpoint needs prometheus_client', 'prometheus')
        for name in labels or {}:
            if not _LABEL.fullmatch(name) or name == 'stream':
                raise ConfigError(
                    f"`labels` must have names of letters, digits and '_' that begin with a letter, and not 'stream', "
                    f'which figures have already; got {name!r}. Rename it.'
                )
        self._port, self._address = port, address
        self._figures: Mapping[str, float] = {}
        self._labels = {name: str(value) for name, value in (labels or {}).items()}  # a rank may be an int
        self._served: tuple[WSGIServer, Thread] | None = None
        self.url: str | None = None
        """The endpoint's address; None before the first call."""

    def __call__(self, figures: Mapping[str, float]) -> None:
        """Serve these figures from now on."""
        self._figures = dict(figures)
        if self._served is None:
            self._serve()

    def _serve(self) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(self)  # pyright: ignore[reportArgumentType] - it has the one method of a collector
        try:
            self._served = start_http_server(self._port, self._address, registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f'`port` must be a free port of {self._address}, or 0 for any, got {self._port}: {error}.'
            ) from error
        self.url = f'http://{self._address}:{self._served[0].server_port}/metrics'

    def collect(self) -> Iterable[Metric]:
        """The figures as Prometheus has them; the registry calls it at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, value in self._figures.items():
            group, _, rest = name.partition('/')
            stream, _, what = rest.rpartition('/')
            of_stream = {'stream': stream} if stream else {}
            title = re.sub(r'\W', '_', f'headrace_{"stream" if stream and group == "data" else group}_{what}')
            if title not in families:
                family = CounterMetricFamily if what in _COUNTERS else GaugeMetricFamily
                text = f'{group}/{"<stream>/" if stream else ""}{what} of headrace.metrics.DataMeter.read'
                families[title] = family(title, text, labels=[*self._labels, *of_stream])
            families[title].add_metric([*self._labels.values(), *of_stream.values()], value)
        return families.values()

    def close(self) -> None:
        """Stop serving."""
        if self._served is not None:
            server, thread = self._served
            server.shutdown()
            server.server_close()
            thread.join()
            self._served = self.url = None


class BatchSpans:
    """Makes spans of each trained batch, for the tracer of the program.

    Give it to `DataStatistics(spans=...)`, or call `begin` once and the object after each batch. A span
    ``headrace.batch`` covers the time since the batch before. Its child ``headrace.wait`` is the wait for the batch.
    Its child ``headrace.fetch`` says in attributes what readers fetched since then: bytes, requests, shards, and their
    seconds of waiting and unpacking. Fetches run beside the training, mostly in workers, so this span has the batch's
    time.

    Args:
        tracer: an OpenTelemetry tracer; by default that of the program's provider, by the name headrace.
        clock: nanoseconds since 1970.

    Raises:
        MissingDependencyError: opentelemetry-api is not installed.
    """

    def __init__(self, tracer: Any = None, *, clock: Callable[[], int] = time.time_ns) -> None:
        trace = import_optional('opentelemetry.trace', 'BatchSpans needs opentelemetry-api', 'opentelemetry')
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
    all_stats = [loader.stats() for loader in loaders]
    streams = [stream for stats in all_stats for stream in stats.streams.values()]
    return {
        'bytes': sum(stats.bytes_downloaded for stats in all_stats),
        'bytes_from_peers': sum(stats.bytes_from_peers for stats in all_stats),
        'requests': sum(stats.requests for stats in all_stats),
        'shards': sum(stats.shards_fetched for stats in all_stats),
        'seconds_waited': sum(stream.seconds_waited for stream in streams),
        'seconds_unpacking': sum(stream.seconds_unpacking for stream in streams),
    }
