"""An endpoint that Prometheus scrapes: the figures of the last log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ['PrometheusEndpoint']

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
        port: of the endpoint; 0: any free one, see `url`.
        address: of the network interface; '0.0.0.0' answers other machines.
        labels: labels of every figure, such as ``{'run': 'a', 'rank': '0'}``.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
        ConfigError: the port is in use, or the address is not this machine's.
    """

    def __init__(
        self, port: int = 9400, *, address: str = '127.0.0.1', labels: Mapping[str, str] | None = None
    ) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise MissingDependencyError(
                'PrometheusEndpoint needs prometheus_client, which is not installed: pip install '
                '"headrace[prometheus]".'
            ) from error
        self._figures: Mapping[str, float] = {}
        self._labels = dict(labels or {})
        registry = prometheus_client.CollectorRegistry()
        registry.register(self)  # pyright: ignore[reportArgumentType] - it has the one method of a collector
        try:
            self._server, self._thread = prometheus_client.start_http_server(port, address, registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(f'`port` must be a free port of {address}, or 0 for any, got {port}: {error}.') from error
        self.url = f'http://{address}:{self._server.server_port}/metrics'
        """The endpoint's address."""

    def __call__(self, figures: Mapping[str, float]) -> None:
        """Serve these figures from now on."""
        self._figures = dict(figures)

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
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
