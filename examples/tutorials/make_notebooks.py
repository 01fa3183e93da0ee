"""Writes the notebook of each tutorial from its script, and runs it: `python examples/tutorials/make_notebooks.py`.

The scripts are the source. Names of scripts as arguments choose some of them. It takes 10 minutes, and it needs
`pip install ipykernel nbclient`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext

FOLDER = Path(__file__).parent
OTHERS = {'make_notebooks', 'tutorial_data', 'tutorial_models', 'tutorial_pictures'}
KERNEL = {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}


def scripts() -> list[Path]:
    """The scripts of all tutorials."""
    return sorted(path for path in FOLDER.glob('*.py') if path.stem not in OTHERS)


def notebook_of(script: Path) -> Any:
    """The cells of a script as a notebook without outputs."""
    notebook = jupytext.read(script, fmt='py:percent')
    notebook.metadata = {'kernelspec': KERNEL, 'language_info': {'name': 'python'}}
    for number, cell in enumerate(notebook.cells):
        cell['id'] = f'cell-{number}'
    return notebook


def run(notebook: Any) -> None:
    """Run the cells, and keep what they print and draw, but not logs and warnings, which name files of a machine."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=1200, record_timing=False, resources={'metadata': {'path': folder}})
        client.execute()
    notebook.metadata = {'kernelspec': KERNEL, 'language_info': {'name': 'python'}}
    for cell in notebook.cells:
        if cell.cell_type == 'code':
            cell.outputs = [
                output
                for output in cell.outputs
                if output.output_type == 'display_data' or output.get('name') == 'stdout'
            ]


if __name__ == '__main__':
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(FOLDER.resolve()), os.environ.get('PYTHONPATH')]))
    for script in scripts():
        if script.stem in (sys.argv[1:] or script.stem):
            made = notebook_of(script)
            run(made)
            jupytext.write(made, script.with_suffix('.ipynb'))
