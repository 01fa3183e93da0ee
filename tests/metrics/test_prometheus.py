"""An endpoint that Prometheus scrapes."""

from __future__ import annotations

import urllib.request

import pytest

from headrace import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.metrics import DataMeter, PrometheusEndpoint


def scraped(endpoint: PrometheusEndpoint) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    from prometheus_client.parser import text_string_to_metric_families

    assert endpoint.url is not None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    text = opener.open(endpoint.url).read().decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_scrapes_the_last_figures(loader: StreamingDataLoader) -> None:
    pytest.importorskip('prometheus_client')
    endpoint = PrometheusEndpoint(0, labels={'run': 'a', 'rank': 0})  # type: ignore[dict-item]
    try:
        assert endpoint.url is None
        endpoint({})
        assert scraped(endpoint) == {}
        meter = DataMeter()
        meter.follow({'': loader})
        meter.begin()
        for _ in loader:
            meter.batch_done()
        endpoint(figures := meter.read(detailed=True))
        found = scraped(endpoint)
        own = ('run', 'a'), ('rank', '0')
        assert found['headrace_data_wait_share', frozenset(own)] == figures['data/wait_share']
        assert found['headrace_data_samples_total', frozenset(own)] == 100
        odd = frozenset([*own, ('stream', 'odd "name"\n')])
        assert found['headrace_mix_share', odd] == 0.5
        assert found['headrace_stream_bytes_downloaded_total', odd] == figures['data/odd "name"\n/bytes_downloaded'] > 0
        assert len(found) == len(figures)  # none is lost
        with pytest.raises(ConfigError, match='must be a free port of 127.0.0.1'):
            PrometheusEndpoint(int(endpoint.url.split(':')[-1].split('/')[0]))({})
    finally:
        endpoint.close()


@pytest.mark.parametrize('name', ['run-id', '', '7', '__run', 'stream'])
def test_labels_that_prometheus_refuses_are_refused_at_once(name: str) -> None:
    pytest.importorskip('prometheus_client')
    with pytest.raises(ConfigError, match='`labels` must have names'):
        PrometheusEndpoint(labels={name: 'a'})
