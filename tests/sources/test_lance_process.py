"""The program that runs Lance: its answers to several requests, errors among them, and its end."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.sources import lance_data

pa = pytest.importorskip('pyarrow')
if importlib.util.find_spec('lance') is None:  # this process must not import it: it forks
    pytest.skip('needs pylance', allow_module_level=True)

WRITE = """
import sys, lance, pyarrow as pa
dataset = lance.write_dataset(pa.table({'id': range(12), 'deep': [{'a': 1}] * 12}), sys.argv[1], max_rows_per_file=8)
dataset.delete('id = 1 or id = 9')
"""


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp('lance data') / 'a')
    subprocess.run([sys.executable, '-c', WRITE, path], check=True, capture_output=True)
    return path


@pytest.fixture
def process() -> Iterator[Any]:
    path = Path(lance_data.__file__).with_name('lance_process.py')
    with subprocess.Popen([sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        yield started
        started.kill()


def ask(process: Any, **request: Any) -> Any:
    process.stdin.write(json.dumps(request).encode() + b'\n')
    process.stdin.flush()
    return pa.ipc.open_stream(process.stdout).read_all()


def test_a_process_answers_until_its_input_ends(process: Any, data: str) -> None:
    missing = ask(process, path=f'{data}/missing', fragment=None)
    assert 'missing' in missing.schema.metadata[b'error'].decode()
    fragments = ask(process, path=data, fragment=None)
    assert [json.loads(text)['physical_rows'] for text in fragments['fragment'].to_pylist()] == [8, 4]
    assert fragments['deleted'].to_pylist() == [[1], [1]]
    assert {name: len(ids) for name, ids in json.loads(fragments.schema.metadata[b'fields']).items()} == {
        'id': 1,
        'deep': 2,
    }
    assert pa.ipc.read_schema(pa.py_buffer(fragments.schema.metadata[b'schema'])).names == ['id', 'deep']
    rows = ask(process, path=data, fragment=0, columns=['id'], offset=2, limit=3, batch_size=2)
    assert rows.to_pydict() == {'id': [3, 4, 5]}  # the offset counts rows that are not deleted
    none = ask(process, path=data, fragment=0, columns=['other'], offset=0, limit=1, batch_size=2)
    assert 'other' in none.schema.metadata[b'error'].decode()
    process.stdin.close()
    assert process.wait(60) == 0
