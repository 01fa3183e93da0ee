"""From raw values to frozen dataclasses, or to the list of all their mistakes.

The dataclasses are the only list of keys. Their annotations say names, types, bounds and choices. An annotation is a
plain type, ``Literal[...]``, ``X | None``, another dataclass, ``Mapping[str, X]`` or ``Sequence[X]``.
``Annotated[...]`` adds a constraint of `headrace.options`, such as `AtLeast`. A key that is ``null`` in a file is left
out.

Rules between keys belong to the dataclass: an optional method ``cross_field_errors`` yields the broken ones. A rule is
dropped when one of its keys is wrong or misspelt, so that one mistake gives one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args, get_origin

from headrace.config.problems import LONGEST_NAME, Path, Problem, closest, did_you_mean, dotted, shown
from headrace.config.yaml_reader import read_file
from headrace.errors import ConfigError
from headrace.errors.exclusions import BrokenRule
from headrace.format import bytes_to_int, number_abbrev_to_int
from headrace.options.constraints import (
    AtLeast,
    Bytes,
    Count,
    MoreThan,
    Named,
    Parsed,
    choices_of,
    field_types,
    plain,
    unwrap,
)
from headrace.order.state import decisions_in
from headrace.selection import Mistake


def read_decisions(value: object, mistakes: list[Mistake]) -> tuple[Mapping[str, Any], ...]:
    """Read decisions, or a JSON file of them or of a position, for `Parsed`; add their mistake to `mistakes`."""
    try:
        given = json.loads(read_file(value)) if isinstance(value, str) else value
        return tuple(decision.to_json() for decision in decisions_in(cast('Any', given)))
    except (OSError, ValueError, RecursionError) as error:  # such as those of headrace
        mistakes.append(Mistake((), value, f'must be a list of decisions, or a JSON file of them: {error}'))
        return ()


T = TypeVar('T')
_INVALID: Any = object()
_SUGGESTIONS: Final = 200  # wrong keys for which similar ones are looked for, which takes milliseconds each
_YAML_SCALAR = re.compile(r'[-+]?[\d.]+(e[-+]?\d+)?|true|false', re.IGNORECASE)
_DECODE_HINT = '; the value is text: write it without quotes, or, from the environment, ${oc.decode:${oc.env:NAME}}'


class Validator:
    """Reads raw values into dataclasses, and collects mistakes; `written` gives the text of a place, for messages."""

    def __init__(self, written: Callable[[Path, object], object] = lambda _, value: value) -> None:
        self.problems: list[Problem] = []
        self._written = written
        self._outer: list[_Outer] = []  # the dataclasses around the value being read
        self._earlier: dict[Path, list[Problem]] | None = None  # those from before, by each section around them

    def read(self, cls: type[T], raw: Mapping[Any, Any], path: Path = (), *, also_known: tuple[str, ...] = ()) -> T:
        """The dataclass that `raw` describes. Wrong values are noted and replaced by defaults."""
        hints = field_types(cls)
        values: dict[str, Any] = {}
        if 'name' in hints and path and isinstance(path[-1], str):
            values['name'] = path[-1]
        if self._earlier is None:
            self._earlier = {}
            for problem in self.problems:
                for size in range(len(problem.path)):
                    self._earlier.setdefault(problem.path[:size], []).append(problem)
        before = len(self.problems)
        self._outer.append(_Outer(path, cls, raw))
        for key, value in raw.items():
            if key not in hints:
                meant = self._suggest(str(key), (*hints, *also_known))
                rule = f'unknown key{did_you_mean(meant)}'
                where = (*path, str(key))
                self.problems.append(Problem(where, rule, self._shown(where, value), tuple(meant)))
            elif key == 'name' and 'name' in values:
                if value is not None and value != values['name']:
                    rule = f"the name is the key that it stands at, '{values['name']}'; remove `name`"
                    self.problems.append(Problem((*path, key), rule, self._shown((*path, key), value)))
            elif value is not None:
                values[key] = self._value(hints[key], value, (*path, key))
        self._outer.pop()
        result = cls(**{key: value for key, value in values.items() if value is not _INVALID})
        inside = [*self._earlier.get(path, ()), *self.problems[before:]]
        self._check(result, path, raw, inside, invalid={key for key, value in values.items() if value is _INVALID})
        return result

    def _check(
        self, config: object, path: Path, given: Mapping[Any, Any], inside: list[Problem], *, invalid: set[str]
    ) -> None:
        """Note the broken rules between keys of `config`, except rules about a key that is wrong by itself."""
        wrong, wrong_inside = set[object](invalid), set[object]()
        for problem in inside:
            here = len(problem.path) == len(path) + 1
            (wrong if here else wrong_inside).update(problem.path[-1:], problem.meant)
        rules: Callable[[], Iterable[BrokenRule]] = getattr(config, 'cross_field_errors', tuple)
        for broken in rules():
            if wrong.isdisjoint(broken.keys) and wrong_inside.isdisjoint(broken.inner):
                at = next(((key,) for key in broken.keys if given.get(key) is not None), ())
                self.problems.append(Problem((*path, *at), broken.rule, self._got(given, broken.keys, path)))

    def _value(self, hint: Any, value: Any, path: Path) -> Any:
        (hint, constraint), value = unwrap(hint), plain(value)
        if isinstance(constraint, Named):
            return self._named(hint, constraint, value, path)
        if isinstance(constraint, (Count, Bytes)):
            return self._sized(constraint, value, path)
        if isinstance(constraint, Parsed):
            return self._parsed(constraint, value, path)
        if dataclasses.is_dataclass(hint) or get_origin(hint) is Mapping:
            if not isinstance(value, Mapping):
                return self._wrong(path, value, f'must be a mapping of keys{_how_to_write(hint, value)}')
            mapping = cast('Mapping[Any, Any]', value)
            return (
                self._mapping(hint, mapping, path) if get_origin(hint) else self.read(cast('Any', hint), mapping, path)
            )
        if get_origin(hint) in (tuple, Sequence):
            if not isinstance(value, list):
                return self._wrong(path, value, 'must be a list')
            item_hint = get_args(hint)[0]
            items = [self._value(item_hint, item, (*path, i)) for i, item in enumerate(cast('list[Any]', value))]
            return _INVALID if _INVALID in items else tuple(items)
        choices = choices_of(hint, constraint)
        if choices:
            if value in choices:
                return value
            suggestions = closest(str(value), choices)
            return self._wrong(path, value, f'must be one of {", ".join(choices)}{did_you_mean(suggestions)}')
        if hint is bool:
            return value if isinstance(value, bool) else self._wrong(path, value, 'must be true or false', scalar=True)
        if hint is str:
            if not isinstance(value, str) or not value:
                return self._wrong(path, value, 'must be text that is not empty')
            return value
        return self._number(hint, constraint, value, path)

    def _mapping(self, hint: Any, value: Mapping[Any, Any], path: Path) -> Any:
        item_hint = get_args(hint)[1]
        if item_hint in (object, Any):
            return value
        items = {str(key): self._value(item_hint, item, (*path, str(key))) for key, item in value.items()}
        return _INVALID if _INVALID in items.values() else items

    def _number(self, hint: Any, constraint: AtLeast | MoreThan | None, value: Any, path: Path) -> Any:
        rule = f'must be {describe_number(hint, constraint)}'
        if not _is_number(value, int if hint is int else (int, float)):
            return self._wrong(path, value, rule, scalar=True)
        if constraint is not None and not constraint.holds(value):
            return self._wrong(path, value, rule)
        return hint(value)

    def _sized(self, constraint: Count | Bytes, value: Any, path: Path) -> Any:
        number = value
        if isinstance(value, str):
            with contextlib.suppress(ConfigError):
                number = bytes_to_int(value) if isinstance(constraint, Bytes) else number_abbrev_to_int(value)
        # YAML reads 1e6 as a float; a number with a fraction is a mistake.
        if not _is_number(number, (int, float)) or number < constraint.least or number != int(number):
            return self._wrong(path, value, f'must be {describe_number(int, constraint)}')
        return int(number)

    def _parsed(self, constraint: Parsed, value: Any, path: Path) -> Any:
        mistakes: list[Mistake] = []
        made = constraint.read(value, mistakes)
        for mistake in mistakes:
            self._wrong((*path, *mistake.path), mistake.value, mistake.rule)
        return _INVALID if mistakes else made

    def _named(self, hint: Any, constraint: Named, value: Any, path: Path) -> Any:
        item_type: type[Any] = get_args(hint)[0]
        if isinstance(value, Mapping):
            mapping = cast('Mapping[Any, Any]', value)
            if constraint.or_single and _is_single(mapping, tuple(field_types(item_type))):
                return (self.read(item_type, mapping, path),)
            for key in mapping:
                if not isinstance(key, str) or not key:
                    self._wrong((*path, str(key)), key, f'the name of a {constraint.what} must be text: quote it')
            items = [((*path, key), item) for key, item in mapping.items() if isinstance(key, str) and key]
        elif isinstance(value, list) and not constraint.or_single:
            items = [((*path, index), item) for index, item in enumerate(cast('list[Any]', value))]
        else:
            rule = f'map {constraint.what} names to {constraint.what}s'
            if constraint.or_single:
                rule = f'be one {constraint.what}, or {rule}{_how_to_write(item_type, value)}'
            else:
                rule += f', or be a list of {constraint.what}s'
            return self._wrong(path, value, f'must {rule}')
        if not value:
            return self._wrong(path, value, f'holds no {constraint.what}; name at least one')
        results: list[Any] = []
        names: dict[str, int] = {}
        for where, item in items:
            if not isinstance(item, Mapping):
                written = _how_to_write(item_type, item)
                self._wrong(where, item, f'must be a mapping with the keys of a {constraint.what}{written}')
            else:
                results.append(self.read(item_type, cast('Mapping[Any, Any]', item), where))
                self._check_name(results[-1].name, len(results) - 1, names, where, constraint)
        return tuple(results) if len(results) == len(cast('Mapping[Any, Any] | list[Any]', value)) else _INVALID

    def _check_name(self, name: str, number: int, others: dict[str, int], where: Path, constraint: Named) -> None:
        if not name:
            rule = f'must be set: each {constraint.what} of a list says its name'
            if not any(problem.path == (*where, 'name') for problem in self.problems[-len(where) :]):
                self.problems.append(Problem((*where, 'name'), rule))
        elif (other := others.setdefault(name, number)) != number:
            rule = f'is the name of {dotted((*where[:-1], other))} too; names must differ'
            self.problems.append(Problem((*where, 'name'), rule, self._shown((*where, 'name'), name)))

    def _wrong(self, path: Path, value: object, rule: str, *, scalar: bool = False) -> Any:
        if scalar and isinstance(value, str) and _YAML_SCALAR.fullmatch(value.strip()):
            rule += _DECODE_HINT
        self.problems.append(Problem(path, rule, self._shown(path, value)))
        return _INVALID

    def _shown(self, path: Path, value: object) -> str:
        return shown(self._written(path, value), key=str(path[-1]) if path else '')

    def _got(self, given: Mapping[Any, Any], keys: tuple[str, ...], path: Path) -> str | None:
        scalars = {key: given[key] for key in keys if isinstance(given.get(key), (str, int, float))}
        return ', '.join(f'{key}: {self._shown((*path, key), value)}' for key, value in scalars.items()) or None

    def _suggest(self, key: str, here: tuple[str, ...]) -> list[str]:
        """Keys similar to an unknown one: other programs' names of this section's, those around, the most similar."""
        if len(self.problems) >= _SUGGESTIONS or len(key) > LONGEST_NAME:
            return []
        path, cls, raw = self._outer[-1]
        other_names: Callable[[], Mapping[str, tuple[str, ...]]] = getattr(cls, 'other_names', dict)
        if called_so := other_names().get(key.lower(), ()):
            return [name for name in called_so if name in here]
        elsewhere = [(*path, *inner) for inner in _inner_keys(cls, raw)]
        for outer in reversed(self._outer[:-1]):
            elsewhere += [(*outer.path, name) for name in field_types(outer.cls) if name != 'name']
        by_name = {str(other[-1]): dotted(other) for other in reversed(elsewhere)}
        if key in by_name:
            return [by_name[key]]
        return closest(key, here) or [by_name[name] for name in closest(key, tuple(by_name))]


class _Outer(NamedTuple):
    path: Path
    cls: type
    raw: Mapping[Any, Any]


def _how_to_write(cls: Any, value: object) -> str:
    names = field_types(cls) if dataclasses.is_dataclass(cls) and isinstance(cls, type) else {}
    if not isinstance(value, str) or not names:
        return ''
    if 'remote' in names:
        return '; write a folder as `{local: FOLDER}`, a URL as `{remote: URL}`'
    return f'; its keys are {", ".join(names)}'


def _is_number(value: Any, kinds: type | tuple[type, ...]) -> bool:
    # The order counts in 64 bits; the comparison is false for nan, and for infinities.
    return isinstance(value, kinds) and not isinstance(value, bool) and -(2**63) < value < 2**63


def describe_number(hint: Any, constraint: AtLeast | MoreThan | Count | Bytes | None) -> str:
    noun = 'an integer' if hint is int else 'a number'
    return noun if constraint is None else f'{noun} {constraint}'


def _inner_keys(cls: type, raw: Mapping[Any, Any]) -> Iterator[tuple[str, ...]]:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name, hint in field_types(cls).items():
        inner, constraint = unwrap(hint)
        given = raw.get(name)
        is_there = isinstance(given, Mapping) or fields[name].default is not None
        if dataclasses.is_dataclass(inner) and not isinstance(constraint, Parsed) and is_there:
            inner_cls = cast('type', inner)
            inside = cast('Mapping[Any, Any]', given) if isinstance(given, Mapping) else {}
            yield from ((name, key) for key in field_types(inner_cls) if key != 'name')
            yield from ((name, *rest) for rest in _inner_keys(inner_cls, inside))


def _is_single(value: Mapping[Any, Any], keys: tuple[str, ...]) -> bool:
    """Whether a mapping is one item rather than a mapping from names to items, misspelt keys allowed for."""
    inner = [cast('Mapping[Any, Any]', item) for item in value.values() if isinstance(item, Mapping)]
    if len(inner) < len(value) or not value.keys().isdisjoint(keys):
        return True
    if any(not item.keys().isdisjoint(keys) for item in inner):
        return False
    return any(closest(str(key), keys) for key in list(value)[:_SUGGESTIONS])
