"""Where a mixture took over from another one, and how far each stream was then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.errors import ResumeError
from headrace.order.mixture.schedule import apportion


@dataclass(frozen=True, slots=True)
class OpenCell:
    """A canonical node's share of a pass, of which samples are left that other nodes draw."""

    number: int  # The pass.
    node: int
    begin: int  # Where the share begins in the stream's line of shards, in samples.
    end: int
    block: int  # Samples over which it is shuffled.
    left: tuple[int, ...]  # The draws of the share that are left, ascending; the share's first one is 0.


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """How far a stream is: which of its draws were used, on each canonical node."""

    fingerprint: str  # Of the data that this is a position of.
    node_draws: tuple[int, ...]  # For each canonical node, the stream's draws that it has had.
    first_pass: int  # The last pass that every node has begun or is about to.
    begins: tuple[tuple[int, ...], ...]
    """For this pass and those after it, up to the first that no node has begun: each node's draws before it."""
    blocks: tuple[int, ...]  # For all of these but the last: the block size that it is shuffled with, in samples.
    cells: tuple[OpenCell, ...] = ()
    """Samples left of passes before the first; nodes whose draws are below its begin draw them."""

    def with_other_data(self, fingerprint: str, size: int) -> StreamPosition:
        """The begin of the next pass, over other data: none before it was shuffled as it will be."""
        number = self.first_pass + len(self.blocks)
        begin = tuple(apportion(number * size, [1] * len(self.node_draws)))
        return StreamPosition(fingerprint=fingerprint, node_draws=begin, first_pass=number, begins=(begin,), blocks=())

    def to_json(self) -> dict[str, Any]:
        cells = [[*(cell.number, cell.node, cell.begin, cell.end, cell.block), list(cell.left)] for cell in self.cells]
        return {
            'fingerprint': self.fingerprint,
            'turns': list(self.node_draws),
            'pass': self.first_pass,
            'begin': list(self.begins[0]),
            'shares': [_share(begin, end) for begin, end in pairwise(self.begins)],
            'blocks': list(self.blocks),
            **({'cells': cells} if cells else {}),
        }

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> StreamPosition:
        begins = [tuple(value['begin'])]
        for share in value['shares']:
            of_nodes = enumerate(share) if isinstance(share, list) else share.items()
            row = list(begins[-1])
            for node, count in of_nodes:
                row[int(node)] += count
            begins.append(tuple(row))
        return cls(
            fingerprint=value['fingerprint'],
            node_draws=tuple(value['turns']),
            first_pass=value['pass'],
            begins=tuple(begins),
            blocks=tuple(value['blocks']),
            cells=tuple(
                OpenCell(k, node, begin, end, block, tuple(left))
                for k, node, begin, end, block, left in value.get('cells', ())
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """Where a mixture took over. The default is the begin of a run."""

    epoch: int = 0
    sample: int = 0  # Position in that epoch.
    begin: int = 0  # Samples of the run before that epoch. Epochs before it may have had another size.
    positions: Mapping[str, StreamPosition] = field(default_factory=dict[str, StreamPosition])
    """By name, all streams drawn before, even if they left the mixture."""
    rule: int = 1
    """2: nodes that have used up a stream leave their samples to the others; 1: these are not drawn."""

    def begin_of(self, epoch: int, epoch_size: int) -> int:
        """Return the samples of the run before an epoch, of those from this one on."""
        return self.begin + (epoch - self.epoch) * epoch_size

    def to_json(self) -> dict[str, Any]:
        return {
            'epoch': self.epoch,
            'sample': self.sample,
            'begin': self.begin,
            'positions': {name: position.to_json() for name, position in sorted(self.positions.items())},
            **({'rule': self.rule} if self.rule != 1 else {}),
        }

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Takeover:
        """Read what `to_json` returned; None is the begin of a run. A ResumeError for anything else."""
        if value is None:
            return cls()
        try:
            positions = {name: StreamPosition.of(position) for name, position in value['positions'].items()}
            return cls(
                epoch=value['epoch'],
                sample=value['sample'],
                begin=value['begin'],
                positions=positions,
                rule=value.get('rule', 1),
            )
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ResumeError(
                f'the checkpoint says where its streams were in a way that cannot be read: {error!r}.'
            ) from None


def _share(begin: Sequence[int], end: Sequence[int]) -> list[int] | dict[str, int]:
    """The draws of a pass on each node, or by node, where only a few have any: there are many passes then."""
    counts = [b - a for a, b in zip(begin, end, strict=True)]
    few = {str(node): count for node, count in enumerate(counts) if count}
    return few if 3 * len(few) < len(counts) else counts
