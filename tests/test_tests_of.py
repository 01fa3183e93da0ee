"""The tests of a module are found without a search."""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict

from tests.tests_of import ELSEWHERE, SOURCE, TESTS, dotted, elsewhere, find_tests, holds_behaviour, like_named, modules

SUPPORT = TESTS / 'support'
EXCEPTIONS = 40
"""The lines of `tests/data/tests_elsewhere.txt`. This number only falls."""


def test_a_like_named_test_is_found() -> None:
    for module, test in (
        ('storage/cache/limit.py', 'storage/cache/test_limit.py'),
        ('order/native/order.py', 'order/native/test_native_order.py'),
        ('cli/init.py', 'cli/test_init_command.py'),
    ):
        assert find_tests(dotted(SOURCE / module)) == [TESTS / test]


def test_every_module_that_holds_behaviour_has_a_test() -> None:
    without = {name for name, path in modules().items() if holds_behaviour(path) and not like_named(name)}
    assert sorted(without - elsewhere().keys()) == [], (
        'Move the tests of each of these modules to tests/FOLDER/test_MODULE.py, as `tests/tests_of.py` says.'
    )
    assert sorted(elsewhere().keys() - without) == [], (
        f'Each of these modules is gone or has a like-named test: remove its line from {ELSEWHERE.name}.'
    )
    assert [path for path in elsewhere().values() if not path.is_file()] == [], f'Correct {ELSEWHERE.name}.'
    assert len(elsewhere()) == EXCEPTIONS, (
        f'{ELSEWHERE.name} may only shrink: give a new module a like-named test, or lower EXCEPTIONS after a removal.'
    )


def test_a_test_with_the_name_of_a_module_lies_beside_it() -> None:
    """In `tests`, in the folder that `src/headrace` has for the module."""
    folders = defaultdict(set)
    for name, path in modules().items():
        folders[name.split('.')[1], path.stem].add(path.parent.relative_to(SOURCE))
    for path in TESTS.rglob('test_*.py'):
        folder = path.parent.relative_to(TESTS)
        if folder.parts and (known := folders[folder.parts[0], path.stem.removeprefix('test_')]):
            assert folder in known, path


def test_each_test_file_has_a_name_of_its_own() -> None:
    """Or pytest collects only one of two: `test_PACKAGE_MODULE.py` is the second one's name."""
    names = [path.name for path in TESTS.rglob('test_*.py')]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_helpers_lie_in_support() -> None:
    """Their names are whole there, `tests.support.FOLDER.MODULE`, and a README says what each folder has."""
    own = {'conftest.py', 'tests_of.py', '__init__.py'}
    folders = [path for path in TESTS.rglob('*.py') if path.relative_to(TESTS).parts[0] not in ('data', 'support')]
    assert [path for path in folders if path.name not in own and not path.name.startswith('test_')] == [], (
        'Move these to a folder of tests/support.'
    )
    # Some servers have the names of packages.
    names = [path.stem for path in SUPPORT.glob('*/*.py') if path.stem not in ('__init__', '__main__')]
    helpers = '|'.join(name for name in names if importlib.util.find_spec(name) is None)
    bare = re.compile(rf'^ *(from ({helpers}) import|import ({helpers})$)', re.MULTILINE)
    found = {path: each[0].strip() for path in TESTS.rglob('*.py') if (each := bare.search(path.read_text()))}
    assert found == {}, 'Import these as tests.support.FOLDER.MODULE.'
    page = (SUPPORT / 'README.md').read_text()
    assert {path.parent.name for path in SUPPORT.glob('*/*.py')} == {*re.findall(r'^\| `(\w+)` \|', page, re.M)}
