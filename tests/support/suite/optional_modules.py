"""Modules that some part of headrace imports, and that installing headrace alone does not bring."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
SOURCES = REPOSITORY / 'src' / 'headrace'

# `import lightning` of an older package, and the newer one's parts.
OTHER_NAMES = {'lightning_fabric', 'pytorch_lightning', 'streaming', 'torchvision'}


def required() -> set[str]:
    """Import names of what headrace always needs."""
    (listed,) = re.findall(r'^dependencies = \[$(.*?)^\]$', (REPOSITORY / 'pyproject.toml').read_text(), re.M | re.S)
    return {*re.findall(r'"([\w-]+)', listed), 'yaml', 'headrace', *sys.stdlib_module_names}


def optional_modules(folder: Path = SOURCES) -> set[str]:
    """Dotted names of the optional modules that the files of a folder import, anywhere in their code."""
    found = set[str]()
    for path in folder.rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module))
    needed = required()
    return {name for name in found if name.partition('.')[0] not in needed}


def modules_of_extra(extra: str) -> set[str]:
    """Modules of an extra's packages, as their names say: ``google-cloud-storage`` is google.cloud.storage.

    A store that needs no SDK has no extra, so none.
    """
    listed = re.findall(rf'^{extra} = \[(.*)\]$', (REPOSITORY / 'pyproject.toml').read_text(), re.M)
    return {name.replace('-', '.') for packages in listed for name in re.findall(r'"([\w-]+)', packages)}
