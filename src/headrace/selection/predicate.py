"""Which samples a `where` keeps: conditions on columns, or a function with a name.

Conditions are a mapping from columns to tests, all of which must hold: ``{lang: [de, fr], tokens: {at_least: 512}}``.
A test is a value (equals), a list of values (in), or a mapping of the operators of `OPERATORS`.
"""

from __future__ import annotations

import difflib
import json
import pickle
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Complex, Number
from types import NoneType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError, ShardError, StreamError
from headrace.format import ShardInfo, ShardReader
from headrace.format.encodings.encoding import NullFileError

OPERATORS: Final = ('equals', 'in', 'at_least', 'below', 'length', 'not')
"""The operators of a test of a value; `length` and `not` hold a test again."""
_NULL: Final = {'equals': None}

Mask: TypeAlias = npt.NDArray[np.bool_]
T = TypeVar('T')


class Mistake(NamedTuple):
    """One thing that is wrong with a value that describes a selection."""

    path: tuple[str | int, ...]  # Where in the value.
    value: object
    rule: str


def refusal(what: str, mistakes: Sequence[Mistake]) -> StreamError:
    """The error for a value given in Python; three mistakes of it say enough."""
    lines = [f'{what}{"".join(f"[{part!r}]" for part in m.path)}: got {m.value!r}; {m.rule}' for m in mistakes[:3]]
    return StreamError('. '.join(lines) + '.')


def read_given(
    name: str, raw: object, read: Callable[[object, list[Mistake]], T | None], error: type[HeadraceError]
) -> T | None:
    """An argument as `read` returns it; None for None. The error names the first mistake."""
    mistakes: list[Mistake] = []
    predicate = None if raw is None else read(raw, mistakes)
    if mistakes:
        path, value, rule = mistakes[0]
        raise error(f'`{name}{"".join(f"[{part!r}]" for part in path)}` {rule}, but is {value!r:.100}.')
    return predicate


class Predicate(Protocol):
    """A rule that decides of each sample whether a stream offers it."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that it looks at; None for all."""
        ...

    @property
    def text(self) -> str:
        """Its identity: the same text, the same samples."""
        ...

    def evaluate(self, info: ShardInfo, reader: ShardReader, rows: npt.NDArray[np.int64]) -> Mask:
        """Which of the rows int64[n] of a shard are kept, bool[n]; StreamError: values of another kind."""
        ...


class Where:
    """A predicate that is a function of a sample.

    It is called once for each sample, by one thread at a time. Its results are kept on disk under `name`, so the same
    name means the same function. Give another name when it changes.

    Args:
        function: takes a sample, a dict of columns; true keeps it. It must depend on nothing else.
        name: what the function is called in checkpoints, in errors and in the name of its file.
        columns: the columns that the sample has; reading fewer is faster. None gives all.

    Raises:
        StreamError: no function, or no name.
    """

    def __init__(
        self, function: Callable[[dict[str, Any]], object], *, name: str, columns: Sequence[str] | None = None
    ) -> None:
        if not callable(function):
            raise StreamError(f'Where takes a function of a sample, but got {function!r}.')
        if not isinstance(cast('object', name), str) or not name:
            raise StreamError(f'The name of a Where must be text that is not empty, but is {name!r}.')
        is_list = columns is None or (columns and not isinstance(columns, str))
        if not is_list or not all(isinstance(cast('object', column), str) for column in columns or ()):
            raise StreamError(f'The columns of a Where must be a list of names, but are {columns!r}.')
        self.function = function
        self.name = name
        self.columns: tuple[str, ...] | None = None if columns is None else tuple(columns)

    def __repr__(self) -> str:
        return f'Where(name={self.name!r}, columns={self.columns!r})'

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers need what was evaluated, not the function, which may be one that cannot be pickled, such as a lambda.
        try:
            pickle.dumps(self.function)
        except (pickle.PicklingError, AttributeError, TypeError):
            return _where, (_not_here, self.name, self.columns)
        return _where, (self.function, self.name, self.columns)

    @property
    def text(self) -> str:
        return f'function {json.dumps(self.name)}'

    def evaluate(self, info: ShardInfo, reader: ShardReader, rows: npt.NDArray[np.int64]) -> Mask:
        if self.columns is None:
            kept = [bool(self.function(_sample(info, reader, row))) for row in rows.tolist()]
        else:
            columns = _read(info, reader, rows, self.columns)
            # Numbers become Python's; an array stays one array for each sample.
            values = [
                column.tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else column
                for column in columns.values()
            ]
            names = list(columns)
            kept = [bool(self.function(dict(zip(names, row, strict=True)))) for row in zip(*values, strict=True)]
        return np.array(kept, np.bool_)


