"""From raw values to frozen dataclasses, or to the list of everything that is wrong with them.

The dataclasses are the only list of keys: names, types, bounds and choices are read from their annotations.
The annotations understood are ``bool``, ``int``, ``float``, ``str``, ``Literal[...]``, ``X | None``, another
dataclass, ``Mapping[str, X]``, and ``Annotated[...]`` with one of `marks`. ``null`` in a file means that the
key is left out.

Rules between keys belong to the dataclass: an optional method ``broken_rules`` yields those that do not hold. A rule
is dropped when one of its keys is itself wrong or misspelt, so that one mistake gives one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from headrace.errors import ConfigError
from headrace.format import bytes_to_int, number_abbrev_to_int
from headrace.mixing.marks import AtLeast, BrokenRule, Bytes, Count, MoreThan, Named, OneOf, Parsed
from headrace.redaction import HIDDEN, redact_value
from headrace.selection import Mistake

__all__ = ['Problem', 'Validator', 'dotted']

Path = tuple[str | int, ...]
"""Where a value stands: the keys from the root, an integer for an item of a list."""

T = TypeVar('T')


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration."""

    path: Path
    rule: str
    got: str | None = None
    """The value received, as text; None where there is none."""
    meant: tuple[str, ...] = ()
    """The keys that the last of the path may have meant."""


def dotted(path: Path) -> str:
    """``('train', 'streams', 0, 'local')`` as ``train.streams[0].local``."""
    text = ''
    for part in path:
        if isinstance(part, int):
            text += f'[{part}]'
        elif not part or re.search(r'[.\[\]=]', part):
            text += f'[{part}]'  # as OmegaConf writes a key that itself holds a dot
        else:
            text += f'.{part}' if text else part
    return text


def shown(value: object, *, key: str = '') -> str:
    """A value for a message: short, and without secrets. An interpolation is none."""
    if not (isinstance(value, str) and value.startswith('${')):
        value = redact_value(value, key)
    if value == HIDDEN:
        return '(hidden)'
    # true and null are YAML's words; the rest reads the same in Python and in YAML.
    text = {'True': 'true', 'False': 'false', 'None': 'null'}.get(repr(value), repr(value))
    return text if len(text) <= 80 else text[:77] + '...'


_INVALID: Any = object()
_YAML_SCALAR = re.compile(r'[-+]?[\d.]+(e[-+]?\d+)?|true|false', re.IGNORECASE)
_DECODE_HINT = '; the value is text: write it without quotes, or, from the environment, ${oc.decode:${oc.env:NAME}}'


