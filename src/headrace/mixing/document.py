"""From a file, a mapping and overrides to plain values, and back to YAML; the only module that knows OmegaConf.

1. Files are read with what they include (``defaults``) and merged: mappings key by key, anything else replaced.
2. Overrides are laid on top.
3. Interpolations are resolved, over the merged whole.

Each key's origin, a file and line or an override, is kept on the way, for messages.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from headrace.mixing.interpolations import as_written, variables_in, written_at
from headrace.mixing.schema import FileDirectives
from headrace.mixing.validate import Path, Problem, Validator, as_line, dotted, field_types, refusal, refuse, shown

__all__ = ['DIRECTIVES', 'Document', 'yaml_text']

DIRECTIVES = tuple(field_types(FileDirectives))
"""Keys of a file that say how it is read, beside those of a configuration."""

_MAX_DEPTH = 20  # a mapping that contains an interpolation of itself is deeper than any configuration


class Document:
    """A file with what it includes, or a mapping, and overrides on top; its interpolations not resolved yet.

    Args:
        source: Path of a YAML file, or its content as a mapping or an OmegaConf one.
        overrides: What goes over it, as in `load_config`.

    Raises:
        ConfigError: A file cannot be read, or an override has no place.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any] | DictConfig,
        overrides: Sequence[str] | Mapping[str, Any] = (),
    ) -> None:
        self._layers = _Layers()
        if isinstance(source, (str, os.PathLike)):
            self._label = os.fspath(source)
            self._layers.add_file(FilePath(source), chain=(), asked_by='')
        else:
            self._label = 'the given mapping'
            self._layers.add_mapping(source, self._label)
        refuse(self._layers.override(overrides))

    @property
    def keys(self) -> tuple[Any, ...]:
        """The keys at the top level."""
        return tuple(self._layers.values)

    def plain(self, problems: list[Problem], keys: Collection[Any] | None = None) -> dict[Any, Any]:
        """Plain values of some keys of the top level, None: of all; what cannot be resolved is noted and left out."""
        return _resolve(self._layers.values, problems, keys)

    def written(self, path: Path, value: object) -> object:
        """What stands at a path, for messages: an interpolation in the place of the value that it resolves to."""
        return written_at(self._layers.values, path, value)

    def refuse(self, problems: Iterable[Problem]) -> None:
        """Raise one ConfigError for all problems, with where each was written; do nothing if there are none."""
        located = [
            (
                self._layers.origin(problem.path) or _Origin(self._label),
                as_written(as_line(problem), self._layers.variables),
            )
            for problem in problems
        ]
        refuse([f'{origin}: {line}' for origin, line in sorted(located, key=lambda item: item[0])])


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Origin:
    """Where a key was written."""

    source: str
    """A file, an override, or what else a message can point to."""
    line: int = 0
    """From 1; 0 where the source has no lines."""

    def __str__(self) -> str:
        return f'{self.source}:{self.line}' if self.line else self.source


