"""The tests of a module are found without a search."""

from __future__ import annotations

from collections import defaultdict

from tests_of import SOURCE, TESTS, dotted, find_tests, modules

FOUND = [
    ('storage/cache/limit.py', 'name', 'storage/cache/test_limit.py'),
    ('order/native/order.py', 'name', 'order/native/test_native_order.py'),
    ('cli/init.py', 'name', 'cli/test_init_command.py'),
    ('compat/finder.py', 'import', 'compat/test_compat_imports.py'),
    ('cli/first_data.py', 'caller', 'cli/test_init_command.py'),
    ('order/shuffle/py1b.py', 'folder', 'order/shuffle/test_py1e.py'),
]


def test_every_module_has_tests() -> None:
    """One test, since each process of tests would read the imports of all files anew."""
    for module, way, test in FOUND:
        found, tests = find_tests(dotted(SOURCE / module))
        assert found == way, module
        assert TESTS / test in tests, module
    assert [name for name in modules() if not find_tests(name)[1]] == []


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