class Validator:
    """Reads raw values into dataclasses and collects what is wrong on the way.

    Args:
        written: Gives what a file has in the place of a value, for messages: an interpolation, not what it resolves
            to. Called with the value's path and the value.
    """

    def __init__(self, written: Callable[[Path, object], object] = lambda _, value: value) -> None:
        self.problems: list[Problem] = []
        self._written = written
        self._outer: list[tuple[Path, type]] = []  # the dataclasses around the value being read

    def read(self, cls: type[T], raw: Mapping[Any, Any], path: Path = (), *, also_known: tuple[str, ...] = ()) -> T:
        """The dataclass that `raw` describes; where a value is wrong, a problem is noted and the default stands.

        Args:
            cls: A dataclass all of whose fields have defaults.
            raw: Plain values, interpolations resolved.
            path: Where `raw` stands.
            also_known: Keys that are not fields but that a misspelt key may have meant.
        """
        hints = field_types(cls)
        values: dict[str, Any] = {}
        if 'name' in hints and path and isinstance(path[-1], str):
            values['name'] = path[-1]
        self._outer.append((path, cls))
        for key, value in raw.items():
            if key not in hints:
                meant = self._suggest(str(key), (*hints, *also_known))
                rule = f'unknown key{_did_you_mean(meant)}'
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
        self._check(result, path, raw, invalid={key for key, value in values.items() if value is _INVALID})
        return result

    def _check(self, config: object, path: Path, given: Mapping[Any, Any], *, invalid: set[str]) -> None:
        """Note the rules between keys that `config` breaks, but for those about a key that is wrong by itself."""
        wrong, wrong_inside = set[object](invalid), set[object]()
        for problem in self.problems:
            if problem.path[: len(path)] == path:
                here = len(problem.path) == len(path) + 1
                (wrong if here else wrong_inside).update(problem.path[-1:], problem.meant)
        for broken in cast('_HasRules', config).broken_rules() if hasattr(config, 'broken_rules') else ():
            if wrong.isdisjoint(broken.keys) and wrong_inside.isdisjoint(broken.inner):
                at = next(((key,) for key in broken.keys if given.get(key) is not None), ())
                self.problems.append(Problem((*path, *at), broken.rule, self._got(given, broken.keys, path)))

    def _value(self, hint: Any, value: Any, path: Path) -> Any:
        hint, mark = unwrap(hint)
        if isinstance(mark, Named):
            return self._named(hint, mark, value, path)
        if isinstance(mark, (Count, Bytes)):
            return self._sized(mark, value, path)
        if isinstance(mark, Parsed):
            return self._parsed(mark, value, path)
        if dataclasses.is_dataclass(hint) or get_origin(hint) is Mapping:
            if not isinstance(value, Mapping):
                return self._wrong(path, value, 'must be a mapping of keys')
            mapping = cast('Mapping[Any, Any]', value)
            return (
                self._mapping(hint, mapping, path)
                if get_origin(hint)
                else self.read(cast('type[Any]', hint), mapping, path)
            )
        if get_origin(hint) is tuple:
            if not isinstance(value, list):
                return self._wrong(path, value, 'must be a list')
            item_hint = get_args(hint)[0]
            items = [self._value(item_hint, item, (*path, i)) for i, item in enumerate(cast('list[Any]', value))]
            return _INVALID if _INVALID in items else tuple(items)
        choices = choices_of(hint, mark)
        if choices:
            if value in choices:
                return value
            suggestions = _closest(str(value), choices)
            return self._wrong(path, value, f'must be one of {", ".join(choices)}{_did_you_mean(suggestions)}')
        if hint is bool:
            return value if isinstance(value, bool) else self._wrong(path, value, 'must be true or false', scalar=True)
        if hint is str:
            if not isinstance(value, str) or not value:
                return self._wrong(path, value, 'must be text that is not empty')
            return value
        return self._number(hint, mark, value, path)

    def _mapping(self, hint: Any, value: Mapping[Any, Any], path: Path) -> Any:
        item_hint = get_args(hint)[1]
        if item_hint is object:
            return value
        items = {str(key): self._value(item_hint, item, (*path, str(key))) for key, item in value.items()}
        return _INVALID if _INVALID in items.values() else items

    def _number(self, hint: Any, mark: AtLeast | MoreThan | None, value: Any, path: Path) -> Any:
        rule = f'must be {describe_number(hint, mark)}'
        if not _is_number(value, int if hint is int else (int, float)):
            return self._wrong(path, value, rule, scalar=True)
        if (isinstance(mark, AtLeast) and value < mark.bound) or (isinstance(mark, MoreThan) and value <= mark.bound):
            return self._wrong(path, value, rule)
        return hint(value)

    def _sized(self, mark: Count | Bytes, value: Any, path: Path) -> Any:
        number = value
        if isinstance(value, str):
            with contextlib.suppress(ConfigError):
                number = bytes_to_int(value) if isinstance(mark, Bytes) else number_abbrev_to_int(value)
        # YAML reads 1e6 as a float; a number with a fraction is a mistake.
        if not _is_number(number, (int, float)) or number < mark.least or number != int(number):
            return self._wrong(path, value, f'must be {describe_number(int, mark)}')
        return int(number)

    def _parsed(self, mark: Parsed, value: Any, path: Path) -> Any:
        mistakes: list[Mistake] = []
        made = mark.read(value, mistakes)
        for mistake in mistakes:
            self._wrong((*path, *mistake.path), mistake.value, mistake.rule)
        return _INVALID if mistakes else made

    def _named(self, hint: Any, mark: Named, value: Any, path: Path) -> Any:
        item_type: type[Any] = get_args(hint)[0]
        if isinstance(value, Mapping):
            mapping = cast('Mapping[Any, Any]', value)
            if mark.or_single and _is_single(mapping, tuple(field_types(item_type))):
                return (self.read(item_type, mapping, path),)
            for key in mapping:
                if not isinstance(key, str) or not key:
                    self._wrong((*path, str(key)), key, f'the name of a {mark.what} must be text: quote it')
            items = [((*path, key), item) for key, item in mapping.items() if isinstance(key, str) and key]
        elif isinstance(value, list) and not mark.or_single:
            items = [((*path, index), item) for index, item in enumerate(cast('list[Any]', value))]
        else:
            expected = 'one loader, or a mapping from names' if mark.or_single else 'a mapping from names, or a list,'
            return self._wrong(path, value, f'must be {expected} to {mark.what}s')
        if not value:
            return self._wrong(path, value, f'holds no {mark.what}; name at least one')
        results: list[Any] = []
        for where, item in items:
            if not isinstance(item, Mapping):
                self._wrong(where, item, f'must be a mapping with the keys of a {mark.what}')
            else:
                results.append(self.read(item_type, cast('Mapping[Any, Any]', item), where))
                self._check_name(results, where, mark)
        return tuple(results) if len(results) == len(cast('Mapping[Any, Any] | list[Any]', value)) else _INVALID

    def _check_name(self, results: list[Any], where: Path, mark: Named) -> None:
        name, others = results[-1].name, [other.name for other in results[:-1]]
        if not name:
            rule = f'must be set: each {mark.what} of a list says its name'
            if not any(problem.path == (*where, 'name') for problem in self.problems):
                self.problems.append(Problem((*where, 'name'), rule))
        elif name in others:
            rule = f'is the name of {dotted((*where[:-1], others.index(name)))} too; names must differ'
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
        """What an unknown key may have meant: the same name elsewhere first, then the most similar ones here."""
        path, cls = self._outer[-1]
        elsewhere = [(*path, *inner) for inner in _inner_keys(cls)]
        for outer_path, outer_cls in reversed(self._outer[:-1]):
            elsewhere += [(*outer_path, outer) for outer in field_types(outer_cls) if outer != 'name']
        by_name = {str(other[-1]): dotted(other) for other in reversed(elsewhere)}
        if key in by_name:
            return [by_name[key]]
        return _closest(key, here) or [by_name[name] for name in _closest(key, tuple(by_name))]


