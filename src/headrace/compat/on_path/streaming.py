"""The alias of `headrace.compat`, for processes whose `PYTHONPATH` or `sys.path` names the folder above.

This module is the first to be found, installs the alias, and makes room for it.
"""

import importlib
import sys

del sys.modules[__name__]
importlib.import_module('headrace.compat').install()
importlib.import_module(__name__)
