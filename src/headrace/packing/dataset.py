"""A dataset whose batches are sequences of tokens, packed from the documents of its streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.dataset import StreamingDataset
from headrace.dataset.streams.columns import column_names
from headrace.errors import ConfigError
from headrace.order import Mixture, OrderConfig, Run, parse_skip
from headrace.packing.packer import DocumentCount
from headrace.packing.reader import PackedReader
from headrace.packing.run import PackedRun
from headrace.packing.settings import Packing
from headrace.packing.tokenizers import fingerprint

if TYPE_CHECKING:
    from headrace.dataset.reading.protocol import Collate, Reader
    from headrace.order import BatchExplanation, BatchPlan, BatchSpec, SkipRange

__all__ = ['PackedDataset']


class PackedDataset(StreamingDataset):
    """A `StreamingDataset` whose samples are documents, and whose batches are sequences packed from them.

    Give it to `headrace.StreamingDataLoader`. Batches are dicts as `headrace.packing.batch_of` describes them. All that
    counts samples of batches counts sequences here: the batch size, `skip`, the position, an epoch.

    What is in which sequence follows from the order of the documents and from `packing`, and from nothing else: ranks,
    workers and the batch size do not matter, and a state goes on with the token after the last one. Its position is a
    number of sequences. Beside that it says where lanes can be taken up: of lanes that other ranks work on it knows as
    of the last `exchange_cuts`, and what came since is tokenised again when the run goes on.

    Args:
        packing: how documents are packed.
        skip: ranges of sequences to leave out; see `StreamingDataset`.
        **options: as `StreamingDataset`'s. `epoch_size` and the streams' weights count documents, in a pass over them.
            Under ``on_bad_sample='skip'`` a document that cannot be read has no tokens; no row stands for it, so none
            is marked.

    Raises:
        ConfigError: an argument breaks a rule; MosaicML Streaming's orders, other mixtures at a resumption and marked
            remainders are not to be had with packing; a stream lacks the column.
    """

    run: PackedRun  # pyright: ignore[reportIncompatibleVariableOverride] - set once, after that of the documents

    def __init__(self, *, packing: Packing, skip: Sequence[SkipRange] = (), **options: Any) -> None:
        if options.get('on_mixture_change', 'refuse') != 'refuse':
            raise ConfigError(
                "`on_mixture_change` must be 'refuse' with packing, whose lanes are at different documents, but is "
                f'{options["on_mixture_change"]!r}. Let weights change by a `schedule` from the beginning.'
            )
        super().__init__(**options)
        if self.run.config(1, None).is_compatible:
            raise ConfigError(
                f"`shuffle_algo` must be 'native' with packing, but is {options.get('shuffle_algo')!r}: a position of "
                f"MosaicML Streaming's orders depends on the ranks."
            )
        self.packing = packing
        for stream in self.streams if self.is_columnar else ():  # samples of a subclass's own have columns of their own
            for names in column_names(stream):
                if packing.document_column not in names:
                    fix = 'Set `column`' if packing.tokenizer else 'Set `column`, or give `tokenizer`'
                    raise ConfigError(
                        f'Packing takes documents from column {packing.document_column!r}, but {stream.title} has '
                        f'{", ".join(names)}. {fix}.'
                    )
        self.skip = parse_skip(skip)
        documents: Run = self.run
        self.run = PackedRun(documents, packing, fingerprint(packing.tokenizer), self.skip)
        self.stream_names = ('sequences',)
        self.document_counts = {stream.name or '': DocumentCount(0, 0) for stream in self.streams}
        """What this rank has taken from each stream, by its name, since the dataset was made."""

    def require_equal_columns(self) -> None:
        """Nothing: only the documents' column is read, and what is made of it is alike."""

    @property
    def epoch_size(self) -> int:
        """Sequences in an epoch; of one without end, more than anybody will train on."""
        return self.run.mixture.epoch_size

    @property
    def has_length(self) -> bool:
        """Whether an epoch ends."""
        return self.packing.sequences_per_epoch is not None

    @property
    def shuffle_seed(self) -> int:
        """Key of the documents' order."""
        return self.run.documents.config(1, None).seed

    @property
    def order_key(self) -> object:
        """What the content of batches depends on beside their numbers."""
        return super().order_key, self.run.documents.config(1, None), self.run.lane_count

    def read_order(self) -> tuple[Mixture, OrderConfig]:
        """The documents, and their order."""
        documents = self.run.documents
        return documents.mixture, documents.config(self.topology.nodes, self.run.lane_count)

    @property
    def skip_unit(self) -> int:
        """What the bounds of ranges that are left out must be multiples of, in sequences of the run: the lanes."""
        return self.run.lane_count or 1

    def explain(self, plan: BatchPlan, k: int) -> BatchExplanation:
        """Which sequences make up batch k of a plan, on all ranks; which documents are in them only tokenising tells.

        Raises:
            IndexError: there is no such batch.
        """
        return plan.explain(k)

    def exchange_cuts(self, gather: Callable[[Any], Sequence[Any]]) -> None:
        """Learn where the lanes of all ranks are, so that a state of any rank knows it.

        It is not needed for a run to go on exactly, but without it what the other ranks have trained since the last
        resumption is tokenised again. The trainers' plugins call it every few hundred batches.

        Args:
            gather: returns what each rank passes to it, in any order: ``torch.distributed.all_gather_object`` with its
                list made before. All ranks call it.
        """
        self.run.lanes.exchange(gather)

    def reader(self, batches: BatchSpec, collate_fn: Collate | None, *, mark_streams: bool = False) -> Reader[Any]:
        """What reads batches of one rank.

        Raises:
            ConfigError: sequences are neither collated nor of one stream.
        """
        if collate_fn is not None or mark_streams:
            name = '`mark_streams`' if collate_fn is None else '`collate_fn`'
            raise ConfigError(
                f'{name} is not to be had with packing: its batches are tensors of packed sequences, whose documents '
                f'may be of several streams. Leave it out.'
            )
        return PackedReader(self, batches)

    def count(self, counts: Mapping[int, DocumentCount]) -> None:
        """Add what was taken from streams, by their numbers."""
        for number, count in counts.items():
            name = self.streams[number].name or ''
            had = self.document_counts[name]
            self.document_counts[name] = DocumentCount(*(a + b for a, b in zip(had, count, strict=True)))

    def _plain_pass(self) -> Iterator[Any]:
        raise TypeError(
            'A PackedDataset is read by a headrace.StreamingDataLoader, not by a plain DataLoader or by iterating it: '
            'its lanes live in the process that trains.'
        )
