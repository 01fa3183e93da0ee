"""Problems of a configuration with their places, similar names, and the one error that lists them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import ConfigError
from headrace.errors.redaction import HIDDEN, redact_value

LONGEST_NAME: Final = 80  # characters of a name that others are compared with; comparing takes quadratic time


def closest(text: str, names: tuple[str, ...]) -> list[str]:
    """The names most similar to `text`: one, or those that tie for it."""
    lowered = [name.lower() for name in names]
    text = text[:LONGEST_NAME].lower()
    best = difflib.get_close_matches(text, lowered, n=max(len(names), 1), cutoff=0.6)
    score = difflib.SequenceMatcher(None, best[0], text).ratio() if best else 1.0
    # Names that tie with the best one are as likely.
    ties = {other for other in best if difflib.SequenceMatcher(None, other, text).ratio() == score}
    return [name for name in names if name.lower() in ties]


def did_you_mean(suggestions: list[str]) -> str:
    quoted = ' or '.join(f'"{name}"' for name in suggestions)
    return f'; did you mean {quoted}?' if quoted else ''


Path = tuple[str | int, ...]  # the place of a value: the keys from the root, an integer for an item of a list

MAX_LINES: Final = 200  # Lines of an error; further problems are only counted


@dataclass(frozen=True, slots=True)
class Problem:
    path: Path
    rule: str
    got: str | None = None  # the value received, as text; None where there is none
    meant: tuple[str, ...] = ()  # keys similar to the last one of the path


def dotted(path: Path) -> str:
    """``('train', 'streams', 0, 'local')`` as ``train.streams[0].local``."""
    text = ''
    for part in path:
        if isinstance(part, int):
            text += f'[{part}]'
            continue
        name = part if len(part) <= LONGEST_NAME else f'{part[: LONGEST_NAME - 3]}...'
        if not name or re.search(r'[.\[\]=]', part):
            text += f'[{name}]'  # as OmegaConf writes a key that itself holds a dot
        else:
            text += f'.{name}' if text else name
    return text


def shown(value: object, *, key: str = '') -> str:
    """A value for a message: short, and without secrets. An interpolation is none."""
    if not (isinstance(value, str) and value.startswith('${')):
        value = redact_value(value, key)
    if value == HIDDEN:
        return '(hidden)'
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4,300 digits
        return f'a {type(value).__name__} of too many digits'
    # true and null are YAML's words; the rest reads the same in Python and in YAML.
    text = {'True': 'true', 'False': 'false', 'None': 'null'}.get(text, text)
    return text if len(text) <= 80 else text[:77] + '...'


def refuse(lines: list[str], *, count: int | None = None) -> None:
    """Raise one ConfigError for all lines; do nothing if there are none. `count` includes omitted lines."""
    if (left := (count or len(lines)) - MAX_LINES) > 0:
        raise refusal(*lines[:MAX_LINES], f'... and {left:,} more', count=count or len(lines))
    if lines:
        raise refusal(*lines)


def refusal(*lines: str, count: int | None = None) -> ConfigError:
    count = count or len(lines)
    errors = 'one error' if count == 1 else f'{count} errors'
    return ConfigError(f'{errors} in the configuration:\n' + '\n'.join(f'  {line}' for line in lines))


def as_line(problem: Problem) -> str:
    got = '' if problem.got is None else f'got {problem.got}; '
    return f'{dotted(problem.path) or "(top level)"}: {got}{problem.rule}'
