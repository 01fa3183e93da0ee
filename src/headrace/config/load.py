"""From a file, a mapping and overrides to a `Config`.

1. Files are read (`yaml_reader`) with their includes (``defaults``) and merged: mappings key by key, all else replaced.
2. Overrides are applied.
3. Interpolations are resolved (`resolver`), over the merged whole.
4. The plain values become the dataclasses of `schema` (`validate`).

Each key's place, a file and line or an override, is kept for messages. The number of values and of included files, the
depth of both, and the size of a file are bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple, cast

from headrace.config.problems import MAX_LINES, Path, Problem, as_line, dotted, refusal, refuse, shown
from headrace.config.resolver import (
    as_written,
    is_omegaconf,
    plain_omegaconf,
    raw_whole,
    resolve,
    variables_in,
    written_at,
)
from headrace.config.schema import Config, FileDirectives
from headrace.config.validate import Validator
from headrace.config.yaml_reader import MAX_DEPTH, Budget, YamlError, read_file, read_yaml
from headrace.errors import ConfigError
from headrace.options.constraints import field_types, plain

DIRECTIVES = tuple(field_types(FileDirectives))
"""Keys of a file that control its reading, beside those of a configuration."""

_MAX_INCLUDES: Final = 1000  # a file counts each time that it is included
_MAX_CHAIN: Final = 20  # files that include each other
_MAX_PATH: Final = 4096  # characters of a path in a message


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any], *, overrides: Sequence[str] | Mapping[str, Any] = ()
) -> Config:
    """The validated configuration of a YAML file.

    Nothing is downloaded, and no folder is read.

    Args:
        source: Path of a YAML file, or its content as a mapping or an OmegaConf one.
        overrides: Changes to the file, as on a command line: ``train.loader.num_workers=8`` sets a key,
            ``train.streams=[{name: a, local: /a}]`` a list, ``~train.streams.code`` removes a key. Or a mapping
            from such keys to values.

    Returns:
        The configuration, frozen; the top level's batch size and seed are written into the loaders.

    Raises:
        ConfigError: With one line for each mistake: file and line, key, value, rule.
    """
    yaml_source = YamlSource(source, overrides)
    foreign = [key for key in ('train_loader', 'eval_loader') if key in yaml_source.keys]
    yaml_source.refuse(
        Problem(
            (key,),
            "is a key of LLM Foundry's YAML: read it with `headrace.mixing.config_of_foundry`, or turn it into YAML of "
            'headrace with `headrace convert-config`',
        )
        for key in foreign
    )
    validator = Validator(yaml_source.written)
    config = validator.read(Config, yaml_source.plain(validator.problems), also_known=DIRECTIVES)
    yaml_source.refuse(validator.problems)
    return config.inherited()


class YamlSource:
    """A file with its includes, or a mapping, with overrides applied and interpolations unresolved."""

    def __init__(
        self, source: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()
    ) -> None:
        self._values: dict[Any, Any] = {}
        self._places: dict[Path, _KeyPlace] = {}  # of each key: the last one that wrote it
        self._variables: set[str] = set()  # environment variables that interpolations name
        self._budget = Budget()
        self._included = 0
        self._files: dict[str, _File] = {}  # by real path, so that each is read once
        if isinstance(source, (str, os.PathLike)):
            self._label = os.fspath(source)
            self._add_file(FilePath(source), chain=(), asked_by='')
        else:
            self._label = 'the given mapping'
            self._add_mapping(source)
        refuse(self._override(overrides))

    @property
    def keys(self) -> tuple[Any, ...]:
        return tuple(self._values)

    def plain(self, problems: list[Problem], keys: Collection[Any] | None = None) -> dict[Any, Any]:
        """Plain values of some top-level keys, or of all (None). Unresolvable values are noted and omitted."""
        try:
            return resolve(self._values, problems, keys)
        except YamlError as error:
            raise refusal(f'{self._label}: {error}') from error

    def written(self, path: Path, value: object) -> object:
        """The value at a path for messages, with interpolations as they are written."""
        return written_at(self._values, path, value)

    def refuse(self, problems: Iterable[Problem]) -> None:
        located = [(_nearest(self._places, problem.path) or _KeyPlace(self._label), problem) for problem in problems]
        variables = [name for name in self._variables if name in os.environ]
        ordered = sorted(located, key=lambda item: item[0])
        lines = [f'{place}: {as_written(as_line(problem), variables)}' for place, problem in ordered[:MAX_LINES]]
        refuse(lines, count=len(located))

    def _add_file(self, path: FilePath, *, chain: tuple[str, ...], asked_by: str) -> None:
        """Merge a file over the present values, after the files that it includes."""
        try:
            real = os.path.realpath(path)
            if real in chain:
                cycle = ' -> '.join((*chain[chain.index(real) :], real))
                raise refusal(f'{asked_by}files include each other: {cycle}; remove one of these `defaults`')
            if len(chain) > _MAX_CHAIN:
                raise refusal(f'{asked_by}files include each other more than {_MAX_CHAIN} deep; merge some of them')
            file = self._read_file(path, real, asked_by)
        except OSError as error:
            reason = 'no such file' if isinstance(error, FileNotFoundError) else error.strerror or str(error)
            raise refusal(f'{asked_by}{_named(path)}: {reason}') from error
        except ValueError as error:  # the path holds a character that paths cannot have
            if isinstance(error, ConfigError):
                raise
            raise refusal(f'{asked_by}{_named(path)}: not a path: {error}; remove that character') from error
        places = {key: _KeyPlace(_named(path), line) for key, line in file.lines.items()}
        for index, included in enumerate(_included(file.values, places)):
            place = f'{_nearest(places, ("defaults", index))}: defaults[{index}]: '
            self._include(path.parent / included, (*chain, real), place)
        self._merge(file.values, places)

    def _read_file(self, path: FilePath, real: str, asked_by: str) -> _File:
        try:
            if (file := self._files.get(real)) is not None:
                self._budget.charge(file.size)
                return file
            before = self._budget.used
            values, lines = read_yaml(read_file(path), self._budget)
        except YamlError as error:
            line = f':{error.line}' if error.line else ''
            raise refusal(f'{asked_by}{_named(path)}{line}: {error}') from error
        if values is not None and not isinstance(values, dict):
            raise refusal(f'{asked_by}{_named(path)}: must hold a mapping of keys at its top level')
        file = self._files[real] = _File(cast('dict[Any, Any]', values or {}), lines, size=self._budget.used - before)
        return file

    def _include(self, path: FilePath, chain: tuple[str, ...], asked_by: str) -> None:
        self._included += 1
        if self._included > _MAX_INCLUDES:
            raise refusal(f'{asked_by}at most {_MAX_INCLUDES:,} files are included, each time counted; include fewer')
        self._add_file(path, chain=chain, asked_by=asked_by)

    def _add_mapping(self, source: Mapping[str, Any]) -> None:
        """Merge a mapping; files that it includes are relative to the working directory."""
        try:
            # A part of a larger configuration may refer to the whole, which it would lose here.
            if is_omegaconf(source):
                self._variables.update(variables_in(raw_whole(source)))
                values = plain_omegaconf(source)
            else:
                values = _plain(source, (), self._budget)
        except YamlError as error:
            message = f'{self._label}: {as_written(str(error), self._variables)}'  # it quotes what it resolved
            raise refusal(message) from None
        places: dict[Path, _KeyPlace] = {(str(key),): _KeyPlace(self._label) for key in values}
        for index, included in enumerate(_included(values, places)):
            self._include(FilePath(included), (), f'{self._label}: defaults[{index}]: ')
        self._merge(values, places)

    def _override(self, overrides: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """Apply overrides; returns a line for each that fails."""
        if isinstance(overrides, str):
            raise TypeError(f'overrides must be a list of texts, got one text: {overrides!r}; write [{overrides!r}]')
        given: Mapping[str, Any] | None = overrides if isinstance(overrides, Mapping) else None
        mistakes: list[str] = []
        for text in overrides:
            label = f'override {shown(text if given is None else f"{text}={given[text]}")}'
            try:
                key, value = self._parsed(text) if given is None else (text, _plain(given[text], (), self._budget))
                self._override_one(label, key, value)
            except YamlError as error:
                mistakes.append(f'{label}: {error}')
        return mistakes

    def _parsed(self, text: str) -> tuple[str, Any]:
        key, equals, value = text.partition('=')
        if key.startswith('~') and not equals:
            return key, None
        if not equals:
            raise YamlError('has no value; write key=value, or ~key to remove a key')
        try:
            return key, read_yaml(value, self._budget)[0]
        except YamlError as error:
            raise YamlError(f'the value is {error}') from error

    def _override_one(self, label: str, key: str, value: Any) -> None:
        parts = [match[1] if match[1] is not None else match[0] for match in _KEY_PART.finditer(key.removeprefix('~'))]
        if not parts:
            raise YamlError('names no key; write key=value')
        if len(parts) > MAX_DEPTH:
            raise YamlError(f'keys are nested at most {MAX_DEPTH} deep')
        container: Any = self._values
        path: Path = ()
        for part in parts[:-1]:
            step = _step(container, part, path)
            path = (*path, step)
            if isinstance(container, dict) and cast('dict[Any, Any]', container).get(step) is None:
                container[step] = {}
                self._places[path] = _KeyPlace(label)
            container = container[step]
        step = _step(container, parts[-1], path)
        path = (*path, step)
        if key.startswith('~'):
            if isinstance(container, dict) and step not in container:
                raise YamlError(f'there is no key {dotted(path)} to remove')
            del container[step]
            return
        self._variables.update(variables_in(value))
        old = container[step] if isinstance(container, list) else cast('dict[Any, Any]', container).get(step)
        container[step] = _merged(old, value)
        self._places.update(dict.fromkeys([path, *_paths_in(value, path)], _KeyPlace(label)))

    def _merge(self, values: dict[Any, Any], places: dict[Path, _KeyPlace]) -> None:
        self._variables.update(variables_in(values))
        self._values = _merged(self._values, {key: value for key, value in values.items() if key != 'defaults'})
        self._places.update(places)


class _KeyPlace(NamedTuple):
    """The place where a key was written: a file, an override or another source, and the line from 1, or 0 for none."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f'{self.source}:{self.line}' if self.line else self.source