def _where(function: Callable[[dict[str, Any]], object], name: str, columns: tuple[str, ...] | None) -> Where:
    return Where(function, name=name, columns=columns)


def _not_here(_: dict[str, Any]) -> object:
    raise StreamError(
        'The function of a Where was not sent to this process, because it cannot be pickled. Write it at the top level '
        'of a module, or make the dataset in this process.'
    )


Scalar: TypeAlias = 'str | int | float | bool | None'
Test: TypeAlias = 'tuple[tuple[str, Any], ...]'  # Operators and operands, sorted: a value, a tuple of values, or a test


@dataclass(frozen=True, slots=True)
class Conditions:
    """A predicate that is written down: tests of columns, all of which must hold."""

    tests: tuple[tuple[str, Test], ...]  # Columns and their tests, sorted by column.

    @classmethod
    def read(cls, raw: object, mistakes: list[Mistake]) -> Conditions | None:
        """The conditions that a mapping of plain values describes; None if there are mistakes, which are noted."""
        before = len(mistakes)
        if not isinstance(raw, Mapping) or not raw:
            rule = 'must be a mapping from columns to tests, such as {lang: de, tokens: {at_least: 512}}'
            mistakes.append(Mistake((), raw, rule))
            return None
        tests: list[tuple[str, Test]] = []
        for column, test in cast('Mapping[Any, Any]', raw).items():
            if not isinstance(column, str) or not column:
                mistakes.append(Mistake((str(column),), column, 'the name of a column is text: quote it'))
            elif test is None:  # as YAML reads a value that was forgotten
                rule = 'equals takes a text or a finite number; write {not: null} or {equals: null}, if null is meant'
                mistakes.append(Mistake((column,), test, rule))
            else:
                tests.append((column, _read_test(test, (column,), mistakes)))
        return cls(tuple(sorted(tests, key=lambda item: item[0]))) if len(mistakes) == before else None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for column, _ in self.tests)

    @property
    def plain(self) -> dict[str, Any]:
        """The mapping that gives these conditions."""
        return {column: _plain_test(test) for column, test in self.tests}

    @property
    def text(self) -> str:
        return json.dumps(self.plain, sort_keys=True, separators=(', ', ': '))

    def evaluate(self, info: ShardInfo, reader: ShardReader, rows: npt.NDArray[np.int64]) -> Mask:
        columns = _read(info, reader, rows, self.columns)
        kept = np.ones(len(rows), np.bool_)
        for column, test in self.tests:
            meaning = info.schema.meaning_of.get(column, '')
            values, name = columns[column], f'{column!r}{meaning and f", of {meaning},"}'
            if meaning.startswith('decimal') and isinstance(values, list):  # texts, where some are null
                values = _as_decimals(cast('list[Any]', values))
            kept &= _holds(test, values, name)
        return kept


def _as_decimals(values: list[Any]) -> list[Any]:
    from decimal import Decimal

    return [Decimal(value) if isinstance(value, str) else value for value in values]


def _read(
    info: ShardInfo, reader: ShardReader, rows: npt.NDArray[np.int64], names: Collection[str]
) -> Mapping[str, Any]:
    """Columns of the rows of a shard, each an array or a list; nulls among files are None."""
    batch = info.schema.allocate(len(rows), names)
    try:
        reader.gather(rows, np.arange(len(rows)), batch)
    except ShardError as error:
        if not isinstance(error.__cause__, NullFileError):
            raise
    else:
        return batch.columns
    numbers, outs = rows.tolist(), range(len(rows))
    for name in names:
        column = info.schema.allocate(len(rows), (name,))
        for out in outs:
            try:
                reader.gather_few(numbers, outs, range(out, out + 1), column)
            except ShardError as error:  # noqa: PERF203
                if not isinstance(error.__cause__, NullFileError):
                    raise
        batch.columns[name] = column.columns[name]
    return batch.columns


def _sample(info: ShardInfo, reader: ShardReader, row: int) -> dict[str, Any]:
    """A sample, in which nulls among files are None."""
    try:
        return reader.sample(row)
    except ShardError as error:
        if not isinstance(error.__cause__, NullFileError):
            raise
    columns = _read(info, reader, np.array([row]), info.schema.names)
    return {name: columns[name][0] for name in info.schema.names}


