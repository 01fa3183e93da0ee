"""Values for interpolations (``${...}``), each evaluated once; the only module that knows OmegaConf.

Texts without ``${`` are left as they are. Texts made of references such as ``${train.local}``, and of variables of the
environment such as ``${oc.env:NAME}``, are put together here; OmegaConf evaluates each different variable once.
OmegaConf evaluates all others, with other resolvers or relative references. In its tree, each text with an
interpolation calls back to here. So nothing is evaluated twice, and the limits hold for all references.

Messages show interpolations as they are written, never their values (`written_at`, `as_written`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, cast

from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headrace.config.problems import Path, Problem, shown
from headrace.config.yaml_reader import MAX_DEPTH, Budget, YamlError
from headrace.errors.redaction import SHORTEST

_MAX_TEXT: Final = 4096  # Characters of a text with an interpolation.
_MAX_REFERENCES: Final = 64  # References in one text.
_MAX_RESULT: Final = 16_384  # Characters of a resolved text.
_MAX_PARSED: Final = 1 << 19  # Characters that OmegaConf parses, at up to 60 us each.

_REFERENCE = re.compile(r'\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}', re.ASCII)
_ENVIRONMENT = re.compile(r'\$\{oc\.env:[^${}\\]*\}')
_PIECE = re.compile(r'(\$\{(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|oc\.env:[^${}\\]*)\})', re.ASCII)
_ONCE: Final = 'headrace.once'
_UNRESOLVED: Any = object()
_OPEN: Any = object()


def resolve(values: dict[Any, Any], problems: list[Problem], keys: Collection[Any] | None = None) -> dict[Any, Any]:
    """Values of some keys, or all but `variables`, interpolations resolved; others are omitted, and a problem."""
    resolver = _Resolver(values)
    wanted = [key for key in values if key != 'variables' and (keys is None or key in keys)]
    plain = {key: resolver.read(values[key], (key,), (key,), problems) for key in wanted}
    return {key: value for key, value in plain.items() if value is not _UNRESOLVED}


class _UnresolvableError(Exception):
    """An interpolation has no value; the message is the rule that it breaks."""


class _Resolver:
    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values
        self._budget = Budget()
        self._known: dict[Path | str, Any] = {}  # By the place of a text, or the interpolation of a variable.
        self._parsed = self._depth = 0
        self._tree: DictConfig | None = None
        self._places: list[Path] = []  # Places of the texts that the tree calls back for.
        self._containers: dict[int, Any] = {}  # Results that are mappings or lists.

    def read(self, raw: Any, at: Path, path: Path, problems: list[Problem]) -> Any:
        """The resolved value of a place; problems are noted at `path`, which refers to it."""
        self._budget.charge(1)
        if len(path) > MAX_DEPTH:
            rule = 'cannot be resolved: nested too deeply: does an interpolation refer to a mapping around itself?'
            problems.append(Problem(path, rule, shown(raw, key=str(path[-1]))))
            return _UNRESOLVED
        if isinstance(raw, dict):
            mapping = cast('dict[Any, Any]', raw)
            items = {key: self.read(item, (*at, key), (*path, str(key)), problems) for key, item in mapping.items()}
            return {key: item for key, item in items.items() if item is not _UNRESOLVED}
        if isinstance(raw, list):
            listed = [
                self.read(item, (*at, index), (*path, index), problems)
                for index, item in enumerate(cast('list[Any]', raw))
            ]
            return _UNRESOLVED if any(item is _UNRESOLVED for item in listed) else listed
        if raw == '???':
            problems.append(Problem(path, 'must be set; here, or by an override', "'???'"))
            return _UNRESOLVED
        if not isinstance(raw, str) or '${' not in raw:
            return raw
        whole = _REFERENCE.fullmatch(raw)
        if whole is not None and isinstance(target := self._find(whole[1]), (dict, list)):
            # The mapping is read at its own place, so that mistakes inside it are reported with a path.
            place = tuple(whole[1].split('.'))
            if at[: len(place)] != place:
                return self.read(target, place, path, problems)
        try:
            return self._evaluated(raw, at)
        except _UnresolvableError as error:
            problems.append(Problem(path, str(error), shown(raw, key=str(path[-1]))))
            return _UNRESOLVED

    def _evaluated(self, text: str, at: Path) -> Any:
        return self._once(at, lambda: self._made(text, at))

    def _once(self, key: Path | str, make: Callable[[], Any]) -> Any:
        value = self._known.get(key, _UNRESOLVED)
        if value is _OPEN:
            raise _UnresolvableError('cannot be resolved: Recursive interpolation detected')
        if isinstance(value, _UnresolvableError):
            raise _UnresolvableError(str(value))
        if value is _UNRESOLVED:
            self._known[key] = _OPEN
            self._depth += 1
            try:
                value = self._known[key] = make()
            except _UnresolvableError as error:
                self._known[key] = error
                raise
            finally:
                self._depth -= 1
        return value

    def _made(self, text: str, at: Path) -> Any:
        if len(text) > _MAX_TEXT or text.count('${') > _MAX_REFERENCES:
            raise _UnresolvableError(
                f'a text with interpolations has at most {_MAX_TEXT:,} characters and {_MAX_REFERENCES} interpolations'
            )
        if self._depth > MAX_DEPTH:
            raise _UnresolvableError(f'cannot be resolved: more than {MAX_DEPTH} interpolations refer to each other')
        value = self._of_pieces(text, at)
        if value is _UNRESOLVED:
            value = self._by_omegaconf(text, at)
        if isinstance(value, str) and len(value) > _MAX_RESULT:
            raise _UnresolvableError(f'gives a text of {len(value):,} characters; at most {_MAX_RESULT:,} may come')
        return value

    def _of_pieces(self, text: str, at: Path) -> Any:
        """The value of a text whose interpolations are references by full path, and variables of the environment."""
        parts: list[Any] = _PIECE.split(text)
        if text.count('${') != len(parts) // 2 or '\\' in text:
            return _UNRESOLVED
        if parts[1] == text:
            return self._of_piece(text, at)
        parts[1::2] = [self._of_piece(piece, at) for piece in parts[1::2]]
        return _UNRESOLVED if any(part is _UNRESOLVED for part in parts) else ''.join(map(str, parts))

    def _of_piece(self, piece: str, at: Path) -> Any:
        """The value of one interpolation; unresolved if only OmegaConf can resolve it."""
        if reference := _REFERENCE.fullmatch(piece):
            return self._scalar(reference[1])
        return self._once(piece, lambda: self._by_omegaconf(piece, at))

    def _scalar(self, reference: str) -> Any:
        """The value of a reference; unresolved if only OmegaConf can resolve it."""
        value = self._find(reference)
        if isinstance(value, str) and '${' in value:
            return self._evaluated(value, tuple(reference.split('.')))
        return _UNRESOLVED if value is _UNRESOLVED or value == '???' or isinstance(value, (dict, list)) else value

    def _find(self, reference: str) -> Any:
        """The raw value that a reference points to, if no interpolation is on the way."""
        value: Any = self._values
        for part in reference.split('.'):
            value = cast('dict[Any, Any]', value).get(part, _UNRESOLVED) if isinstance(value, dict) else _UNRESOLVED
        return value

    # -- what is left to OmegaConf ---------------------------------------------------------------------------------

    def _by_omegaconf(self, text: str, at: Path) -> Any:
        self._parsed += len(text)
        if self._parsed > _MAX_PARSED:
            raise YamlError(
                f'texts with interpolations other than ${{path.of.a.key}} have at most {_MAX_PARSED:,} characters '
                f'together, each different ${{oc.env:NAME}} counted once, and these have more; put what they share '
                f'into `variables`, and refer to it'
            )
        token = _CURRENT.set(self)
        try:
            parent: Any = OmegaConf.create({})
            if text.count('${') != len(_ENVIRONMENT.findall(text)):
                parent = self._whole()
                for part in at[:-1]:
                    parent = parent[part]
            # OmegaConf's only private name here: it resolves a text at a place without storing it there.
            node: Any = AnyNode(text, key=at[-1], parent=parent)._dereference_node()
            return self._plain(node if isinstance(node, (DictConfig, ListConfig)) else node._value(), 0)
        except (OmegaConfBaseException, RecursionError, ValueError, TypeError, KeyError, IndexError) as error:
            raise _UnresolvableError(_rule(error)) from None
        finally:
            _CURRENT.reset(token)

    def _whole(self) -> DictConfig:
        """The tree for OmegaConf, in which texts with interpolations call back."""
        if self._tree is None:
            # OmegaConf 2.4 renamed it, and warns about the old name.
            register: Any = getattr(OmegaConf, 'register_resolver', None) or OmegaConf.register_new_resolver
            register(_ONCE, lambda number: _CURRENT.get().call_back(number), replace=True)
            self._tree = cast('DictConfig', OmegaConf.create(self._calling_back(self._values, ())))
        return self._tree

    def _calling_back(self, raw: Any, at: Path) -> Any:
        if isinstance(raw, dict):
            mapping = cast('dict[Any, Any]', raw)
            return {key: self._calling_back(item, (*at, key)) for key, item in mapping.items() if key is not None}
        if isinstance(raw, list):
            return [self._calling_back(item, (*at, index)) for index, item in enumerate(cast('list[Any]', raw))]
        if isinstance(raw, str) and '${' in raw:
            self._places.append(at)
            return f'${{{_ONCE}:{len(self._places) - 1}}}'
        return raw

    def call_back(self, number: int) -> Any:
        if number in self._containers:
            return self._containers[number]
        at = self._places[number]
        raw: Any = self._values
        for part in at:
            raw = raw[part]
        value = self._evaluated(raw, at)
        if isinstance(value, (dict, list)):
            value = self._containers[number] = OmegaConf.create(_escaped(value))
        return value

    def _plain(self, value: Any, depth: int) -> Any:
        self._budget.charge(1)
        if depth > MAX_DEPTH:
            raise _UnresolvableError('cannot be resolved: nested too deeply')
        if isinstance(value, DictConfig):
            return {key: self._plain(value[key], depth + 1) for key in value}
        if isinstance(value, ListConfig):
            return [self._plain(value[index], depth + 1) for index in range(len(value))]
        return value


_CURRENT: ContextVar[_Resolver] = ContextVar('resolver')


def _rule(error: BaseException) -> str:
    """The rule that an error of OmegaConf's breaks, or the one of ours that it wraps."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _UnresolvableError):
            return str(cause)
        if isinstance(cause, YamlError):
            raise cause
        if isinstance(cause, RecursionError):
            return 'cannot be resolved: too many interpolations refer to each other'
        cause = cause.__cause__ or cause.__context__
    text = str(error).strip().split('\n', 1)[0] or type(error).__name__
    if match := re.search(r"Environment variable '(.+?)' not found", text):
        name = match[1]
        return f'environment variable {name} is not set; set it, or write a default: ${{oc.env:{name},default}}'
    return f'cannot be resolved: {text[:200]}'


