"""YAML as plain values, in bounded time and memory, even for hostile files."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Any, Final

import yaml

from headrace.config.problems import Path
from headrace.errors import ConfigError

MAX_DEPTH: Final = 50  # mappings and lists within each other
MAX_VALUES: Final = 300_000  # values of a configuration: keys and items of all its files, overrides and aliases
_MAX_BYTES: Final = 16 << 20  # of one file
_MAX_DIGITS: Final = 100  # of a number; Python's own limit is 4,300, and it converts in quadratic time


class YamlError(ConfigError):
    """A text is not YAML, or exceeds a limit. The message does not quote the text."""

    line: int = 0  # from 1; 0 if unknown

    def at(self, line: int) -> YamlError:
        self.line = line
        return self


class Budget:
    def __init__(self) -> None:
        self.used = 0  # values so far

    def charge(self, values: int, line: int = 0) -> None:
        self.used += values
        if self.used > MAX_VALUES:
            raise YamlError(
                f'a configuration has at most {MAX_VALUES:,} values, included files and aliases counted each time; '
                f'this one has more. Write fewer keys'
            ).at(line)


def read_file(path: str | os.PathLike[str]) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not wait for a writer
    except ValueError as error:  # a NUL, or a letter that no file name can have
        raise YamlError(f'not a path: {error}; remove that character') from error
    with open(descriptor, 'rb') as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = 'a FIFO' if stat.S_ISFIFO(mode) else 'a device or a socket'
            raise YamlError(f'must be a file, but is {kind}; write the text into a file')
        data = file.read(_MAX_BYTES + 1)
    if data is None:  # pyright: ignore[reportUnnecessaryComparison] - a file of the kernel without data for now
        raise BlockingIOError(errno.EAGAIN, 'no data')
    if len(data) > _MAX_BYTES:
        raise YamlError(f'a file has at most {_MAX_BYTES:,} bytes, and this one has more. Write less')
    try:
        return data.decode('utf-8')
    except UnicodeDecodeError as error:
        raise YamlError(f'not UTF-8 text ({error.reason} at byte {error.start})') from None


def read_yaml(text: str, budget: Budget) -> tuple[Any, dict[Path, int]]:
    """The value of a YAML text, None if it is empty, and the line of each key and item that is written out.

    An alias is the same object wherever it stands, and must not be changed. Numbers are those of OmegaConf: ``1e6`` is
    one, and a date is text.
    """
    reader = _Reader(text, budget)
    return reader.document(), reader.lines


_InC: type[yaml.SafeLoader] = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)  # where PyYAML was built with it


class _Parser(_InC):
    """Events, and the rules for plain scalars."""


_Parser.add_implicit_resolver(
    'tag:yaml.org,2002:float',
    re.compile(
        r"""^(?:
         [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
        |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list('-+0123456789.'),
)
_Parser.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != 'tag:yaml.org,2002:timestamp']
    for first, resolvers in _Parser.yaml_implicit_resolvers.items()
}

_TAG: Final = 'tag:yaml.org,2002:'
_TOO_DEEP: Final = f'mappings and lists are nested more than {MAX_DEPTH} deep'
_MERGE: Any = object()
_OPEN: Any = object()