def check_columns(predicate: Predicate, shards: Sequence[ShardInfo], title: str) -> None:
    schemas = {id(info.schema): info for info in reversed(shards)}
    for info in sorted(schemas.values(), key=lambda info: info.files[0].raw.basename):
        for column in predicate.columns or ():
            if column not in info.schema.names:
                raise StreamError(
                    f'`where` of stream {title} names the column {column!r}, but {info.files[0].raw.basename} has the '
                    f'columns {", ".join(info.schema.names)}{_did_you_mean(column, info.schema.names)}'
                )


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    closest = difflib.get_close_matches(name, names, n=1)
    return f'; did you mean "{closest[0]}"?' if closest else '.'


# -- reading tests -----------------------------------------------------------------------------------------------------


def _read_test(raw: object, path: tuple[str | int, ...], mistakes: list[Mistake]) -> Test:
    if isinstance(raw, (list, tuple)):
        return _read_operator('in', raw, path, mistakes)
    if not isinstance(raw, Mapping):
        return _read_operator('equals', raw, path, mistakes)
    if not raw:
        mistakes.append(Mistake(path, raw, f'must hold an operator: {", ".join(OPERATORS)}'))
    items = cast('Mapping[Any, Any]', raw).items()
    test = [check for name, operand in items for check in _read_operator(name, operand, (*path, name), mistakes)]
    return tuple(sorted(test, key=lambda item: item[0]))


def _read_operator(name: Any, operand: object, path: tuple[str | int, ...], mistakes: list[Mistake]) -> Test:
    """The test of one operator; empty if it is wrong."""
    if name not in OPERATORS:
        rule = f'unknown operator; must be one of {", ".join(OPERATORS)}{_did_you_mean(str(name), OPERATORS)}'
        mistakes.append(Mistake((*path[:-1], str(name)), operand, rule.rstrip('.')))
    elif name in ('length', 'not'):
        return ((name, _read_test(operand, path, mistakes)),)
    elif name == 'in':
        return ((name, _read_values(operand, path, mistakes)),)
    elif not (operand is None or _is_scalar(operand)) or (name != 'equals' and isinstance(operand, (bool, NoneType))):
        mistakes.append(Mistake(path, operand, f'{name} takes a text or a finite number'))
    else:
        return ((name, operand),)
    return ()


def _read_values(raw: object, path: tuple[str | int, ...], mistakes: list[Mistake]) -> tuple[Scalar, ...]:
    if not isinstance(raw, (list, tuple)) or not raw:
        mistakes.append(Mistake(path, raw, 'must be a list of values, at least one'))
        return ()
    values = cast('Sequence[Any]', raw)
    wrong = [Mistake((*path, i), value, 'must be a text or a finite number') for i, value in enumerate(values)
             if not (value is None or _is_scalar(value))]  # fmt: skip
    if not wrong and len({_kind(value) for value in values if value is not None}) > 1:
        wrong = [Mistake(path, raw, 'must be all text or all numbers')]
    mistakes += wrong
    return () if wrong else tuple(sorted(set(values), key=lambda value: (value is not None, value)))


def _is_scalar(value: object) -> bool:
    # Numbers beyond 64 bits are in no column; the comparison is false for nan.
    return isinstance(value, str) or (isinstance(value, (int, float)) and -(2**63) <= value < 2**64)


def _plain_test(test: Test) -> Any:
    plain = {name: _plain_test(operand) if name in ('length', 'not') else operand for name, operand in test}
    plain |= {name: list(operand) for name, operand in plain.items() if name == 'in'}
    return next(iter(plain.values())) if list(plain) in (['equals'], ['in']) and plain != _NULL else plain


# -- evaluating tests --------------------------------------------------------------------------------------------------


def _holds(test: Test, values: Any, column: str) -> Mask:
    """For which values of a column, an array [n, ...] or a list, a test holds; bool[n]."""
    if isinstance(values, list) and any(_leaves_null_out(*check) for check in test):  # the other tests need no null
        kept = np.fromiter((value is not None for value in cast('list[Any]', values)), np.bool_, len(values))
        values = [value for value in cast('list[Any]', values) if value is not None]
        if values:
            kept[kept] = _holds_for_each(test, values, column)
        return kept
    return _holds_for_each(test, values, column)


def _holds_for_each(test: Test, values: Any, column: str) -> Mask:
    kept = np.ones(len(values), np.bool_)
    for operator, operand in test:
        kept &= _HOLDS[operator](values, operand, column)
    return kept


