"""Variables of Python, BLAS, Rust, CUDA, proxies and certificates, as developers set them, change nothing.

Stores and their proxies are in `storage/transfer/test_http.py`. `.ci/run` runs all tests in an empty environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter
from tests.support.programs.processes import run_well
from tests.support.suite.optional_modules import REPOSITORY

pytest.importorskip('pyarrow')
PROGRAM = REPOSITORY / 'tests/support/programs/developers_machine.py'
VARIABLES = {
    'python': {
        'PYTHONUNBUFFERED': '1',
        'PYTHONSAFEPATH': '1',
        'PYTHONHASHSEED': '7',
        'PYTHONIOENCODING': 'latin-1',
        'PYTHONNOUSERSITE': '1',
        'PYTHONASYNCIODEBUG': '1',
        'PYTHONFAULTHANDLER': '1',
        'PYTHONWARNINGS': 'default',
        'PYTHONSTARTUP': '/missing.py',
    },
    'blas': {
        'OPENBLAS_NUM_THREADS': '3',
        'OPENBLAS_VERBOSE': '2',
        'OMP_NUM_THREADS': '3',
        'OMP_DISPLAY_ENV': 'VERBOSE',
        'KMP_AFFINITY': 'verbose',
        'MKL_NUM_THREADS': '3',
    },
    'rust': {'RUST_BACKTRACE': 'full', 'RUST_LOG': 'trace', 'LANCE_LOG': 'trace'},
    'cuda': {'CUDA_VISIBLE_DEVICES': '0,1', 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID', 'NVIDIA_VISIBLE_DEVICES': 'all'},
    'proxies': dict.fromkeys(('HTTP_PROXY', 'http_proxy', 'HTTPS_PROXY', 'https_proxy'), 'http://127.0.0.1:1'),
    'certificates': dict.fromkeys(
        ('SSL_CERT_FILE', 'SSL_CERT_DIR', 'REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE', 'AWS_CA_BUNDLE'), '/missing.pem'
    ),
}
ENVIRONMENTS = {
    'none': {},
    # All families at once: one process for each would take six times as long.
    'all': {name: value for family in VARIABLES.values() for name, value in family.items()},
}


def seen(folder: Path, what: str, out: Path, variables: dict[str, str]) -> dict[str, Any]:
    """What a process sees with these variables only, and a home for the caches of libraries."""
    environ = {**variables, 'HOME': str(out.parent), 'PATH': os.defpath, 'PYTHONPATH': str(REPOSITORY)}
    run_well([sys.executable, str(PROGRAM), str(folder), what, str(out)], cwd=out.parent, environ=environ)
    return json.loads(out.read_text())


def test_each_format_and_command_sees_the_same(tmp_path: Path) -> None:
    for name in ('deltalake', 'litdata', 'pyiceberg', 'sqlalchemy'):
        pytest.importorskip(name)
    if importlib.util.find_spec('lance') is None:  # this process must not import it, since it forks
        pytest.skip('needs pylance')
    from tests.support.fuzz.fuzz_seeds import PARSERS, seeds_of

    for parser in PARSERS.keys() - {'index'}:
        for key, data in seeds_of(parser)[0].items():
            path = tmp_path / 'data' / parser / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    none, every = (
        seen(tmp_path / 'data', 'read', tmp_path / name, variables) for name, variables in ENVIRONMENTS.items()
    )
    assert {*none} >= PARSERS.keys() - {'index'}
    assert 'usage: headrace' in none['--help']
    assert every == none


@pytest.mark.composer
@pytest.mark.lightning
def test_each_trainer_trains_on_the_same(tmp_path: Path) -> None:
    for name in ('accelerate', 'composer', 'lightning', 'transformers'):
        pytest.importorskip(name)
    with MDSWriter(columns={'x': 'float32'}, out=str(tmp_path / 'data/train')) as writer:
        for number in range(24):
            writer.write({'x': np.float32(number)})
    trained = seen(tmp_path / 'data', 'train', tmp_path / 'all', ENVIRONMENTS['all'])
    lightning, composer, transformers = (trained[name] for name in ('lightning', 'composer', 'transformers'))
    assert sorted(sum(lightning, [])) == [*range(24)]
    assert lightning == composer == transformers
