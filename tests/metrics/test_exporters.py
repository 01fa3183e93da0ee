"""Figures that Prometheus scrapes, and OpenTelemetry's spans of batches."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.metrics.exporters import export_figures


def test_an_exporter_that_fails_ends_no_training() -> None:
    def fails(figures: Mapping[str, float]) -> None:
        raise OSError('the port is in use')

    got: list[Mapping[str, float]] = []
    with pytest.warns(UserWarning, match='OSError: the port is in use'):
        export_figures([fails, got.append], {'data/samples': 1})
    assert got == [{'data/samples': 1}]
