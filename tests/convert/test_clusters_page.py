"""The programs of docs/clusters.md run as they are written, with real Spark and real Ray."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from headrace import LocalDataset
from tests.support.programs.processes import clean_environment, run_well

PAGE = (Path(__file__).parents[2] / 'docs' / 'clusters.md').read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(('name', 'package'), [('with_spark.py', 'pyspark'), ('with_ray.py', 'ray')])
def test_programs_of_the_page(tmp_path: Path, name: str, package: str) -> None:
    pytest.importorskip(package)
    pq = pytest.importorskip('pyarrow.parquet')
    pa = pytest.importorskip('pyarrow')
    (code,) = re.findall(rf'^```python\n# {re.escape(name)}\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / name).write_text(code)
    (tmp_path / 'documents').mkdir()
    for part in range(2):
        rows = range(100 * part, 100 * part + 100)
        table = pa.table({'id': list(rows), 'text': [f'document {i}' for i in rows]})
        pq.write_table(table, tmp_path / 'documents' / f'{part}.parquet')
    environ = clean_environment(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP='127.0.0.1')
    environ['PYTHONPATH'] = os.pathsep.join([environ['PYTHONPATH'], *filter(None, sys.path)])
    run_well([sys.executable, name], cwd=tmp_path, environ=environ, timeout=560)
    for folder in sorted(tmp_path.glob('mds*')):
        dataset = LocalDataset(str(folder))
        assert sorted(int(sample['id']) for sample in dataset) == list(range(200))
    assert sorted(tmp_path.glob('mds*'))
