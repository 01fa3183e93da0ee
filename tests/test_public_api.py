"""Public names, signatures and YAML keys of version 0.1.0 stay: `tests/data/public_api.txt` lists them.

A new parameter with a default, a new name and a new key break nobody. Add a line for each once it is released.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import typing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FROZEN = (Path(__file__).parent / 'data' / 'public_api.txt').read_text().splitlines()
YAML = 'yaml: '

Parameters = dict[str, tuple[str, str | None]]


def frozen_parameters(text: str) -> Parameters:
    """Kind and default of each parameter of a line such as `headrace.Stream.open(self, *, limit=None)`."""
    arguments = ast.parse(f'def frozen{text[text.index("(") :]}: ...').body[0].args  # type: ignore[attr-defined]
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    found: Parameters = {}
    for argument, default in zip(plain, defaults, strict=True):
        kind = 'POSITIONAL_ONLY' if argument in arguments.posonlyargs else 'POSITIONAL_OR_KEYWORD'
        found[argument.arg] = (kind, default and ast.unparse(default))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found[argument.arg] = ('KEYWORD_ONLY', default and ast.unparse(default))
    for argument, kind in ((arguments.vararg, 'VAR_POSITIONAL'), (arguments.kwarg, 'VAR_KEYWORD')):
        if argument is not None:
            found[argument.arg] = (kind, None)
    return found


def default_text(default: object) -> str:
    # An object without a literal form has an address in its text.
    is_literal = default is None or isinstance(default, bool | int | float | str | tuple)
    return ast.unparse(ast.parse(repr(default), mode='eval')) if is_literal else type(default).__name__


def actual_parameters(target: Any) -> Parameters:
    return {
        name: (one.kind.name, None if one.default is inspect.Parameter.empty else default_text(one.default))
        for name, one in inspect.signature(target).parameters.items()
    }


def resolve(path: str) -> Any:
    """The object at a dotted path; modules are imported."""
    target, parts = importlib.import_module('headrace'), path.split('.')[1:]
    for depth, part in enumerate(parts, 2):
        if part.islower() and not hasattr(target, part) and inspect.ismodule(target):
            importlib.import_module('.'.join(path.split('.')[:depth]))
        target = getattr(target, part)
    return target


def keys_of(section: Any, prefix: str = '') -> set[str]:
    """The keys of a section of the YAML and of the sections within it, joined by dots."""
    hints, found = typing.get_type_hints(section), set[str]()
    for field in dataclasses.fields(section):
        found.add(prefix + field.name)
        for inner in sections_in(hints[field.name]):
            found |= keys_of(inner, f'{prefix}{field.name}.')
    return found


def sections_in(hint: Any) -> list[Any]:
    if dataclasses.is_dataclass(hint):
        return [hint]
    return [section for part in typing.get_args(hint) for section in sections_in(part)]


def check_frozen(line: str) -> None:
    """Raise AssertionError unless the name is there, with each frozen parameter as it was."""
    target = resolve(line.partition('(')[0])
    if '(' not in line:
        return
    before, now = frozen_parameters(line), actual_parameters(target)
    for name, (kind, default) in before.items():
        # A required parameter may become optional.
        assert now.get(name) == (kind, default) or (default is None and now.get(name, ('', None))[0] == kind), name
    by_position = [name for name, (kind, _) in before.items() if kind.startswith('POSITIONAL')]
    assert [name for name, (kind, _) in now.items() if kind.startswith('POSITIONAL')][: len(by_position)] == by_position
    new = {name: value for name, value in now.items() if name not in before}
    assert all(default is not None or kind.startswith('VAR_') for kind, default in new.values()), new


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f'{", ".join(missing)} not installed')


@pytest.mark.parametrize(
    'package',
    [
        '',
        'inspect',
        'metrics',
        'packing',
        'mixing',
        'convert',
        pytest.param('convert.ray', marks=needs('ray')),
        pytest.param('accelerate', marks=needs('accelerate')),
        pytest.param('transformers', marks=needs('accelerate', 'transformers')),
        pytest.param('lightning', marks=pytest.mark.lightning),
        pytest.param('composer', marks=pytest.mark.composer),
    ],
)
def test_names_and_signatures_stay(package: str) -> None:
    prefix = f'headrace.{package}.' if package else 'headrace.'
    lines = [line for line in FROZEN if line.startswith(prefix)]
    if not package:
        lines = [line for line in lines if line.split('.')[1][0].isupper() or '(' in line.split('.')[1]]
    if package == 'convert':
        lines = [line for line in lines if not line.startswith(f'{prefix}ray.')]
    assert lines

    for line in lines:
        check_frozen(line)


def test_keys_of_the_yaml_stay() -> None:
    from headrace.mixing import Config

    frozen = {line.removeprefix(YAML) for line in FROZEN if line.startswith(YAML)}

    assert len(frozen) > 100
    assert not frozen - keys_of(Config)


@pytest.mark.parametrize(
    'line',
    [
        'headrace.NoSuchName',
        'headrace.StreamingDataset(*, remote="s3://other")',
        'headrace.StreamingDataset(remote=None)',
        'headrace.sample_rng(no_such_parameter)',
    ],
)
def test_a_difference_is_found(line: str) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        check_frozen(line)
