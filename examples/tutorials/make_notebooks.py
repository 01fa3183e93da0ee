"""Writes the notebook of each tutorial from its script: `python examples/tutorials/make_notebooks.py`.

The scripts are the source. A notebook has no outputs, so that it changes only with its script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jupytext

FOLDER = Path(__file__).parent
OTHERS = {'make_notebooks', 'tutorial_data', 'tutorial_models'}
KERNEL = {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}


def scripts() -> list[Path]:
    """The scripts of all tutorials."""
    return sorted(path for path in FOLDER.glob('*.py') if path.stem not in OTHERS)


def notebook_of(script: Path) -> Any:
    """The cells of a script as a notebook."""
    notebook = jupytext.read(script, fmt='py:percent')
    notebook.metadata = {'kernelspec': KERNEL, 'language_info': {'name': 'python'}}
    for number, cell in enumerate(notebook.cells):
        cell['id'] = f'cell-{number}'
    return notebook


if __name__ == '__main__':
    for script in scripts():
        jupytext.write(notebook_of(script), script.with_suffix('.ipynb'))
