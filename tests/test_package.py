"""The package as a whole: what importing it does, and what it is made of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

import headrace
from tests.support.suite.optional_modules import OTHER_NAMES, REPOSITORY, SOURCES, optional_modules

ARCHITECTURE = (REPOSITORY / 'docs' / 'architecture.md').read_text()

# Modules that a run of shards in the native order never uses; each would delay its start by milliseconds.
UNUSED = {
    'decimal',
    'headrace.convert',
    'headrace.dataset.streams.source_data',
    'headrace.dataset.tracker',
    'headrace.dataset.writing',
    'headrace.format.encoder',
    'headrace.order.explain',
    'html',
    'numpy.random',
    'statistics',
    'zstandard',
}

IMPORT = """
import json, os, sys, threading
before = dict(os.environ)
import torch
threads, modules = threading.active_count(), set(sys.modules)
from headrace import StreamingDataLoader, StreamingDataset
import torch.distributed
print(json.dumps({
    'modules': sorted(set(sys.modules) - modules),
    'environment': before == dict(os.environ),
    'threads': threading.active_count() - threads,
    'group': torch.distributed.is_initialized(),
    'cuda': torch.cuda.is_initialized(),
}))
"""

WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
extras = set(sys.argv[1:])
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in extras:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Absent())
import headrace
for module in pkgutil.walk_packages(headrace.__path__, 'headrace.', onerror=lambda name: None):
    try:
        if not module.name.endswith('__main__'):
            importlib.import_module(module.name)
    except headrace.errors.MissingDependencyError:
        pass
    except ImportError:
        print(module.name)
"""


def test_help_needs_neither_torch_nor_numpy() -> None:
    program = "import sys; import headrace.cli; headrace.cli.main(['--help'])"
    heavy = "import atexit, sys; atexit.register(lambda: print({'torch', 'numpy', 'omegaconf'} & set(sys.modules)));"
    done = subprocess.run([sys.executable, '-c', heavy + program], capture_output=True, text=True, check=True)
    assert 'usage: headrace' in done.stdout
    assert done.stdout.splitlines()[-1] == 'set()'


def test_importing_it_pulls_in_no_framework_and_no_sdk_and_starts_nothing() -> None:
    done = subprocess.run([sys.executable, '-c', IMPORT], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)

    foreign = {name.partition('.')[0] for name in optional_modules()} | OTHER_NAMES
    assert {'boto3', 'composer', 'lightning', 'paramiko'} <= foreign
    modules = set(found.pop('modules'))
    assert {name.partition('.')[0] for name in modules}.isdisjoint(foreign)
    assert modules.isdisjoint(UNUSED)
    assert len(modules) < 220
    assert found == {'environment': True, 'threads': 0, 'group': False, 'cuda': False}


def test_a_module_whose_extra_is_absent_names_it() -> None:
    extras = {name.partition('.')[0] for name in optional_modules()} - {'pytest', 'streaming'}
    program = [sys.executable, '-c', WITHOUT_EXTRAS, *sorted(extras)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    # Others import these once the extra is there.
    assert done.stdout.split() == [
        'headrace.metrics.per_stream',
        'headrace.sources.lance_process',
        'headrace.storage.stores.further.sftp_credentials',
        'headrace.storage.stores.further.sftp_files',
    ]


def test_every_public_name_is_there() -> None:
    for package in (headrace, headrace.dataset, headrace.format, headrace.order):
        assert all(hasattr(package, name) for name in package.__all__)
        assert set(package.__all__) <= set(dir(package))


def test_modules_that_are_imported_at_first_use_are_there() -> None:
    assert headrace.convert.merge_index is headrace.merge_index
    assert headrace.sources.__name__ == 'headrace.sources'
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'Dataset'"):
        headrace.Dataset  # type: ignore[attr-defined]  # noqa: B018


def test_it_says_its_version_and_its_license() -> None:
    assert version('headrace') == headrace.__version__
    assert metadata('headrace')['License-Expression'] == 'Apache-2.0'
    assert 'Apache License' in (REPOSITORY / 'LICENSE').read_text()


def test_it_is_typed() -> None:
    assert Path(headrace.__file__).with_name('py.typed').exists()


def test_the_architecture_draws_the_folders() -> None:
    (section,) = re.findall(r'^## Folders$(.*?)^## ', ARCHITECTURE, re.MULTILINE | re.DOTALL)
    core, beside = re.findall(r'^```text$(.*?)^```$', section, re.MULTILINE | re.DOTALL)
    drawn: list[str] = []
    for indent, name in re.findall(r'^( *)(\w+) ', core + beside, re.MULTILINE):
        parents = drawn[-1].split('/')[: len(indent) // 2] if indent else []
        drawn.append('/'.join([*parents, name]))
    modules = (module.relative_to(SOURCES).parent for module in SOURCES.rglob('*.py'))
    assert sorted(drawn) == sorted({folder.as_posix() for folder in modules} - {'.'})


def test_the_architecture_names_modules_that_exist() -> None:
    named = set(re.findall(r'`([\w/]+\.py)`', ARCHITECTURE))
    assert len(named) > 20
    assert [path for path in sorted(named) if not any((root / path).exists() for root in (SOURCES, REPOSITORY))] == []


def test_the_architecture_answers_as_many_questions_as_it_says() -> None:
    ((number, table),) = re.findall(r'^## (\w+) questions$(.*?)^##', ARCHITECTURE, re.MULTILINE | re.DOTALL)
    assert table.count('? |') == {'Fourteen': 14, 'Fifteen': 15, 'Sixteen': 16}[number]
