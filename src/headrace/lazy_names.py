"""Names of a package that are imported at first use: a training run needs few of them, and each import delays it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package; `modules`: by name its module, or its own if it is itself one."""

    def find(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        loaded = import_module(module)
        if module != f'{package}.{name}':
            loaded = getattr(loaded, name)
        setattr(sys.modules[package], name, loaded)
        return loaded

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return find, names
