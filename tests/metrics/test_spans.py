"""OpenTelemetry spans of batches."""

from __future__ import annotations

import pytest

from headrace import StreamingDataLoader
from headrace.metrics import BatchSpans


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
