"""A dataset whose batches are sequences of tokens, packed from the documents of its streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.dataset import StreamingDataset
from headrace.dataset.ranks import gather_of_ranks
from headrace.dataset.streams.columns import column_names
from headrace.errors import ConfigError
from headrace.errors.exclusions import refuse_exclusions
from headrace.errors.redaction import logger_of, without_credentials
from headrace.order import (
    BatchSpec,
    ExpectedCounts,
    Mixture,
    MixtureChange,
    OrderConfig,
    ResumeState,
    Run,
    SampleUse,
    Topology,
    documents_skip,
    parse_skip,
)
from headrace.order.skip import split_documents
from headrace.order.topology import World
from headrace.packing.explanation import PackedExplanation, joined
from headrace.packing.packer import DocumentCount, documents_placed, first_sequence, pieces_of
from headrace.packing.reader import PackedReader
from headrace.packing.run import PackedRun
from headrace.packing.settings import Packing, StreamPacking
from headrace.packing.tokenizers import fingerprint, is_of_library, origin_of_tokens
from headrace.packing.whole import WholePass, count_tokens_of

if TYPE_CHECKING:
    from headrace.dataset.batch_keys import ReservedKey
    from headrace.dataset.reading.batch_reader import Pass, PassRequest
    from headrace.dataset.streams.open_streams import OpenedStream
    from headrace.order import BatchPlan, SkipRange
    from headrace.order.skip import Ranges
    from headrace.packing.lanes import Lanes, PieceTable


_log = logger_of(__name__)
_MANY_TOKENS = 1_000_000  # tokens whose tokenising takes about a second of a process


class PackedDataset(StreamingDataset):
    """A `StreamingDataset` whose samples are documents, and whose batches are sequences packed from them.

    Give it to `headrace.StreamingDataLoader`. `headrace.packing.batch_of` describes its batches. The batch size,
    `skip`, the position and an epoch count sequences, not samples.

    The order of the documents and `packing` alone decide the content of each sequence. Ranks, workers and the batch
    size do not matter, and a resumed run continues with the next token. A checkpoint holds the number of sequences and
    a state of each lane. Those of other ranks date from the last `sync_lane_states`; a resumed run tokenises later
    documents again.

    Args:
        packing: how documents are packed.
        skip: ranges of sequences to skip; see `StreamingDataset`. ``['17doc', '20doc']`` skips the documents
            with these sample ids: padding takes the place of their tokens, in any sequence from the resume on. No other
            document moves.
        **options: as `StreamingDataset`'s. `epoch_size` and the streams' weights count documents, in a pass over them;
            see `Packing.weights_count`.
            With ``on_mixture_change='continue'`` another mixture takes over after the last document that a lane has
            placed. Under ``on_bad_sample='skip'`` a document that cannot be read has no tokens; no row stands for it,
            so none is marked.

    Raises:
        ConfigError: an argument breaks a rule; the order does not work with packing, or a change of the mixture with
            ``sequences_per_epoch='all'``; a stream lacks the column.
    """

    stream_unit = 'tokens'
    run: PackedRun  # pyright: ignore[reportIncompatibleVariableOverride] - what happens to it gives a packed run

    def __init__(self, *, packing: Packing, skip: Sequence[SkipRange] = (), **options: Any) -> None:
        refuse_exclusions({'streams': (), **options, 'packing': packing})
        on_mixture_change: MixtureChange = options.get('on_mixture_change', 'refuse')
        super().__init__(**options)
        self.packing = packing
        packings = [self._packing_of(stream) for stream in self.pool.streams]
        self._check_origins(packings)
        self.skip, skipped_documents = split_documents(parse_skip(skip))
        if skipped_documents and skipped_documents[-1][1] > self.num_samples:
            raise ConfigError(
                f'a range of skip has ids of documents below {self.num_samples}, the number of samples, but got '
                f'{documents_skip(skipped_documents)[-1]}. `headrace explain` prints ids.'
            )
        documents: Run = self.run
        make = partial(
            PackedRun.over,
            documents,
            packing,
            packings,
            self.skip,
            skipped_documents,
            on_mixture_change,
            replay=self._replay,
        )
        self.run = make()
        if packing.sequences_per_epoch == 'all':
            self.run = make(whole=WholePass(packing, self._count_tokens(documents)))
        self.document_counts = {stream.name or '': DocumentCount(0, 0) for stream in self.streams}
        """Documents that this rank took from each stream, by name, since the dataset was made."""
        self._tokenized_once = {
            number: int(stream.size().shard_sizes.sum())
            for number, (stream, settings) in enumerate(zip(self.pool.streams, packings, strict=True))
            if self.is_columnar and is_of_library(settings.tokenizer)
        }
        """Samples of each stream whose texts are not known to be tokenised again."""

    def _packing_of(self, stream: OpenedStream) -> Packing:
        of_stream, packing = stream.packing, self.packing
        if of_stream is not None and not isinstance(of_stream, StreamPacking):
            raise ConfigError(f'`packing` of stream {stream.title} must be a StreamPacking, but is {of_stream!r:.80}.')
        if of_stream is not None:
            kinds = [str(schema.kinds().get(of_stream.column or '')) for schema in stream.shards.schemas]
            packing = of_stream.of(packing, is_array=any('array' in kind for kind in kinds))
        for names in column_names(stream) if self.is_columnar else ():  # a subclass's samples may have other columns
            if packing.document_column not in names:
                fix = '' if packing.tokenizer else ', or give `tokenizer`'
                of_one = ', here or in `packing` of this stream' if len(self.streams) > 1 else ''
                raise ConfigError(
                    f'Packing takes documents from column {packing.document_column!r}, but {stream.title} has '
                    f'{", ".join(names)}. Set `column`{fix}{of_one}.'
                )
        return packing

    def _check_origins(self, packings: Sequence[Packing]) -> None:
        """Refuse stored tokens of several tokenizers, or of another one than the dataset's."""
        tokenizers: dict[str, str] = {}
        if self.packing.tokenizer is not None:
            tokenizers[fingerprint(self.packing.tokenizer)] = 'the `tokenizer` of `packing`'
        for stream, packing in zip(self.pool.streams, packings, strict=True):
            for schema in stream.shards.schemas if packing.tokenizer is None else ():
                origin = origin_of_tokens(schema.meaning_of.get(packing.document_column, ''))
                if origin is None:
                    continue
                size, name = origin
                tokenizers.setdefault(name, f'stream {stream.title}')
                for key in ('bos_token_id', 'eos_token_id', 'pad_token_id'):
                    token = getattr(packing, key)
                    if token is not None and size is not None and token >= size:
                        _log.warning(
                            '`%s` is %d, but tokens of stream %s are below %d. The model needs embeddings for both.',
                            key, token, stream.title, size,
                        )  # fmt: skip
        if len(tokenizers) > 1:
            (this, first), (other, second) = list(tokenizers.items())[:2]
            raise ConfigError(
                f'All tokens of a run are of one tokenizer, but there are two: {this} of {first}, and {other} of '
                f'{second}. Tokenise one of them again: headrace tokenize SOURCE OUT --tokenizer FILE.'
            )

    def _count_tokens(self, documents: Run) -> npt.NDArray[np.int32]:
        reader = PackedReader(self.sample_source(), self.run, BatchSpec(1, Topology(), 'repeat'), self.run.lanes_for(1))
        try:
            return count_tokens_of(reader.__getitem__, documents.mixture.epoch_size)
        finally:
            self.pool.shards.pause()

    def _replay(self, lanes: Lanes, row: int) -> dict[int, int]:
        with self._reader_of(BatchSpec(lanes.count, Topology(), 'repeat'), lanes) as reader:
            return documents_placed(self.packing, lanes, reader.__getitem__, row)

    @contextmanager
    def _reader_of(self, batches: BatchSpec, lanes: Lanes) -> Generator[PackedReader]:
        reader = PackedReader(self.sample_source(), self.run, batches, lanes)
        # A pass under way has its own prefetch.
        reader.prefetches = not self.progress.begun(rank=self.topology.rank)
        try:
            yield reader
        finally:
            if reader.prefetches:
                self.pool.shards.pause()

    def _data_of(self, state: ResumeState) -> None:
        """No other data: lanes hold documents of those that are open."""

    def check_columns(self, key: ReservedKey, streams: Sequence[OpenedStream] | None = None) -> None:
        """No check: batches hold no columns of the data."""

    def promised_token_shares(self) -> npt.NDArray[np.float64]:
        """The share of each stream in the tokens that the mixture promises, float64[streams].

        The weights of streams count documents. Each is multiplied by the mean length of this rank's documents, unless
        `Packing.weights_count` is `tokens`.
        """
        counts = [self.document_counts[name] for name in self.stream_names]
        taken = self.run.lanes.documents_taken if self.run.lane_count is not None else (0, 0)
        is_of_tokens = self.packing.weights_count == 'tokens'
        return promised_shares(self.run.documents.mixture, taken, None if is_of_tokens else counts)

    def require_equal_columns(self, *, joined: bool = False) -> None:
        """No check: only the documents' column is read."""

    @property
    def epoch_size(self) -> int:
        """Sequences in an epoch; a huge number if the epoch is endless."""
        return self.run.mixture.epoch_size

    @property
    def has_length(self) -> bool:
        """Whether an epoch ends."""
        return self.packing.sequences_per_epoch is not None

    @property
    def sample_run(self) -> Run:
        """The documents' run."""
        return self.run.documents

    @property
    def order_key(self) -> object:
        """Values that batch contents depend on, beside batch numbers."""
        documents = self.run.documents
        return super().order_key, documents.config(), documents.mixture.takeover, self.run.lane_count

    def read_order(self) -> tuple[Mixture, OrderConfig]:
        """The documents, and their order."""
        documents = self.run.documents
        return documents.mixture, documents.config(World(self.topology.nodes, self.run.lane_count))

    @property
    def _has_node_parts(self) -> bool:
        return self.run.whole is None  # which combines documents of all canonical nodes

    @property
    def skipped_documents(self) -> Ranges:
        """Ranges of ids of documents that are skipped in all sequences."""
        return self.run.skipped_documents

    @property
    def skip_unit(self) -> int:
        """Divisor of the bounds of `skip` ranges, in sequences: the number of lanes."""
        return self.run.lane_count or 1

    def explain(self, plan: BatchPlan, k: int, *, reads_data: bool = True) -> PackedExplanation:
        """The documents of batch k of a plan, on all ranks.

        This process knows the documents of its latest sequences. It reads and tokenises those of others: from the
        lanes' states of a loaded checkpoint on, else from the beginning of the run.

        Args:
            plan: the plan.
            k: the batch's number there.
            reads_data: whether to read documents. If not, sequences with unknown documents have none.

        Raises:
            IndexError: the batch does not exist.
            OSError: a store cannot be reached, or refuses.
        """
        sequences, lanes = plan.explain(k), self.run.lanes_for(plan.global_batch_size)
        numbers = (sequences.positions + first_sequence(plan)).tolist()
        by_number = self._known_pieces(numbers, lanes)
        if reads_data:
            paddings = zip(numbers, sequences.is_padding.tolist(), strict=True)
            by_number |= self._read_pieces(
                plan, lanes, {number for number, is_padding in paddings if not is_padding and number not in by_number}
            )
        places, pieces, offsets = joined(sequences, numbers, by_number)
        mixture, order, ids = self.run.documents.mixture, lanes.documents, pieces[:, 0]
        shards, rows = self.locate(ids)
        names = [self.place(shard) for shard in shards.tolist()]
        lane_of = [lane for lane, _ in order.sequences(numbers)]
        passes = [
            order.place(lane_of[place], document).epoch
            for place, document in zip(places.tolist(), pieces[:, 1].tolist(), strict=True)
        ]
        return PackedExplanation(
            epoch=sequences.epoch,
            number=sequences.number,
            end=sequences.end,
            stream_names=self.stream_names,
            topology=sequences.topology,
            ranks=sequences.ranks[places],
            rows=sequences.rows[places],
            positions=sequences.positions[places],
            ids=ids,
            streams=mixture.streams_of(ids),
            shards=np.array([number for _, number, _ in names], np.int64),
            shard_rows=rows,
            is_padding=np.zeros(len(ids), np.bool_),
            files=np.array([file for _, _, file in names], np.str_),
            passes=np.array(passes, np.int64),
            begins=pieces[:, 2],
            ends=pieces[:, 3],
            offsets=offsets,
            sequences=sequences,
            is_known=sequences.is_padding | np.array([number in by_number for number in numbers]),
        )

    def uses_of(self, plan: BatchPlan, sample_id: int, begin: int, end: int) -> list[SampleUse]:
        """The sequences that hold a document, or a piece of it, in batches [begin, end) of a plan.

        Reads and tokenises the documents of these batches, as `explain` does.
        """
        places: dict[int, SampleUse] = {}
        for k in range(begin, end):
            batch = plan.explain(k)
            rows = zip(batch.positions, batch.ranks, batch.rows, batch.is_padding, strict=True)
            for position, rank, row, is_padding in rows:
                if not is_padding:
                    where = {'position': int(position), 'rank': int(rank), 'row': int(row)}
                    use = SampleUse(epoch=batch.epoch, batch=k, **where)
                    places.setdefault(int(position) + first_sequence(plan), use)
        lanes = self.run.lanes_for(plan.global_batch_size)
        pieces = self._known_pieces([*places], lanes)
        pieces |= self._read_pieces(plan, lanes, {*places}.difference(pieces))
        return [use for number, use in places.items() if number in pieces and (pieces[number][:, 0] == sample_id).any()]

    def _known_pieces(self, numbers: list[int], lanes: Lanes) -> dict[int, PieceTable]:
        whole, documents = self.run.whole, self.run.documents
        if whole is None:
            return lanes.delivered.of(numbers)
        order = lanes.documents.order(0, 0)
        return whole.tables(order.at(np.arange(documents.mixture.epoch_size)), numbers, lanes)

    def _read_pieces(self, plan: BatchPlan, lanes: Lanes, numbers: set[int]) -> dict[int, PieceTable]:
        with self._reader_of(plan.spec, lanes) as reader:
            return pieces_of(self.packing, lanes, reader.__getitem__, numbers)

    def sync_lane_states(self, gather: Callable[[Any], Sequence[Any]]) -> None:
        """Share the lane states of all ranks, so that any rank's checkpoint holds them.

        A run resumes exactly without it, but tokenises again all documents of the other ranks since the last resume.
        The trainers' plugins call it every few hundred batches.

        Args:
            gather: returns the values that all ranks passed, in any order, such as a wrapper of
                ``torch.distributed.all_gather_object``. All ranks call it.
        """
        self.run.lanes.exchange(gather)

    exchange_cuts = sync_lane_states
    """The name of `sync_lane_states` in version 0.1.0."""

    def share_documents(self, batches: Sequence[tuple[BatchPlan, int]], gather: Callable[[Any], Sequence[Any]]) -> None:
        """Share the names of the documents of delivered batches, so that `explain` knows those of all ranks.

        Args:
            batches: plans, and batches' numbers there; the same on all ranks.
            gather: as `sync_lane_states`'s. All ranks call it.
        """
        delivered = self.run.lanes.delivered
        each = [plan.global_positions(k) + first_sequence(plan) for plan, k in batches]
        numbers = np.concatenate(each).tolist()
        delivered.keep(len(numbers))
        for tables in gather(delivered.of(numbers)):
            delivered.update(tables)

    def begin_batches(self, request: PassRequest) -> Pass:
        """Begin a pass that is read in batches of sequences."""
        plan = self.begin_pass(request.batches, place=request.place)
        reader = PackedReader(self.sample_source(), self.run, request.batches)
        return reader.begin(plan, self.count, request.mark_streams, self.weigh)

    def count(self, counts: Mapping[int, DocumentCount]) -> None:
        """Add documents taken from streams, by stream number."""
        for number, count in counts.items():
            name = self.streams[number].name or ''
            had = self.document_counts[name]
            self.document_counts[name] = DocumentCount(*(a + b for a, b in zip(had, count, strict=True)))
            of_all = self.document_counts[name].documents * self.topology.replicas
            if of_all > self._tokenized_once.get(number, of_all):
                del self._tokenized_once[number]
                self._say_tokenized_again(number)

    def _say_tokenized_again(self, number: int) -> None:
        """Say, on one rank, that texts of a stream are tokenised again, and how to do it once for all."""
        if self.topology.rank:
            return
        stream, column = self.pool.streams[number], self.run.packings[number].document_column
        tokens = self.document_counts[stream.name or ''].tokens * self.topology.replicas
        split = f' --split {stream.split}' if stream.split else ''
        _log.log(
            logging.WARNING if tokens >= _MANY_TOKENS else logging.INFO,
            'All documents of stream %s, about %s tokens, have been tokenised, and are tokenised again from now on. To '
            'do it once for all runs: headrace tokenize %s OUT --tokenizer FILE --column %s%s. Then read OUT, with '
            '`packing` without a tokenizer.',
            stream.title, f'{tokens:,}', without_credentials(stream.remote or stream.local), column, split,
        )  # fmt: skip

    def _plain_pass(self) -> Iterator[Any]:
        raise TypeError(
            'A PackedDataset is read by a headrace.StreamingDataLoader, not by a plain DataLoader or by iterating it: '
            'its lanes live in the process that trains.'
        )


