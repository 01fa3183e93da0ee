"""The modules that stand for `streaming` and its submodules, made from the tables when they are imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from headrace.compat.tables import ABSENT_MODULES, TABLES, Absent, Alias
from headrace.errors import AbsentNameError, AliasError

__all__ = ['ROOT', 'AliasFinder', 'AliasModule', 'is_aliased']

ROOT = 'streaming'
__version__ = '0.13.0'  # the version of MosaicML Streaming whose names the tables list


class AliasModule(ModuleType):
    """A module of `streaming`. An object is imported from headrace when its name is first used."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f'headrace in the place of `{name}`: see docs/mosaicml.md.')
        self.__all__ = public_names(name)
        # Every module is a package, so that `from module import name` asks the finder for a name that is not there.
        self.__path__ = []
        if name == ROOT:
            self.__version__ = __version__
            self.__file__ = __file__  # programs print it, to see which package they run on

    def __getattr__(self, name: str) -> Any:
        path = f'{self.__name__}.{name}'
        entry = TABLES[self.__name__].get(name)
        if isinstance(entry, Alias):
            value = load(entry)
        elif isinstance(entry, Absent):
            raise AbsentNameError(absence(path, entry))
        elif path in TABLES:
            return importlib.import_module(path)  # sets the attribute
        elif path in ABSENT_MODULES:
            raise AbsentNameError(absence(path, ABSENT_MODULES[path]))
        else:
            raise AttributeError(f'module {self.__name__!r} has no attribute {name!r}')
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # A submodule may have the name of a function of this module, which stays.
        if not (isinstance(value, AliasModule) and name in TABLES[self.__name__]):
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        submodules = (path.rpartition('.')[2] for path in TABLES if path.rpartition('.')[0] == self.__name__)
        return sorted({*super().__dir__(), *self.__all__, *submodules})


class AliasFinder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the tables, None for others; AliasError: headrace does not have it."""
        del path, target
        module, _, name = fullname.rpartition('.')
        # `from module import name` comes here if the module has no such attribute.
        entry = ABSENT_MODULES.get(fullname) or TABLES.get(module, {}).get(name)
        if isinstance(entry, Absent):
            raise AliasError(absence(fullname, entry))
        if fullname in TABLES:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AliasModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed."""


def public_names(module: str) -> list[str]:
    """The names that `from module import *` gives: those that headrace has, and three modules of `streaming`."""
    names = [name for name, entry in TABLES[module].items() if isinstance(entry, Alias) and not name.startswith('_')]
    return [*names, 'multimodal', 'text', 'vision'] if module == ROOT else names


def load(entry: Alias) -> Any:
    module, _, name = entry.target.partition(':')
    return getattr(importlib.import_module(module), name)


def absence(path: str, entry: Absent) -> str:
    return f'headrace stands for `streaming` here, and has no {path}. {entry.reason}'


def is_aliased() -> bool:
    """Whether `streaming`, if it was imported, is headrace."""
    return isinstance(sys.modules.get(ROOT), AliasModule | None)
