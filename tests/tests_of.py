"""The tests of a module: ``python tests/tests_of.py src/headrace/storage/cache/limit.py``.

A module's test is `tests/FOLDER/test_MODULE.py`, or `test_PACKAGE_MODULE.py` if that name is taken. Every module that
holds behaviour has one: a function or method with statements of its own. Modules of types, constants and descriptions
are left out, and so are `__init__`, `__main__` and `headrace.testing`.

`tests/data/tests_elsewhere.txt` names the exceptions, each with the test file that holds its behaviour.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / 'src' / 'headrace'
TESTS = ROOT / 'tests'
ELSEWHERE = TESTS / 'data' / 'tests_elsewhere.txt'


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


@cache
def elsewhere() -> dict[str, Path]:
    """The test files of the modules without a like-named one."""
    lines = (line.split() for line in ELSEWHERE.read_text().splitlines())
    return {name: TESTS / test for name, test in lines}


def find_tests(name: str) -> list[Path]:
    """The test file of a module; none of a module without behaviour."""
    return like_named(name) or [path for module, path in elsewhere().items() if module == name]


def holds_behaviour(path: Path) -> bool:
    """Whether a module has a function or method with statements of its own."""
    nodes: list[ast.stmt] = list(ast.parse(path.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not all(isinstance(each, (ast.Pass, ast.Raise)) or _is_text(each) for each in node.body):
                return True
        elif isinstance(node, ast.If) or (isinstance(node, ast.ClassDef) and not _is_protocol(node)):
            nodes += node.body
    return False


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring or `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class only describes others."""
    return any('Protocol' in ast.unparse(base) for base in node.bases)


def main() -> None:
    for argument in sys.argv[1:]:
        tests = find_tests(dotted(Path(argument).resolve()))
        print(f'{argument}:', *(f'  {path.relative_to(ROOT)}' for path in tests), sep='\n')


if __name__ == '__main__':
    main()