_EVERY = 256  # Batches between two exchanges. A resumed run tokenises the documents of at most this many batches again.


def sync_lane_states(dataset: StreamingDataset, batches: int) -> None:
    """Share a packed dataset's lane states among ranks, every few hundred batches. All ranks call it after each batch.

    An exchange sends a few hundred bytes per lane through torch.distributed, if that is initialized.

    Args:
        dataset: any dataset; nothing happens unless it is packed.
        batches: number of batches delivered so far, the same on all ranks.
    """
    if not isinstance(dataset, PackedDataset) or batches % _EVERY or dataset.topology.replicas == 1:
        return
    gather = gather_of_ranks()
    if gather is not None:
        dataset.sync_lane_states(gather)


exchange_now_and_then = sync_lane_states
"""The name of `sync_lane_states` in version 0.1.0."""


def promised_shares(
    mixture: Mixture, taken: tuple[int, int], counts: Sequence[DocumentCount] | None
) -> npt.NDArray[np.float64]:
    """The share of each stream in the tokens `taken`, float64[streams]: that of documents times their mean length."""
    begin, end, epoch = 0, mixture.epoch_size, mixture.takeover.epoch
    if mixture.schedule is not None and taken[0] < taken[1]:
        first = mixture.takeover.begin  # `between` counts from an epoch, and `taken` from the run's beginning
        begin = max(taken[0] - first, mixture.takeover.sample)  # documents before it followed another mixture
        end = max(taken[1] - first, begin + 1)
    documents = ExpectedCounts(mixture).between(epoch, begin, end)
    if counts is None:
        return documents / documents.sum()
    all_documents = max(sum(count.documents for count in counts), 1)
    mean = sum(count.tokens for count in counts) / all_documents
    lengths = [count.tokens / count.documents if count.documents else mean for count in counts]
    tokens = documents * np.array(lengths)
    return tokens / max(float(tokens.sum()), 1e-9)
