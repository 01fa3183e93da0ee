"""Samples that cannot be read: their policy, their errors, and their mark in a batch.

Under ``on_bad_sample: skip`` the row of such a sample holds the values of another. Every batch that is a dict then has
the mark, so the columns of a batch depend on the setting alone. The number of rows stays equal on all ranks, and
positions and checkpoints are the same as without bad samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, get_args

from headrace.dataset.batch_keys.key import ReservedKey
from headrace.errors import ConfigError, FormatError, HeadraceError, ObjectNotFoundError

__all__ = ['BAD_SAMPLE', 'BAD_SAMPLE_KEY', 'BadSamplePolicy', 'is_bad_sample', 'parse_policy']

BAD_SAMPLE: Final = 'is_bad_sample'
"""Key of the mark in a batch: bool[rows], True for a row whose sample could not be read; it holds another's values."""

BAD_SAMPLE_KEY: Final = ReservedKey(
    BAD_SAMPLE,
    "on_bad_sample 'skip' marks samples that cannot be read in the batch",
    "Rename the column, or choose on_bad_sample 'raise'.",
)

BadSamplePolicy = Literal['raise', 'skip']
"""Handling of a sample that cannot be read: its error is raised, or its row holds another and is marked."""


def parse_policy(value: object) -> BadSamplePolicy:
    """A policy by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    for policy in get_args(BadSamplePolicy):
        if value == policy:
            return policy
    raise ConfigError(f"`on_bad_sample` must be 'raise' or 'skip', but is {value!r}.")


def is_bad_sample(error: Exception, *, from_user: bool = False) -> bool:
    """Whether an error means bad data of one sample.

    Errors of the store, the network, the disk, the memory or the arguments would hit any sample. To skip those would
    train on nothing while an outage lasts.

    Args:
        error: the error of reading a sample.
        from_user: whether a user's code read it, whose exceptions may be of any class.
    """
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            return False
        if isinstance(cause, HeadraceError) and not isinstance(cause, (ObjectNotFoundError, FormatError)):
            return False
    return from_user or isinstance(error, (ObjectNotFoundError, FormatError))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: a user's exception may wrap one of headrace's."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
