"""Versions of the packages that headrace works with, compared with those that its releases are tested with."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headrace.doctor.finding import Finding
from headrace.storage.resolve import backends

__all__ = ['check_versions']

_EXTRAS = ('', 'lightning', 'composer', 'arrow', 'vision')
"""The extras whose versions are looked at, beside those of the stores; '' for what headrace always needs."""
_ALWAYS = frozenset({'torch', 'numpy'})
_ONLY_WITH = {'composer': 'mosaicml'}
"""Requirements of these extras hold only where this package is installed: Composer bounds torch."""


def check_versions() -> Iterable[Finding]:
    """A finding for each installed package: in the range that headrace declares, or not."""
    yield Finding('ok', 'python', f'{platform.python_version()} on {platform.system()} {platform.machine()}')
    bounds: dict[str, list[Requirement]] = {}
    extras = {*_EXTRAS, *(backend.module for backend in backends() if backend.example)}
    for text in metadata.requires('headrace') or ():
        requirement = Requirement(text)
        for extra in extras:
            is_asked = requirement.marker is None if not extra else requirement.marker is not None
            if not is_asked or (requirement.marker is not None and not requirement.marker.evaluate({'extra': extra})):
                continue
            if extra not in _ONLY_WITH or _version(_ONLY_WITH[extra]) is not None:
                bounds.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    for name, requirements in bounds.items():
        found = _version(name)
        if found is None:
            if name in _ALWAYS:
                yield Finding('problem', name, 'is not installed', f'pip install {name}')
            continue
        broken = [each for each in requirements if not each.specifier.contains(found, prereleases=True)]
        if broken:
            wanted = ','.join(dict.fromkeys(str(each.specifier) for each in broken))
            yield Finding(
                'problem', name, f'{found} is installed, headrace wants {wanted}', f"pip install '{name}{wanted}'"
            )
        else:
            yield Finding('ok', name, found)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
