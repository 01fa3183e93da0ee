"""Samples that cannot be read: what is done about them, which errors mean one, and their mark in a batch.

Under ``on_bad_sample: skip`` such a sample's row holds the values of another, and every batch that is a dict holds the
mark, those without bad samples too: what a batch is made of depends on the setting alone. So rows stay equal on all
ranks, positions mean what they mean, and a checkpoint need not know.
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
"""What happens at a sample that cannot be read: its error is raised, or its row holds another and is marked."""


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
    """Whether an error says that a sample's data are bad, rather than that it could not be got at now.

    What the store, the network, the disk, the memory or the arguments are to blame for would be so for any sample: a
    run that went on would train on nothing while an outage lasts.

    Args:
        error: what reading a sample raised.
        from_user: whether code of a user's read it, whose exceptions may be of any class.
    """
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            return False
        if isinstance(cause, HeadraceError) and not isinstance(cause, (ObjectNotFoundError, FormatError)):
            return False
    return from_user or isinstance(error, (ObjectNotFoundError, FormatError))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was raised from or while handling: a user's own may stand for one of headrace's."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
