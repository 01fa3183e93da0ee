"""The marks that loaders put into batches: bad samples, padding, and the stream and the weight of each row.

Under ``on_bad_sample: skip`` the row of a bad sample holds the values of another. Under ``remainder: exact`` or
``uneven`` padding, the rows that only fill up a batch, is marked. Every batch that is a dict then has the mark. So the
columns of a batch depend on the setting alone, and not on the number of samples or ranks. Positions and checkpoints are
the same as without bad samples. For other batches the loader has properties instead, such as
`headrace.StreamingDataLoader.own_samples`.

A batch is a tree. Tensors and arrays hold their rows along their first dimension. A mapping holds columns, which agree
on the number of rows. A list or tuple holds either rows, as a column of texts does, or columns, as ``(inputs, labels)``
does. An ambiguous one holds rows inside a mapping, and columns elsewhere. Numbers, texts and None belong to every row.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import ConfigError, ErasedError, FormatError, HeadraceError, ObjectNotFoundError
from headrace.order import BatchPlan
from headrace.order.lengths import CostsOf


@dataclass(frozen=True, slots=True)
class ReservedKey:
    """A key of batches that are dicts. For other batches the loader has a property instead."""

    key: str
    what: str  # The setting and its meaning, for messages.
    instead: str  # The fix if the data has a column of that name, for messages.

    def check(self, names: Iterable[str]) -> None:
        if self.key in names:
            raise ConfigError(f'{self.what} under {self.key!r}, but the data has a column of that name. {self.instead}')

    def put(self, into: Any, value: Any) -> Any:
        """A copy of a batch or sample with the mark, if it is a mapping; any other comes back as it is."""
        if not isinstance(into, MutableMapping):
            return into
        self.check(cast('Mapping[str, Any]', into))
        result = copy.copy(cast('MutableMapping[str, Any]', into))
        result[self.key] = value
        return result


BAD_SAMPLE: Final = 'is_bad_sample'
"""Key of the mark in a batch: bool[rows], True for a row whose sample could not be read; it holds another's values."""

BAD_SAMPLE_KEY: Final = ReservedKey(
    BAD_SAMPLE,
    "on_bad_sample 'skip' marks samples that cannot be read in the batch",
    "Rename the column, or choose on_bad_sample 'raise'.",
)

_OF_DATA: Final = ObjectNotFoundError, FormatError, ErasedError


def is_bad_sample(error: Exception, *, from_user: bool = False) -> bool:
    """Whether an error means bad data of one sample; `from_user`: user's code, with exceptions of any class, read it.

    Errors of the store, the network, the disk, the memory or the arguments would hit any sample. To skip those would
    train on nothing while an outage lasts.
    """
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            return False
        if isinstance(cause, HeadraceError) and not isinstance(cause, _OF_DATA):
            return False
    return from_user or isinstance(error, _OF_DATA)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def possible_rows(part: Any, *, is_column: bool = False) -> list[int] | None:
    """Possible numbers of rows of a part, the most probable first; None if it belongs to every row."""
    if has_rows(part):
        return [int(part.shape[0])]
    if isinstance(part, Mapping):
        columns = [possible_rows(value, is_column=True) for value in cast('Mapping[Any, Any]', part).values()]
        return _common([column for column in columns if column is not None])
    if _is_sequence(part):
        inner = [possible_rows(value) for value in part]
        if not part or any(counts is None for counts in inner):
            return [len(part)]
        as_columns = _common([counts for counts in inner if counts is not None]) or []
        both = [len(part), *as_columns] if is_column else [*as_columns, len(part)]
        return list(dict.fromkeys(both))
    return None


def _common(columns: list[list[int]]) -> list[int] | None:
    """Numbers of rows that all columns allow, in the order of the least ambiguous one."""
    if not columns:
        return None
    return [rows for rows in min(columns, key=len) if all(rows in column for column in columns)]


def cut_rows(part: Any, begin: int, end: int, rows: int) -> Any:
    """Rows [begin, end) of the ``rows`` that a part has. Tensors are views of the part's; mappings become dicts."""
    return _take(part, lambda column: column[begin:end], rows)


def pick_rows(part: Any, picked: list[int], rows: int) -> Any:
    """The rows of these numbers, of the ``rows`` that a part has. Tensors are copies; mappings become dicts."""

    def pick(column: Any) -> Any:
        return column[picked] if has_rows(column) else type(column)(column[row] for row in picked)

    return _take(part, pick, rows)


def _take(part: Any, take: Callable[[Any], Any], rows: int, *, is_column: bool = False) -> Any:
    if has_rows(part):
        return take(part)
    if isinstance(part, Mapping):
        columns = cast('Mapping[Any, Any]', part)
        return {key: _take(value, take, rows, is_column=True) for key, value in columns.items()}
    if not _is_sequence(part):
        return part
    inner = [possible_rows(value) for value in part]
    can_be_columns = bool(part) and all(counts is not None and rows in counts for counts in inner)
    if len(part) == rows and (is_column or not can_be_columns):
        return take(list(part) if hasattr(part, '_fields') else part)
    values = [_take(value, take, rows) for value in part]
    if hasattr(part, '_fields'):  # a named tuple
        return cast('Any', type(part))(*values)
    return tuple(values) if isinstance(part, tuple) else values