class _File(NamedTuple):
    values: dict[Any, Any]
    lines: dict[Path, int]
    size: int  # number of values; an alias counts at each place


def _named(path: FilePath) -> str:
    text = str(path)
    return text if text.isprintable() and len(text) <= _MAX_PATH else shown(text)


def _included(values: dict[Any, Any], places: Mapping[Path, _KeyPlace]) -> tuple[str, ...]:
    """The `defaults` of one file's values; checks `variables` too, which only interpolation reads."""
    validator = Validator()
    raw = {key: values[key] for key in DIRECTIVES if key in values}
    plain = resolve({'defaults': raw.get('defaults')}, validator.problems)
    directives = validator.read(FileDirectives, {**raw, **plain})
    refuse([f'{_nearest(places, problem.path)}: {as_line(problem)}' for problem in validator.problems])
    return directives.defaults


def _nearest(places: Mapping[Path, _KeyPlace], path: Path) -> _KeyPlace | None:
    return next((places[path[:size]] for size in range(len(path), 0, -1) if path[:size] in places), None)


_SCALARS = (str, int, float)  # and bool, which is an int
_KEY_PART = re.compile(r'\[([^\]]*)\]|[^.\[\]]+')


def _step(container: Any, part: str, path: Path) -> Any:
    if isinstance(container, dict):
        return part
    if isinstance(container, list):
        size = len(cast('list[Any]', container))
        if part.isdecimal() and len(part) < 10 and int(part) < size:
            return int(part)
        raise YamlError(f'{dotted(path)} is a list of {size}; write a position from 0 to {size - 1}, or the whole list')
    if isinstance(container, str) and '${' in container:
        raise YamlError(f'{dotted(path)} is an interpolation, {container}; override what it refers to')
    raise YamlError(f'{dotted(path)} is {shown(container)}, which holds no keys')


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    before, after = cast('dict[Any, Any]', old), cast('dict[Any, Any]', new)
    return {**before, **{key: _merged(before.get(key), value) for key, value in after.items()}}


