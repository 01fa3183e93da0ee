"""The tests of a module: ``python tests/tests_of.py src/headrace/storage/cache/limit.py``.

A module's test is `tests/FOLDER/test_MODULE.py`, or `test_PACKAGE_MODULE.py` if that name is taken. Other modules are
tested through their callers. This program finds the test files that import a module or name it. Else it gives those of
the modules that import it, else those of its folder.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / 'src' / 'headrace'
TESTS = ROOT / 'tests'


@cache
def modules() -> dict[str, Path]:
    """The modules of headrace, without packages' own and `testing`, by dotted name."""
    paths = (path for path in SOURCE.rglob('*.py') if path.name not in ('__init__.py', '__main__.py'))
    return {dotted(path): path for path in sorted(paths) if path.relative_to(SOURCE).parts[0] != 'testing'}


def dotted(path: Path) -> str:
    """The name by which a file of headrace is imported."""
    return '.'.join(path.relative_to(SOURCE.parent).with_suffix('').parts).removesuffix('.__init__')


def like_named(name: str) -> list[Path]:
    """The test file that has the module's name, in the folder of its package or one above."""
    _, *folders, module = name.split('.')
    package = folders[-1] if folders else ''
    names = [f'test_{stem}.py' for stem in (module, f'{package}_{module}', f'{"_".join(folders)}_{module}')]
    names += [f'test_{folders[0]}_{module}.py', f'test_{module}_command.py'] if folders else []
    places = [TESTS.joinpath(*folders[:depth]) for depth in range(len(folders), 0, -1)] or [TESTS]
    return [next(iter(found))] if (found := [p / n for p in places for n in names if (p / n).is_file()]) else []


def find_tests(name: str) -> tuple[str, list[Path]]:
    """How the tests of a module are found, and these.

    Returns:
        'name', 'import', 'caller' or 'folder', and test files, the nearest ones first.
    """
    if found := like_named(name):
        return 'name', found
    seen, level, way = {name}, [name], 'import'
    while level:
        if found := {path for each in level for path in (*_users()[each], *like_named(each))}:
            return way, sorted(found, key=lambda path: (-_common(name, path), path))
        level = sorted({caller for each in level for caller in _callers()[each] & modules().keys()} - seen)
        seen, way = seen.union(level), 'caller'
    # Only a text names it, as that of a shuffle algorithm.
    folder = next(path for path in TESTS.joinpath(*name.split('.')[1:]).parents if path.is_dir())
    return 'folder', sorted(folder.glob('test_*.py'))


def _common(name: str, test: Path) -> int:
    """Folders that a module and a test have in common."""
    both = zip(name.split('.')[1:-1], test.relative_to(TESTS).parts[:-1], strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))


@cache
def _users() -> dict[str, list[Path]]:
    """The test files that import a module, or write its name or its command in a text."""
    users: dict[str, list[Path]] = defaultdict(list)
    commands = {path.stem.replace('_', '-'): dotted(path) for path in (SOURCE / 'cli').glob('*.py')}
    for path in sorted(TESTS.rglob('test_*.py')):
        tree = ast.parse(path.read_text())
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        words = {word for text in texts for word in text.split()}
        named = (texts & set(modules())) | {commands[word] for word in words & set(commands)}
        for name in _imported(tree) | named:
            users[name].append(path)
    return users


@cache
def _callers() -> dict[str, set[str]]:
    """The modules that import a module."""
    callers: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob('*.py'):
        for name in _imported(ast.parse(path.read_text())) - {dotted(path)}:
            callers[name].add(dotted(path))
    return callers


def _imported(tree: ast.AST) -> set[str]:
    """The modules of headrace that a file imports, also through the names of a package."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split('.')[0] == 'headrace':
            found |= {_origin(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split('.')[0] == 'headrace'}
    return found


@cache
def _origin(package: str, name: str) -> str:
    """The module that has a name which is imported from a package or module."""
    if f'{package}.{name}' in modules():
        return f'{package}.{name}'
    own = SOURCE.parent.joinpath(*package.split('.'), '__init__.py')
    if own.is_file():
        for node in ast.walk(ast.parse(own.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and any(name == alias.name for alias in node.names):
                return _origin(node.module, name)
    return package


def main() -> None:
    for argument in sys.argv[1:]:
        way, tests = find_tests(dotted(Path(argument).resolve()))
        print(f'{argument} (found by {way}):', *(f'  {path.relative_to(ROOT)}' for path in tests), sep='\n')


if __name__ == '__main__':
    main()
