"""An endpoint that Prometheus scrapes: the figures of the last log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

__all__ = ['PrometheusEndpoint']

_LABEL = re.compile('[a-zA-Z][a-zA-Z0-9_]*')
_COUNTERS = (
    'bad_samples',
    'bytes_downloaded',
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
        try:
            import prometheus_client  # noqa: F401 # pyright: ignore[reportUnusedImport] — used at the first call
        except ImportError as error:
            raise MissingDependencyError(
                'PrometheusEndpoint needs prometheus_client, which is not installed: pip install '
                '"headrace[prometheus]".'
            ) from error
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

        found: dict[str, Any] = {}
        for name, value in self._figures.items():
            group, _, rest = name.partition('/')
            stream, _, what = rest.rpartition('/')
            of_stream = {'stream': stream} if stream else {}
            title = re.sub(r'\W', '_', f'headrace_{"stream" if stream and group == "data" else group}_{what}')
            if title not in found:
                family = CounterMetricFamily if what in _COUNTERS else GaugeMetricFamily
                text = f'{group}/{"<stream>/" if stream else ""}{what} of headrace.metrics.DataMeter.read'
                found[title] = family(title, text, labels=[*self._labels, *of_stream])
            found[title].add_metric([*self._labels.values(), *of_stream.values()], value)
        return found.values()

    def close(self) -> None:
        """Stop serving."""
        if self._served is not None:
            server, thread = self._served
            server.shutdown()
            server.server_close()
            thread.join()
            self._served = self.url = None
