"""What the contract's tests show of each backend, by operation and by fault, as Markdown.

    python -m tests.support.pages.contract_table [PAGE]

It runs the tests of `StoreContract` and `StoreFaultContract`, all of them, and prints what came of it; with PAGE, the
tables replace what stands there between two comments. Nothing in them is written by hand but the names of servers.
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from headrace.testing.store_faults import StoreFaultContract
from headrace.testing.stores import StoreContract
from tests.support.pages.generated_part import replace_part

TESTS = Path(__file__).parents[2] / 'storage'
SERVERS = {
    'moto': 'moto',
    'rgw': 'Ceph RGW',
    'plain': 'our own server, files in git',
    'lfs': 'our own server, files in LFS',
}
OPERATIONS = {
    'get': 'get',
    'range': 'ranged get',
    'put': 'put',
    'list': 'list',
    'head': 'head',
    'delete': 'delete',
    'download': 'download',
    'all': 'all of them',
}
SOUND = {
    'test_what_is_put_is_what_is_got': 'get',
    'test_get_appends_to_the_file': 'get',
    'test_an_etag_names_a_version': 'get',
    'test_ranges': 'range',
    'test_a_range_from_the_end_is_empty': 'range',
    'test_a_range_beyond_the_end_is_an_error': 'range',
    'test_put_replaces': 'put',
    'test_put_takes_size_bytes_from_where_the_source_stands': 'put',
    'test_a_source_that_ends_early_is_an_error_and_stores_nothing': 'put',
    'test_list_is_sorted_and_filtered_by_plain_prefix': 'list',
    'test_a_prefix_that_leaves_the_root_is_refused': 'list',
    'test_an_absent_object_is_named': 'head',
    'test_delete_may_be_repeated': 'delete',
}
"""What each test of `StoreContract` is mostly about; others are about all operations."""
FAULTY = {
    'test_404_is_told': (None, '404'),
    'test_retry_after_is_heard': (None, 'Retry-After'),
    'test_a_broken_download_continues': ('download', None),
    'test_a_download_survives_a_burst': ('download', None),
    'test_a_dead_server_is_given_up': ('download', 'no connection'),
    'test_slow_is_not_broken': ('download', 'slow'),
}
"""Operation and fault of tests of `StoreFaultContract` where no parameter says them."""


class Results:
    """A plugin of pytest that counts what came of the contract's tests."""

    def __init__(self):
        self.sound = defaultdict(lambda: defaultdict(Counter))
        self.by_operation = defaultdict(lambda: defaultdict(Counter))
        self.by_fault = defaultdict(lambda: defaultdict(Counter))
        self.skipped = {}
        self.failed = []
        self._places = {}

    def pytest_collection_modifyitems(self, items):
        kept = [item for item in items if item.cls and issubclass(item.cls, (StoreContract, StoreFaultContract))]
        unnamed = {item.cls.__name__ for item in kept if not item.cls.ROW}
        if unnamed:
            raise pytest.UsageError(f"Name backend and server as `ROW` of {sorted(unnamed)}, as in '`s3://`: moto'.")
        # Tests that a backend has besides are not the contract's.
        items[:] = [item for item in kept if hasattr(StoreContract, item.originalname) or is_faulty(item)]
        for item in items:
            self._places[item.nodeid] = place(item)

    def pytest_runtest_logreport(self, report):
        row, operations, fault = self._places[report.nodeid]
        if report.outcome == 'skipped':
            self.skipped[row] = report.longrepr[2].removeprefix('Skipped: ')
        if report.outcome == 'failed':
            self.failed.append(f'{row}: {report.nodeid}')
        elif report.when != 'call' or report.outcome == 'skipped':
            return
        for operation in operations:
            if fault is None:
                self.sound[row][OPERATIONS[operation]][report.outcome] += 1
            else:
                self.by_operation[row][OPERATIONS[operation]][report.outcome] += 1
                self.by_fault[row][fault][report.outcome] += 1

    def markdown(self):
        """The tables."""
        parts = ['Without faults, tests by operation:', self._table(self.sound, 'store: server')]
        sets = defaultdict(list)
        for row, faults in self.by_fault.items():
            sets[frozenset(faults)].append(row)
        for rows in sets.values():
            both = {row: {**self.by_operation[row], **self.by_fault[row]} for row in rows}
            parts += [
                'With faults, tests by operation, then by fault. A download is a get with retries:',
                self._table(both, 'store: server'),
            ]
        parts += [f'Not run: {row}: {reason}' for row, reason in self.skipped.items() if row not in self.sound]
        parts += [f'FAILED: {text}' for text in self.failed]
        return '\n\n'.join(parts) + '\n'

    @staticmethod
    def _table(results, title):
        columns = ordered({column for counts in results.values() for column in counts})
        alike = defaultdict(list)
        for row, counts in results.items():
            alike[tuple(cell(counts.get(column)) for column in columns)].append(row)
        lines = [[title, *columns], *(['; '.join(rows), *cells] for cells, rows in alike.items())]
        head, *rest = (f'| {" | ".join(line)} |' for line in lines)
        return '\n'.join([head, '|' + '---|' * (1 + len(columns)), *rest])


def ordered(columns):
    """In the order of operations or of faults; others as they are named."""
    known = [*OPERATIONS.values(), *StoreFaultContract.FAULTS, '404', 'Retry-After', *StoreFaultContract.BROKEN_BODIES]
    return sorted(columns, key=lambda name: (known.index(name) if name in known else len(known), name))


def cell(counts):
    """How many tests passed."""
    if not counts:
        return ''
    if counts['failed']:
        return f'**{counts["passed"]} of {counts.total()}**'
    return str(counts['passed'])


def is_faulty(item):
    return issubclass(item.cls, StoreFaultContract) and hasattr(StoreFaultContract, item.originalname)


def place(item):
    """Row, operations and fault of a test."""
    parameters = item.callspec.params if hasattr(item, 'callspec') else {}
    names = {name: SERVERS.get(value, value) for name, value in parameters.items() if isinstance(value, str)}
    row = item.cls.ROW.format(**names)
    if not is_faulty(item):
        return row, [SOUND.get(item.originalname, 'all')], None
    operation, fault = FAULTY.get(item.originalname, (None, None))
    operation = operation or parameters.get('operation')
    fault = fault or next(parameters[name] for name in ('fault', 'kind', 'passing_fault') if name in parameters)
    # Broken bodies are tried of both.
    return row, [operation] if operation else ['get', 'range'], fault


def main():
    results = Results()
    files = [str(path) for path in sorted(TESTS.rglob('test_*.py')) if re.search('Contract\\)', path.read_text())]
    options = ['-q', '-p', 'no:cacheprovider', '-p', 'no:randomly', '-W', 'ignore::pytest.PytestWarning']
    status = pytest.main([*options, *sys.argv[2:], *files], plugins=[results])
    tables = results.markdown()
    if len(sys.argv) > 1:
        replace_part(Path(sys.argv[1]), 'contract', tables)
    print(tables)
    return status


if __name__ == '__main__':
    sys.exit(main())
