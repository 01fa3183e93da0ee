"""Run reference vectors from a checkout: `python -m headrace.testing.golden order DIR`, or `formats`, not `order`.

An installed headrace has none of `tests.support.golden`, which does it.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == '__main__':
    root = Path(__file__).parents[3]
    if not (root / 'tests' / 'support' / 'golden').is_dir():
        sys.exit('headrace.testing.golden runs from a checkout of headrace or its source distribution only')
    sys.path.insert(0, str(root))
    runpy.run_module('tests.support.golden', run_name='__main__', alter_sys=True)
