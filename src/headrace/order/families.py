"""The families of orders by the name of their algorithm: what differs between them, for all who need to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace.errors import UnknownNameError
from headrace.order import shuffle
from headrace.order.topology import Remainder

DEFAULT_ALGORITHM: Final = 'native'


@dataclass(frozen=True, slots=True)
class Family:
    """What differs between orders. The defaults are the native order's."""

    permutation: shuffle.Permutation | None = None  # Shuffles an epoch as a whole; None: positions come one by one.
    nodes: int = 0  # Default canonical nodes for each node of the run's begin; 0: their number follows from the data.
    has_blocks: bool = True  # Whether a block size bounds how far samples move.
    deals_batches: bool = False  # Whether ranks and batch size, not the sequence, say which streams share a batch.
    counts_repeats: bool = False  # Whether an epoch's repeats have positions, too, beyond the number of its samples.
    remainder: Remainder = 'exact'  # The default of evaluation; repeats that are samples like others are not marked.
    follows_state: bool = False  # Whether a state decides seed and canonical nodes, even where others are given.
    continues: bool = True
    """Whether streams continue in an epoch where the last one left them: the mixture can change in a run, `balanced`
    sampling knows no granularity, and states name the rule of `fixed` sampling."""


_mosaicml = partial(
    Family, nodes=1, deals_batches=True, counts_repeats=True, remainder='repeat', follows_state=True, continues=False
)

_FAMILIES: Final[Mapping[str, Family]] = {
    DEFAULT_ALGORITHM: Family(),
    'naive': _mosaicml(shuffle.naive, has_blocks=False),
    'py1b': _mosaicml(shuffle.py1b),
    'py1br': _mosaicml(shuffle.py1br),
    'py1e': _mosaicml(shuffle.py1e),
    'py1s': _mosaicml(shuffle.py1s, nodes=64, has_blocks=False),
    'py2s': _mosaicml(shuffle.py2s, nodes=64, has_blocks=False),
}

ALGORITHMS: Final = tuple(_FAMILIES)
PERMUTATIONS: Final = {name: family.permutation for name, family in _FAMILIES.items() if family.permutation}


def family_of(algorithm: str | None) -> Family:
    """The family of an algorithm; None is the default one. UnknownNameError: there is no such algorithm."""
    family = _FAMILIES.get(str(algorithm or DEFAULT_ALGORITHM))
    if family is None:
        raise UnknownNameError(f'shuffle_algo must be one of {sorted(_FAMILIES)}, got {algorithm!r}.')
    return family
