"""Notes on errors of a user's code and of `default_collate`, which name the sample.

Such an error keeps its class and its message, so that `except MyError` around a loop still works. Its traceback ends
with a note, in workers too. Only a batch that fails pays for notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from torch.utils.data import default_collate

from headrace.errors import FormatError
from headrace.errors.mapping import add_note, panics_as

T = TypeVar('T')

Describe = Callable[[int], str]  # Where a sample lies, by its id: stream, shard, row, id.

_MOST = 8  # samples that a note names


def read_each(ids: Iterable[int], read: Callable[[int], T], describe: Describe) -> Iterator[T]:
    """Read samples one by one; an error names its sample."""
    sample_id = -1
    try:
        for sample_id in ids:
            with panics_as(FormatError):
                sample = read(sample_id)
            yield sample
    except Exception as error:
        name_sample(error, sample_id, describe)
        raise


def name_sample(error: Exception, sample_id: int, describe: Describe) -> None:
    add_note(error, f'While reading {describe(sample_id)}.')


def collated(
    samples: list[Any], ids: Sequence[int], describe: Describe, collate: Callable[[list[Any]], Any] | None = None
) -> Any:
    """A batch by `collate`, by default PyTorch's; an error names its samples.

    A `collate` that handles rows one by one has the current row, or None, in an attribute `row_at_hand`. RuntimeError:
    it raised StopIteration. Other errors stay what they are.
    """
    try:
        with panics_as(FormatError):
            return (collate or default_collate)(samples)
    except Exception as error:
        row = getattr(collate, 'row_at_hand', None)
        if row is not None:
            add_note(error, f'While transforming {describe(ids[row])}.')
        elif collate is None:
            add_note(error, f'While collating {misfit(samples, ids, describe)}.')
        else:
            add_note(error, naming_samples('While collating', ids, describe))
        if isinstance(error, StopIteration):
            # Iterators end with it: the pass would end here, without the rest of its batches.
            raise RuntimeError(  # noqa: TRY004 - as Python does where a generator raises it
                'A `collate_fn` raised StopIteration, which ends a pass early. Give `next` a default, or catch it.'
            ) from error
        raise


def misfit(samples: list[Any], ids: Sequence[int], describe: Describe) -> str:
    """The first of some samples, or of their values in a column, that `default_collate` refuses."""
    for row in range(len(samples)):
        try:
            default_collate([samples[0], samples[row]] if row else samples[:1])
        except Exception:  # noqa: PERF203 - it is looked for
            return describe(ids[row]) + (f', beside {describe(ids[0])}' if row else '')
    return f'the batch that begins with {describe(ids[0])}'


def naming_samples(doing: str, ids: Sequence[int], describe: Describe) -> str:
    lines = '\n'.join(f'  {describe(sample_id)}' for sample_id in ids[:_MOST])
    more = f'\n  and {len(ids) - _MOST} more' if len(ids) > _MOST else ''
    return f'{doing} the {len(ids)} samples\n{lines}{more}'