def _leaves_null_out(operator: str, operand: Any) -> bool:
    """Whether a test is ``not: null``, or ``not`` a list with null."""
    if operator != 'not' or len(operand) != 1:
        return False
    ((what, value),) = operand
    return value is None or (what == 'in' and None in value)


def _compare(operator: str, values: Any, operand: Scalar, column: str) -> Mask:
    _require_kind(values, operand, column, operator)
    compare, (operand,) = _COMPARE[operator], _like(values, (operand,))
    if operand is None:
        return np.fromiter((value is None for value in values), np.bool_, len(values))
    if isinstance(values, np.ndarray):
        return compare(values, operand)
    from decimal import InvalidOperation, localcontext  # only for values that may be some

    with localcontext() as context:
        context.traps[InvalidOperation] = False  # decimals that are not numbers pass no comparison
        return np.fromiter((compare(value, operand) for value in values), np.bool_, len(values))


def _is_in(values: Any, operands: tuple[Scalar, ...], column: str) -> Mask:
    kept = np.zeros(len(values), np.bool_)
    if isinstance(values, np.ndarray):
        for operand in operands:
            kept |= _compare('equals', values, operand, column)
        return kept
    some = [value for value in values if value is not None] if None in operands else values
    _require_kind(some, operands[-1], column, 'in')
    among = frozenset(_like(values, operands))
    return np.fromiter((value in among for value in values), np.bool_, len(values))


def _like(values: Any, operands: tuple[Scalar, ...]) -> tuple[Any, ...]:
    """Operands to compare with values: 0.1 is the decimal 0.1 among decimals, not the float that is closest to it."""
    is_decimal = (isinstance(value, Number) and not isinstance(value, Complex) for value in values)
    if isinstance(values, np.ndarray) or not any(is_decimal):
        return operands
    from decimal import Decimal

    return tuple(Decimal(repr(operand)) if isinstance(operand, float) else operand for operand in operands)


def _has_length(values: Any, test: Test, column: str) -> Mask:
    lengths = np.empty(len(values), np.int64)
    if isinstance(values, np.ndarray) and values.ndim > 1:
        lengths[:] = values.shape[1]
    else:
        for i, value in enumerate(values):
            if not isinstance(value, (str, bytes, list, tuple, Mapping)) and np.ndim(value) == 0:
                raise _wrong_kind(column, value, 'length', 'a text, bytes, a list or an array')
            lengths[i] = len(value)
    return _holds(test, lengths, column)


_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    'equals': lambda value, operand: value == operand,
    'at_least': lambda value, operand: value >= operand,
    'below': lambda value, operand: value < operand,
}
_HOLDS: Final[dict[str, Callable[[Any, Any, str], Mask]]] = {
    **{operator: partial(_compare, operator) for operator in _COMPARE},
    'in': _is_in,
    'length': _has_length,
    'not': lambda values, test, column: ~_holds(test, values, column),
}


def _kind(value: object) -> str:
    return 'text' if isinstance(value, str) else 'number' if isinstance(value, Number) else 'other'


def _require_kind(values: Any, operand: Scalar, column: str, operator: str) -> None:
    """Refuse to compare text with numbers, which are never equal: what was meant would be kept or left out unseen."""
    if operand is None:  # any value is null, or not
        return
    wanted = _kind(operand)
    if isinstance(values, np.ndarray):
        if len(values) and (values.ndim > 1 or wanted != 'number'):
            raise _wrong_kind(column, values[0], operator, f'the {wanted} {operand!r}')
        return
    for value in values:
        if _kind(value) != wanted:
            raise _wrong_kind(column, value, operator, f'the {wanted} {operand!r}')


def _wrong_kind(column: str, value: object, operator: str, wanted: str) -> StreamError:
    text = repr(value)
    shown = text if len(text) <= 40 else text[:37] + '...'
    needs = f'needs {wanted}' if operator == 'length' else f'compares with {wanted}'
    fix = 'Compare text with text (in YAML, quote it) and numbers with numbers.'
    if re.search(', of (date|time|duration)', column):
        fix = 'Compare with whole numbers, as the column has them: times since 1970 in this unit.'
    if value is None:
        fix = 'Say what becomes of null: `not: null` beside the other tests of the column leaves it out.'
    elif isinstance(value, (list, np.ndarray)):
        fix = "Test the number of its items, as with {'length': {'at_least': 5}}, or all of it with a `Where`."
    return StreamError(
        f'`where`: the column {column} holds {type(value).__name__} values such as {shown}, but {operator} {needs}. '
        f'{fix}'
    )
