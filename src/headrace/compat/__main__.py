"""``python -m headrace.compat SCRIPT ...`` is ``headrace run SCRIPT ...``."""

from __future__ import annotations

import runpy
import sys

sys.argv[:] = ['headrace', 'run', *sys.argv[1:]]
runpy.run_module('headrace.cli', run_name='__main__', alter_sys=True)  # a layer above, so it is not imported