class _HasRules(Protocol):
    def broken_rules(self) -> Iterator[BrokenRule]: ...


def _is_number(value: Any, kinds: type | tuple[type, ...]) -> bool:
    # The order counts in 64 bits; the comparison is false for nan, and for infinities.
    return isinstance(value, kinds) and not isinstance(value, bool) and -(2**63) < value < 2**63


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """The fields of a dataclass and their resolved annotations, marks included."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def choices_of(hint: Any, mark: Any) -> tuple[str, ...]:
    """The texts that a value must be one of; none where it is not bound to a list."""
    return mark.names if isinstance(mark, OneOf) else get_args(hint) if get_origin(hint) is Literal else ()


def describe_number(hint: Any, mark: AtLeast | MoreThan | Count | Bytes | None) -> str:
    """``an integer of at least 1``, ``a number greater than 0``."""
    noun = 'an integer' if hint is int else 'a number'
    return noun if mark is None else f'{noun} {mark}'


def refuse(lines: list[str]) -> None:
    """Raise one ConfigError for all the lines; do nothing if there are none."""
    if lines:
        raise refusal(*lines)


def refusal(*lines: str) -> ConfigError:
    """One error for everything that is wrong."""
    count = 'one error' if len(lines) == 1 else f'{len(lines)} errors'
    return ConfigError(f'{count} in the configuration:\n' + '\n'.join(f'  {line}' for line in lines))


def as_line(problem: Problem) -> str:
    """A problem without its file: the key, the value received, the rule."""
    got = '' if problem.got is None else f'got {problem.got}; '
    return f'{dotted(problem.path) or "(top level)"}: {got}{problem.rule}'


def unwrap(hint: Any) -> tuple[Any, Any]:
    """An annotation without ``| None`` and ``Annotated``, and the mark of the latter or None."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
    return get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)


def _inner_keys(cls: type) -> Iterator[tuple[str, ...]]:
    for name, hint in field_types(cls).items():
        inner, mark = unwrap(hint)
        if dataclasses.is_dataclass(inner) and not isinstance(mark, Parsed):
            inner_cls = cast('type', inner)
            yield from ((name, key) for key in field_types(inner_cls) if key != 'name')
            yield from ((name, *rest) for rest in _inner_keys(inner_cls))


def _is_single(value: Mapping[Any, Any], keys: tuple[str, ...]) -> bool:
    """Whether a mapping is one item rather than a mapping from names to items, misspelt keys allowed for."""
    inner = [cast('Mapping[Any, Any]', item) for item in value.values() if isinstance(item, Mapping)]
    if len(inner) < len(value) or not value.keys().isdisjoint(keys):
        return True
    if any(not item.keys().isdisjoint(keys) for item in inner):
        return False
    return any(_closest(str(key), keys) for key in value)


def _closest(text: str, names: tuple[str, ...]) -> list[str]:
    """The names most similar to `text`: one, or those that tie for it."""
    lowered = [name.lower() for name in names]
    best = difflib.get_close_matches(text.lower(), lowered, n=len(names), cutoff=0.6)
    score = difflib.SequenceMatcher(None, best[0], text.lower()).ratio() if best else 1.0
    # What ties with the best one is as likely, and is found by the same measure.
    ties = {other for other in best if difflib.SequenceMatcher(None, other, text.lower()).ratio() == score}
    return [name for name in names if name.lower() in ties]


def _did_you_mean(suggestions: list[str]) -> str:
    quoted = ' or '.join(f'"{name}"' for name in suggestions)
    return f'; did you mean {quoted}?' if quoted else ''
