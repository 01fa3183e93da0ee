"""The program that runs Lance: its answers to several requests, errors among them, and its end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.sources import lance_client
from tests.support.sources.lance_datasets import write_lance

pa = pytest.importorskip('pyarrow')


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp('lance data') / 'a'
    return str(write_lance(path, 12, 8, "dataset.delete('id = 1 or id = 9')"))


@pytest.fixture
def process() -> Iterator[Any]:
    command = [sys.executable, str(Path(lance_client.__file__).with_name('lance_process.py'))]
    # Without PYTHONUNBUFFERED, which would flush each answer.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as started:
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
    fields = {name: len(ids) for name, ids in json.loads(fragments.schema.metadata[b'fields']).items()}
    assert (fields['id'], fields['words'], fields['deep']) == (1, 2, 4)
    assert pa.ipc.read_schema(pa.py_buffer(fragments.schema.metadata[b'schema'])).names == [*fields]
    rows = ask(process, path=data, fragment=0, columns=['id'], offset=2, limit=3, batch_size=2)
    assert rows.to_pydict() == {'id': [3, 4, 5]}  # the offset counts rows that are not deleted
    none = ask(process, path=data, fragment=0, columns=['other'], offset=0, limit=1, batch_size=2)
    assert 'other' in none.schema.metadata[b'error'].decode()
    process.stdin.close()
    assert process.wait(60) == 0