class _Reader:
    def __init__(self, text: str, budget: Budget) -> None:
        self._text, self._budget = text, budget
        self._anchors: dict[str, tuple[Any, int]] = {}
        self.lines: dict[Path, int] = {}

    def document(self) -> Any:
        try:
            self._parser: Any = _Parser(self._text)
            self._next()  # the begin of the stream
            if self._parser.check_event(yaml.StreamEndEvent):
                return None
            self._next()
            value = self._value(self._next(), ())
            self._next()
            if not self._parser.check_event(yaml.StreamEndEvent):
                raise self._error('holds several documents; keep one', self._next())
        except yaml.YAMLError as error:
            mark = getattr(error, 'problem_mark', None)
            reason = getattr(error, 'problem', None) or getattr(error, 'reason', None) or 'it cannot be parsed'
            if 'nesting depth' in reason:  # libyaml, from 0.2.6, has a limit of its own, and reads ahead of events
                reason = _TOO_DEEP
            raise YamlError(f'not valid YAML: {reason}').at(0 if mark is None else mark.line + 1) from None
        except UnicodeError as error:
            raise YamlError('not valid YAML: it has characters that are not Unicode') from error
        else:
            return value

    def _next(self) -> Any:
        return self._parser.get_event()

    def _error(self, reason: str, event: Any) -> YamlError:
        return YamlError(f'not valid YAML: {reason}').at(event.start_mark.line + 1)

    def _value(self, event: Any, path: Path) -> Any:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._error('found undefined alias', event)
            value, size = self._anchors[event.anchor]
            if value is _OPEN:
                raise self._error('an alias refers to a value that contains it', event)
            self._budget.charge(size, event.start_mark.line + 1)
            return value
        before = self._budget.used
        self._budget.charge(1, event.start_mark.line + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = _OPEN, 0
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif len(path) >= MAX_DEPTH:
            raise self._error(_TOO_DEEP, event)
        elif event.tag not in (None, '!', f'{_TAG}map', f'{_TAG}seq'):
            raise self._unknown_tag(event.tag, event)
        else:
            value = self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._sequence(path)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._budget.used - before
        return value

    def _sequence(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            here = (*path, len(items))
            self.lines[here] = event.start_mark.line + 1
            items.append(self._value(event, here))
        return items

    def _mapping(self, path: Path) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
                raise self._error('a key must be text or a number', event)
            is_alias = isinstance(event, yaml.AliasEvent)
            key = self._value(event, path) if is_alias else self._scalar(event, is_key=True)
            if isinstance(key, (dict, list)):
                raise self._error('a key must be text or a number', event)
            if not is_alias and event.anchor is not None:
                self._anchors[event.anchor] = event.value if key is _MERGE else key, 1
            # Merged keys have no lines of their own; messages give that of the mapping around them.
            here = (*path, '<<' if key is _MERGE else key)
            self.lines[here] = event.start_mark.line + 1
            value = self._value(self._next(), here)
            if key is _MERGE:
                self._merge(merged, value, event)
            elif key in values:
                raise self._error(f'found duplicate key {str(key)[:80]}', event)
            else:
                values[key] = value
        return {**merged, **values}

    def _merge(self, merged: dict[Any, Any], value: Any, event: Any) -> None:
        """Add the mappings of a merge key; the first of several wins."""
        mappings: list[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(mapping, dict) for mapping in mappings):
            raise self._error('a merge key (<<) needs a mapping, or a list of mappings', event)
        for mapping in reversed(mappings):
            merged.update(mapping)

    def _scalar(self, event: Any, *, is_key: bool = False) -> Any:
        text, tag = event.value, event.tag
        if tag is None or tag == '!':
            if not event.implicit[0]:
                return text
            tag = self._parser.resolve(yaml.ScalarNode, text, event.implicit)
        kind = tag.removeprefix(_TAG)
        if kind == 'merge' and is_key:
            return _MERGE
        if kind in ('str', 'value', 'merge'):
            return text
        if kind in ('int', 'float') and len(text) > _MAX_DIGITS:
            rule = f'a number has at most {_MAX_DIGITS} digits, got {len(text):,}; quote it if it is text'
            raise self._error(rule, event)
        try:
            if kind == 'null':
                return None
            if kind == 'bool':
                return self._parser.bool_values[text.lower()]
            node = yaml.ScalarNode(tag, text)
            if kind == 'int':
                return self._parser.construct_yaml_int(node)
            if kind == 'float':
                return self._parser.construct_yaml_float(node)
        except (ValueError, KeyError, IndexError, OverflowError):
            raise self._error(f'not a value of type {kind}; quote it if it is text', event) from None
        raise self._unknown_tag(tag, event)

    def _unknown_tag(self, tag: str, event: Any) -> YamlError:
        return self._error(f'could not determine a constructor for the tag {tag[:80]!r}', event)
