"""Figures of a meter for programs beside the training, such as a Prometheus endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headrace.redaction import warn

__all__ = ['export_figures']


def export_figures(exporters: Iterable[Callable[[Mapping[str, float]], object]], figures: Mapping[str, float]) -> None:
    """Give figures to each exporter; what one raises is a warning, and ends no training."""
    for export in exporters:
        try:
            export(figures)
        except Exception as error:  # noqa: PERF203 - an exporter is any function
            warn(f'The exporter {type(export).__name__} raised {type(error).__name__}: {error} The training continues.')
