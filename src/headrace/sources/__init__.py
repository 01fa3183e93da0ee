"""Datasets of other formats, read without conversion."""

from headrace.sources.protocol import Part, Source, SourceFormat

__all__ = ['Part', 'Source', 'SourceFormat']