def _paths_in(value: Any, path: Path) -> list[Path]:
    items: Any = ()
    if isinstance(value, dict):
        items = cast('dict[Any, Any]', value).items()
    elif isinstance(value, list):
        items = enumerate(cast('list[Any]', value))
    return [inner for key, item in items for inner in [(*path, key), *_paths_in(item, (*path, key))]]


def _plain(value: Any, path: Path, budget: Budget) -> Any:
    """A value given in Python as YAML would have it: paths as text, tuples as lists."""
    budget.charge(1)
    if len(path) > MAX_DEPTH:
        raise YamlError(f'mappings and lists are nested more than {MAX_DEPTH} deep')
    if isinstance(value, os.PathLike):
        return os.fspath(cast('os.PathLike[str]', value))
    if isinstance(value, Mapping):
        mapping = cast('Mapping[Any, Any]', value)
        for key in mapping:
            if not isinstance(key, _SCALARS):
                raise YamlError(f'{dotted(path) or "(top level)"}: a key must be text or a number, got {shown(key)}')
        return {key: _plain(item, (*path, str(key)), budget) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, (*path, index), budget) for index, item in enumerate(cast('Sequence[Any]', value))]
    if (number := plain(value)) is None or isinstance(number, _SCALARS):
        return number
    raise YamlError(
        f'{dotted(path) or "(top level)"}: must be a mapping, a list, text, a number, true, false or null, '
        f'got a {type(value).__name__}'
    )
