"""The numbers of a figure, in JSON, and its picture, which is drawn from the JSON alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]

BLUE, ORANGE, GREEN, RED, PURPLE, GRAY = '#0072b2', '#e69f00', '#009e73', '#d55e00', '#cc79a7', '#8c8c8c'
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

STYLE = {
    'font.size': 9,
    'axes.titlesize': 9,
    'axes.titlelocation': 'left',
    'figure.titlesize': 11,
    'figure.titleweight': 'bold',
    'figure.constrained_layout.use': True,
    # An opaque background, since a page around the picture may be dark.
    'figure.facecolor': 'white',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'grid.color': '#e6e6e6',
    'grid.linewidth': 0.6,
    'axes.axisbelow': True,
    'legend.frameon': False,
    'lines.linewidth': 1.5,
    # Fixed ids in place of random ones: the same numbers give the same bytes.
    'svg.hashsalt': 'headrace',
}


class Made(NamedTuple):
    """How a figure is made."""

    measure: Callable[[bool], Result]
    """Runs it, at its smallest if told so."""
    claims: Callable[[Result], dict[str, bool]]
    """The statement of the figure, and whether its numbers agree."""
    draw: Callable[[Result], Figure]


def write(path: Path, result: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    # A list of numbers in one line.
    text = re.sub(r'\[[^\[\]{}"]*\]', lambda numbers: re.sub(r'\s+', ' ', numbers[0]), text)
    path.write_text(text + '\n', encoding='utf-8')


def digest(path: Path) -> str:
    """The digest of a JSON file, which its picture carries."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_picture(made: Made, numbers: Path, picture: Path) -> None:
    """Draw the picture of a JSON file, as SVG with the file's digest inside, or as PNG."""
    import matplotlib as mpl

    style: Any = STYLE
    with mpl.rc_context(style):
        figure = made.draw(json.loads(numbers.read_text(encoding='utf-8')))
        if picture.suffix == '.svg':
            # Neither date nor version: only the numbers decide on the bytes.
            metadata = {'Date': None, 'Creator': None, 'Description': f'{numbers.name} {digest(numbers)}'}
            figure.savefig(picture, metadata=metadata)
        else:
            figure.savefig(picture, dpi=110)