class _Layers:
    """Raw values merged from files, mappings and overrides, and where each key came from."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self._origins: dict[Path, _Origin] = {}
        self.variables: set[str] = set()  # of the environment, that interpolations name

    def origin(self, path: Path) -> _Origin | None:
        """Where the key at `path`, or else the nearest one around it, was written."""
        return _nearest(self._origins, path)

    def add_file(self, path: FilePath, *, chain: tuple[FilePath, ...], asked_by: str) -> None:
        """Merge a file over what there is, after the files that it includes."""
        real = path.resolve()
        if real in chain:
            cycle = ' -> '.join(str(file) for file in (*chain[chain.index(real) :], real))
            raise refusal(f'{asked_by}files include each other: {cycle}; remove one of these `defaults`')
        values, lines = _read_file(path, asked_by)
        origins = {key: _Origin(str(path), line) for key, line in lines.items()}
        for index, included in enumerate(_included(values, origins)):
            asked = f'{_nearest(origins, ("defaults", index))}: defaults[{index}]: '
            self.add_file(path.parent / included, chain=(*chain, real), asked_by=asked)
        self._merge(values, origins)

    def add_mapping(self, source: Mapping[str, Any] | DictConfig, label: str) -> None:
        """Merge a mapping; files that it includes are relative to the working directory."""
        try:
            # A part of a larger configuration refers to the whole, which it would lose here.
            config = source if isinstance(source, DictConfig) else OmegaConf.create(_as_text(source))
            is_part = config._get_parent() is not None
            if is_part:
                self.variables.update(variables_in(OmegaConf.to_container(config._get_root())))
            values = cast('dict[Any, Any]', OmegaConf.to_container(config, resolve=is_part))
        except OmegaConfBaseException as error:
            raise refusal(
                f'{label}: {as_written(_first_line(error), self.variables)}'
            ) from None  # it quotes what it resolved
        origins: dict[Path, _Origin] = {(str(key),): _Origin(label) for key in values}
        for index, included in enumerate(_included(values, origins)):
            self.add_file(FilePath(included), chain=(), asked_by=f'{label}: defaults[{index}]: ')
        self._merge(values, origins)

    def override(self, overrides: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """Lay overrides on top; returns a line for each that cannot be."""
        if isinstance(overrides, str):
            raise TypeError(f'overrides must be a list of texts, got one text: {overrides!r}; write [{overrides!r}]')
        items = (
            [(f'override {shown(f"{key}={value}")}', key, _as_text(value)) for key, value in overrides.items()]
            if isinstance(overrides, Mapping)
            else [(f'override {shown(text)}', *_parse_override(text)) for text in overrides]
        )
        return [f'{label}: {wrong}' for label, key, value in items if (wrong := self._override_one(label, key, value))]

    def _override_one(self, label: str, key: str, value: Any) -> str | None:
        """Set or remove one key; returns what is wrong with that, or None."""
        parts = [match[1] if match[1] is not None else match[0] for match in _KEY_PART.finditer(key.removeprefix('~'))]
        if isinstance(value, _Malformed) or not parts:
            return value.rule if isinstance(value, _Malformed) else 'names no key; write key=value'
        *outer, last = parts
        container: Any = self.values
        path: Path = ()
        for part in outer:
            if not _holds(container, part):
                return _no_place(path, container)
            step = _step(container, part)
            path = (*path, step)
            if isinstance(container, dict) and cast('dict[Any, Any]', container).get(step) is None:
                container[step] = {}
                self._origins[path] = _Origin(label)
            container = container[step]
        if not _holds(container, last):
            return _no_place(path, container)
        step = _step(container, last)
        path = (*path, step)
        if key.startswith('~'):
            if isinstance(container, dict) and step not in container:
                return f'there is no key {dotted(path)} to remove'
            del container[step]
            return None
        self.variables.update(variables_in(value))
        old = container[step] if isinstance(container, list) else cast('dict[Any, Any]', container).get(step)
        container[step] = _merged(old, value)
        self._origins.update(dict.fromkeys([path, *_paths_in(value, path)], _Origin(label)))
        return None

    def _merge(self, values: dict[Any, Any], origins: dict[Path, _Origin]) -> None:
        self.variables.update(variables_in(values))
        self.values = _merged(self.values, {key: value for key, value in values.items() if key != 'defaults'})
        self._origins.update(origins)


def _read_file(path: FilePath, asked_by: str) -> tuple[dict[Any, Any], dict[Path, int]]:
    """The raw values of one file, and the line of each key."""
    try:
        text = path.read_text(encoding='utf-8')
        config = OmegaConf.create(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = _key_lines(node, ()) if node is not None else {}
    except OSError as error:
        reason = 'no such file' if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise refusal(f'{asked_by}{path}: {reason}') from error
    except UnicodeDecodeError as error:
        raise refusal(f'{asked_by}{path}: not UTF-8 text ({error.reason} at byte {error.start})') from None
    except yaml.YAMLError as error:
        mark = getattr(error, 'problem_mark', None)
        line = '' if mark is None else f':{mark.line + 1}'
        reason = getattr(error, 'problem', None) or _first_line(error)
        raise refusal(f'{asked_by}{path}{line}: not valid YAML: {reason}') from None  # it quotes the file
    except (OmegaConfBaseException, RecursionError) as error:
        raise refusal(f'{asked_by}{path}: not valid: {_first_line(error)}') from None
    if not isinstance(config, DictConfig) or (node is not None and not isinstance(node, yaml.MappingNode)):
        raise refusal(f'{asked_by}{path}: must hold a mapping of keys at its top level')
    return cast('dict[Any, Any]', OmegaConf.to_container(config)), lines


def _key_lines(node: yaml.Node, path: Path) -> dict[Path, int]:
    lines: dict[Path, int] = {}
    items: list[tuple[Any, Any, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        # A merge key (<<) or a key that is no scalar has no path of its own: what is in it counts to its parent.
        items = [(key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
    elif isinstance(node, yaml.SequenceNode):
        items = [(index, value, value) for index, value in enumerate(node.value)]
    for part, place, value in items:
        lines[(*path, part)] = place.start_mark.line + 1
        lines.update(_key_lines(value, (*path, part)))
    return lines


def _included(values: dict[Any, Any], origins: Mapping[Path, _Origin]) -> tuple[str, ...]:
    """The `defaults` of one file's values; checks `variables` too, which only interpolation reads."""
    validator = Validator()
    raw = {key: values[key] for key in DIRECTIVES if key in values}
    plain = _resolve({'defaults': raw.get('defaults')}, validator.problems)
    directives = validator.read(FileDirectives, {**raw, **plain})
    refuse([f'{_nearest(origins, problem.path)}: {as_line(problem)}' for problem in validator.problems])
    return directives.defaults