# -- mappings of OmegaConf, and YAML -----------------------------------------------------------------------------------


def is_omegaconf(source: object) -> bool:
    return isinstance(source, DictConfig)


def raw_whole(source: Any) -> object:
    """The raw values of the whole that OmegaConf's mapping is a part of, if it is one."""
    return None if source._get_parent() is None else OmegaConf.to_container(source._get_root())


def plain_omegaconf(source: Any) -> dict[Any, Any]:
    """The raw values of OmegaConf's mapping; resolved values for a part that refers to a larger whole."""
    try:
        return cast('dict[Any, Any]', OmegaConf.to_container(source, resolve=source._get_parent() is not None))
    except (OmegaConfBaseException, RecursionError, ValueError) as error:
        raise YamlError(str(error).strip().split('\n', 1)[0][:200] or type(error).__name__) from None


def yaml_text(values: Mapping[str, Any]) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(values)))


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in cast('dict[str, Any]', value).items()}
    if isinstance(value, list):
        return [_escaped(item) for item in cast('list[Any]', value)]
    return value.replace('${', '\\${') if isinstance(value, str) else value


def written_at(values: Any, path: Path, value: object) -> object:
    """The raw value at `path` if it holds an interpolation; else `value`."""
    node: Any = values
    for part in path:
        if isinstance(node, str) and '${' in node:
            return node
        key: Any = part
        if isinstance(node, dict) and part not in node and str(part).isdecimal():
            key = int(part)
        try:
            node = node[key]
        except (LookupError, TypeError):
            return value
    return node if any(_interpolations_in(node)) else value


def variables_in(values: Any) -> Iterator[str]:
    for text in _interpolations_in(values):
        yield from re.findall(r'oc\.env:\s*([^,}\s]+)', text)


def as_written(text: str, variables: Iterable[str]) -> str:
    """A text with the values of these variables replaced by the interpolations that they came from."""
    for name in sorted(variables):
        if len(value := os.environ.get(name, '')) >= SHORTEST:
            text = text.replace(value, f'${{oc.env:{name}}}')
    return text


def _interpolations_in(values: Any) -> Iterator[str]:
    if isinstance(values, dict):
        values = list(cast('dict[Any, Any]', values).values())
    if isinstance(values, list):
        for item in cast('list[Any]', values):
            yield from _interpolations_in(item)
    elif isinstance(values, str) and '${' in values:
        yield values
