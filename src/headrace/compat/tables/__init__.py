"""The names of MosaicML Streaming 0.13, module by module, and their counterparts. The documentation is made of them."""

from __future__ import annotations

from headrace.compat.names import Absent, Tables
from headrace.compat.tables import datasets, formats, orders, package, stores

__all__ = ['ABSENT_MODULES', 'TABLES']

TABLES: Tables = {**package.TABLES, **formats.TABLES, **stores.TABLES, **orders.TABLES, **datasets.TABLES}
"""By module, the entries of its names."""

ABSENT_MODULES: dict[str, Absent] = {**datasets.ABSENT_MODULES}
"""Modules that headrace does not have."""