def has_rows(part: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(part, (torch.Tensor, np.ndarray)) and part.ndim > 0


def _is_sequence(part: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(part, (list, tuple))


def outline(batch: Any) -> str:
    """A batch's structure, for messages."""
    if has_rows(batch):
        return f'{type(batch).__name__}{list(batch.shape)}'
    if isinstance(batch, Mapping):
        items = itertools.islice(cast('Mapping[Any, Any]', batch).items(), 8)
        return '{' + ', '.join(f'{key}: {outline(value)}' for key, value in items) + '}'
    if _is_sequence(batch):
        first = outline(batch[0]) if batch else ''
        return f'{type(batch).__name__} of {len(batch)} ({first}{", …" if len(batch) > 1 else ""})'
    return type(batch).__name__


PADDING: Final = 'is_padding'
"""Key of the mark in a batch: bool[rows], True for a row that repeats a sample which another row counts."""


PADDING_KEY: Final = ReservedKey(
    PADDING,
    "remainder 'exact' and `uneven` mark padding in the batch",
    "Rename the column, or choose remainder 'repeat' or 'drop', without `uneven`.",
)


def marked(batch: Any, *, rows: int, own_samples: int) -> Any:
    """The batch with the mark, if it can hold it: rows from `own_samples` on are padding."""
    return PADDING_KEY.put(batch, torch.arange(rows, device='cpu') >= own_samples)


def without_padding(batch: Any, own_samples: int | None = None, bad_rows: npt.NDArray[np.bool_] | None = None) -> Any:
    """The rows of a batch that count, without marks: for metrics and predictions.

    Rows of bad samples are removed, too. A rank whose rows are all padding gets none. So run the model on the whole
    batch, and remove the padding from the values that you count.

    Args:
        batch: a batch of a loader with ``remainder='exact'`` or ``on_bad_sample='skip'``. It may nest dicts, lists and
            tuples of tensors and arrays. Tensors of the result are views unless a bad row is removed. Mappings become
            dicts.
        own_samples: number of rows that count, for a batch without the mark of padding: the loader's `own_samples`.
        bad_rows: bool[rows], for a batch without the mark of bad samples: the loader's `own_bad_rows`.

    Raises:
        ConfigError: the batch has no mark and neither argument is given, or its rows cannot be told.
    """
    rows = None
    if isinstance(batch, Mapping):
        columns = dict(cast('Mapping[Any, Any]', batch))
        if BAD_SAMPLE in columns:
            bad_rows = columns.pop(BAD_SAMPLE).cpu().numpy()
        if PADDING in columns:
            padding = columns.pop(PADDING)
            rows, own_samples = len(padding), len(padding) - int(padding.sum())
        batch = columns
    if bad_rows is not None:
        rows = len(bad_rows)
        own_samples = rows if own_samples is None else own_samples
    if own_samples is None:
        raise ConfigError(
            f"The batch holds no mark under {PADDING!r}: {outline(batch)}. Read it with remainder 'exact'; if it is no "
            f'dict, pass `own_samples`, which the loader says.'
        )
    candidates = possible_rows(batch) or []
    if rows is None:
        # A batch has one row of padding at most, which settles an ambiguous shape.
        rows = next((rows for rows in candidates if rows - own_samples in (0, 1)), None)
    if rows is None or rows not in candidates:
        raise ConfigError(
            f'The batch must have a row for each of its samples, {own_samples} of which count, but it is '
            f'{outline(batch)}. Leave out the padding where the samples can still be told apart.'
        )
    if bad_rows is not None and bad_rows[:own_samples].any():
        return pick_rows(batch, np.flatnonzero(~bad_rows[:own_samples]).tolist(), rows)
    return cut_rows(batch, 0, own_samples, rows)


LOSS_WEIGHT: Final = 'loss_weight'
"""Key of the weights of a batch's rows: float32[rows], 0 for padding. The mean of weight times loss over a rank's rows,
and then over the ranks, is the mean over the global batch."""

LOSS_WEIGHT_KEY: Final = ReservedKey(
    LOSS_WEIGHT,
    '`loss_weight` puts the weights of rows into the batch',
    'Rename the column, or leave `loss_weight` out.',
)


def loss_weights(plan: BatchPlan, k: int, ids: npt.NDArray[np.int64], costs: CostsOf | None) -> npt.NDArray[np.float32]:
    """The weights of a replica's rows of batch k, float32[rows], by `costs` if given; see `LOSS_WEIGHT`."""
    samples = total = sum(end - begin for begin, end in plan.spans(k, k + 1))
    weights: Any = 1
    if costs is not None:
        weights = costs(ids)
        total = max(int(costs(plan.order.at(plan.global_positions(k)[:samples])).sum()), 1)
    is_own = np.arange(len(ids)) < plan.own_samples(k)
    return (is_own * weights * (len(ids) * plan.topology.replicas / total)).astype(np.float32)


STREAM: Final = 'stream_number'
"""Key of the mark in a batch: int64[rows], the number of each row's stream, as in `StreamingDataset.streams`.

Of rows of S tokens int64[rows, S], the number of each token's stream; -1 for padding."""


STREAM_KEY: Final = ReservedKey(
    STREAM,
    '`mark_streams` marks the stream of each row in the batch',
    "Leave `mark_streams` out and take the loader's `own_streams`, or rename the column.",
)


def with_streams(batch: Any, streams: npt.NDArray[Any] | None, rows: int) -> Any:
    """The batch with the stream number of each row, [rows], if it can hold them; without them, all are 0."""
    numbers = np.zeros(rows, np.int64) if streams is None else streams.astype(np.int64)
    return STREAM_KEY.put(batch, torch.from_numpy(numbers))
