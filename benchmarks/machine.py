"""The machine and the versions of a measurement, in words."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path


def machine(*packages: str) -> str:
    """A description of this machine, its load, and the versions of packages."""
    cpus = Path('/proc/cpuinfo').read_text() if Path('/proc/cpuinfo').exists() else ''
    model = next((line.partition(': ')[2] for line in cpus.splitlines() if line.startswith('model name')), '')
    versions = ', '.join(f'{name} {importlib.metadata.version(name)}' for name in packages)
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') >> 30
    return (
        f'{os.cpu_count()} cores of {model or platform.machine()}, {memory} GiB, Python {platform.python_version()}, '
        f'load {os.getloadavg()[0]:.1f} at the start; {versions}'
    )
