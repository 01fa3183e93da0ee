"""Figures for programs beside the training: Prometheus and OpenTelemetry."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

import pytest

from headrace import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.metrics import BatchSpans, DataMeter, PrometheusEndpoint
from headrace.metrics.exporters import export_figures


def test_an_exporter_that_fails_ends_no_training() -> None:
    def fails(figures: Mapping[str, float]) -> None:
        raise OSError('the port is in use')

    got: list[Mapping[str, float]] = []
    with pytest.warns(UserWarning, match='OSError: the port is in use'):
        export_figures([fails, got.append], {'data/samples': 1})
    assert got == [{'data/samples': 1}]


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


def test_spans_of_batches_have_their_waits_and_fetches(loader: StreamingDataLoader) -> None:
    sdk = pytest.importorskip('opentelemetry.sdk.trace')
    export = pytest.importorskip('opentelemetry.sdk.trace.export')
    memory = pytest.importorskip('opentelemetry.sdk.trace.export.in_memory_span_exporter').InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    now = 1_000_000_000_000
    spans = BatchSpans(provider.get_tracer('test'), clock=lambda: now)
    waits = [0.0]
    spans.begin([loader])
    for _ in loader:
        waits.append(loader.seconds_waiting)
        now += 60_000_000_000
        spans([loader])
    made = memory.get_finished_spans()
    batches = [span for span in made if span.name == 'headrace.batch']
    assert len(batches) == len(waits) - 1 == 10
    assert [batch.start_time for batch in batches[1:]] == [batch.end_time for batch in batches[:-1]]
    children = {span.name: span for span in made if span.parent and span.parent.span_id == batches[0].context.span_id}
    wait = children['headrace.wait']
    assert wait.start_time == batches[0].start_time
    assert (wait.end_time - wait.start_time) / 1e9 == pytest.approx(waits[1] - waits[0], abs=1e-6)
    fetched = [span.attributes for span in made if span.name == 'headrace.fetch']
    assert 0 < sum(each['headrace.fetch.bytes'] for each in fetched) <= loader.stats().bytes_downloaded
    now += 5_000_000_000  # an evaluation
    spans.begin([loader])
    spans([loader])
    assert memory.get_finished_spans()[-1].start_time == now


def test_spans_without_a_provider_do_nothing(loader: StreamingDataLoader) -> None:
    pytest.importorskip('opentelemetry')
    spans = BatchSpans()
    for _ in loader:
        spans([loader])