def _nearest(origins: Mapping[Path, _Origin], path: Path) -> _Origin | None:
    return next((origins[path[:size]] for size in range(len(path), 0, -1) if path[:size] in origins), None)


@dataclasses.dataclass(frozen=True)
class _Malformed:
    """In the place of an override's value that cannot be read: what is wrong with it."""

    rule: str


_KEY_PART = re.compile(r'\[([^\]]*)\]|[^.\[\]]+')


def _parse_override(text: str) -> tuple[str, Any]:
    """``key=value`` as a key and a value, read as YAML; ``~key`` has no value."""
    key, equals, value = text.partition('=')
    if key.startswith('~') and not equals:
        return key, None
    if not equals:
        return key, _Malformed('has no value; write key=value, or ~key to remove a key')
    try:
        return key, cast('dict[str, Any]', OmegaConf.to_container(OmegaConf.create(f'value: {value}')))['value']
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        return key, _Malformed(f'the value is not valid YAML: {_first_line(error)}')


def _holds(container: Any, part: str) -> bool:
    """Whether `part` of an override's key can stand in the container."""
    if isinstance(container, list):
        return part.isdecimal() and int(part) < len(cast('list[Any]', container))
    return isinstance(container, dict)


def _step(container: Any, part: str) -> Any:
    return int(part) if isinstance(container, list) else part


def _no_place(path: Path, container: Any) -> str:
    if isinstance(container, str) and '${' in container:
        return f'{dotted(path)} is an interpolation, {container}; override what it refers to'
    if isinstance(container, list):
        size = len(cast('list[Any]', container))
        return f'{dotted(path)} is a list of {size}; write a position from 0 to {size - 1}, or the whole list'
    return f'{dotted(path)} is {shown(container)}, which holds no keys'


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


def _resolve(values: dict[Any, Any], problems: list[Problem], keys: Collection[Any] | None = None) -> dict[Any, Any]:
    """Plain values of some keys, or all, interpolations resolved; one that cannot be is left out, a problem noted."""
    try:
        root = OmegaConf.create(cast('Any', values))
    except (OmegaConfBaseException, RecursionError) as error:
        problems.append(Problem((), _first_line(error)))
        return {}
    wanted = [key for key in values if key != 'variables' and (keys is None or key in keys)]
    plain = {key: _resolved(root, key, (key,), problems) for key in wanted}
    return {key: value for key, value in plain.items() if value is not _UNRESOLVED}


_UNRESOLVED: Any = object()


def _resolved(parent: DictConfig | ListConfig, key: Any, path: Path, problems: list[Problem]) -> Any:
    try:
        if len(path) > _MAX_DEPTH:
            raise RecursionError('nested too deeply: does an interpolation refer to a mapping around itself?')
        value = cast('Any', parent)[key]
    except MissingMandatoryValue:
        problems.append(Problem(path, 'must be set; here, or by an override', "'???'"))
        return _UNRESOLVED
    except (OmegaConfBaseException, RecursionError, ValueError, TypeError) as error:
        written = cast('Any', OmegaConf.to_container(parent, resolve=False))[key]
        problems.append(Problem(path, _interpolation_rule(error), shown(written, key=str(path[-1]))))
        return _UNRESOLVED
    if isinstance(value, DictConfig):
        items = {inner: _resolved(value, inner, (*path, str(inner)), problems) for inner in value}
        return {inner: item for inner, item in items.items() if item is not _UNRESOLVED}
    if isinstance(value, ListConfig):
        listed = [_resolved(value, index, (*path, index), problems) for index in range(len(value))]
        return _UNRESOLVED if any(item is _UNRESOLVED for item in listed) else listed
    return value


def _interpolation_rule(error: Exception) -> str:
    text = _first_line(error)
    if match := re.search(r"Environment variable '(.+?)' not found", text):
        name = match[1]
        return f'environment variable {name} is not set; set it, or write a default: ${{oc.env:{name},default}}'
    return f'cannot be resolved: {text}'


def _first_line(error: BaseException) -> str:
    return str(error).strip().split('\n', 1)[0] or type(error).__name__


def _as_text(value: Any) -> Any:
    """A mapping given in Python, paths turned into text."""
    if isinstance(value, os.PathLike):
        return os.fspath(cast('os.PathLike[str]', value))
    if isinstance(value, Mapping):
        return {key: _as_text(item) for key, item in cast('Mapping[Any, Any]', value).items()}
    if isinstance(value, (list, tuple)):
        return [_as_text(item) for item in cast('Sequence[Any]', value)]
    return value


def yaml_text(values: Mapping[str, Any]) -> str:
    """Plain values as YAML that is read back as equal ones."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(values)))


def _escaped(value: Any) -> Any:
    """Text that happens to look like an interpolation, such that it is read back as text."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in cast('dict[str, Any]', value).items()}
    if isinstance(value, list):
        return [_escaped(item) for item in cast('list[Any]', value)]
    return value.replace('${', '\\${') if isinstance(value, str) else value
