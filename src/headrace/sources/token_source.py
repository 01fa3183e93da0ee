"""Sources of tokens: runs of documents, or of blocks of tokens, in the column ``tokens``.

A part is about 16 MiB of whole samples. The index counts the samples of a part, and the lengths of its documents are
read with it. So the memory of an index does not grow with the documents.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.errors import FormatError, ShardError, StreamError
from headrace.errors.display import count_text
from headrace.sources.formats import SIDECARS, choose_columns
from headrace.sources.protocol import Part
from headrace.sources.ranges import ByteRange, read_ranges
from headrace.sources.source_bytes import PartTable, pack_source, unpack_source
from headrace.storage import ObjectInfo, Store

_COLUMN: Final = 'tokens'
PART: Final = 16 << 20  # Bytes of a part, about.
_ROW: Final = 16  # Bytes of a shard for each sample besides its tokens.
_BATCH: Final = 1 << 20  # Bytes of tokens of a batch.

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """Tokens one after another, in one object or several."""

    objects: Sequence[ObjectInfo]  # In order. The tokens go on from one to the next.
    begin: int = 0  # Bytes before the first token.
    dtype: str
    count: int

    @property
    def name(self) -> str:
        """The first object, for messages."""
        return self.objects[0].key

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def part(self, first: int, count: int, rows: int, beside: Iterable[tuple[str, int, int]] = ()) -> Part:
        """The part of `count` tokens from `first` on. `beside`: see `Part`."""
        spans: list[tuple[str, int, int]] = []
        at = self.begin + first * self.itemsize
        stop = at + count * self.itemsize
        for info in self.objects:
            if at < min(stop, info.size):
                spans.append((info.key, at, min(stop, info.size) - at))
            at, stop = max(at - info.size, 0), stop - info.size
        *others, (key, offset, size) = spans
        taken = count * self.itemsize + _ROW * rows + 64
        return Part(key=key, ranges=((offset, size),), rows=rows, size=taken, beside=(*beside, *others))


@dataclass(frozen=True, slots=True)
class TokenRuns:
    file: TokenFile
    parts: Sequence[Part]
    length: int  # Tokens of each sample, except the last of a file of blocks; 0: documents differ.
    is_blocks: bool = False  # Whether documents are not known.
    rest: int = 0  # Tokens at the end that fill no block.
    empty: int = 0  # Documents without tokens, which are left out.
    lacks_end: bool = False  # Whether no token ends a document, though one should.


def runs_of_blocks(file: TokenFile, length: int, *, keep_last: bool = False, empty: int | None = None) -> TokenRuns:
    """Parts of samples of one length. `keep_last`: whether the last ones are a sample, if they are fewer.

    the samples are documents, beside this number without tokens.
    """
    rest = file.count % length
    count = file.count if keep_last else file.count - rest
    step = max(PART // file.itemsize // length, 1) * length
    sizes = [(first, min(step, count - first)) for first in range(0, count, step)]
    parts = [file.part(first, size, -(-size // length)) for first, size in sizes]
    return TokenRuns(file, parts, length, is_blocks=empty is None, rest=rest, empty=empty or 0)


@dataclass(frozen=True, slots=True)
class Cuts:
    places: Integers
    """int64[runs + 1, 2 + numbers], documents and samples before each run, and the numbers there; then after all."""
    length: int  # Tokens of each document that is not empty; 0: they differ.
    empty: int  # Documents without tokens.


def cut_documents(chunks: Iterable[Integers], step: int) -> Cuts:
    """Cut documents into runs of about `step` tokens. A run ends with the last document before a multiple of it.

    `chunks`: int64[documents, numbers], the place after each document: the number of tokens, and perhaps others. None
    falls.
    """
    last: Integers | None = None
    places: list[Integers] = []
    documents = samples = 0
    lengths: set[int] = set()
    for chunk in chunks:
        if last is None:
            last = np.zeros((1, chunk.shape[1]), np.int64)
        ends = np.concatenate([last, chunk])
        sizes = np.diff(ends[:, 0])
        is_sample = sizes > 0
        lengths |= {*map(int, (sizes[is_sample].min(), sizes[is_sample].max()))} if is_sample.any() else set()
        before = samples + np.concatenate([[0], np.cumsum(is_sample)])
        cuts = np.flatnonzero(np.diff(ends[:, 0] // step))
        places.append(np.column_stack([documents + cuts, before[cuts], ends[cuts]]))
        documents, samples, last = documents + len(chunk), int(before[-1]), ends[-1:]
    if last is None:
        return Cuts(np.zeros((1, 3), np.int64), 0, 0)
    begin, end = np.zeros((1, 2 + last.shape[1]), np.int64), [[documents, samples, *last[0]]]
    runs = np.concatenate([begin, *places, end])
    # A first run without samples belongs to the next one.
    kept = np.concatenate([[True], np.diff(runs[:, 1]) > 0])
    return Cuts(runs[kept], lengths.pop() if len(lengths) == 1 else 0, documents - samples)


def runs_of_documents(
    file: TokenFile, cuts: Cuts, beside: Callable[[Integers, Integers], Iterable[tuple[str, int, int]]]
) -> TokenRuns:
    """Parts of whole documents.

    `beside`: of the places before and after a run, the ranges with the lengths of its documents.
    """
    if cuts.length:
        return runs_of_blocks(file, cuts.length, empty=cuts.empty)
    parts: list[Part] = []
    for before, after in pairwise(cuts.places):
        rows, tokens = (int(number) for number in after[1:3] - before[1:3])
        parts.append(file.part(int(before[2]), tokens, rows, beside(before, after)))
    return TokenRuns(file, parts, 0, empty=cuts.empty)


def source_of(
    name: str,
    runs: Sequence[TokenRuns],
    columns: Collection[str] | None,
    end_of_document: int | None = None,
    keep_last: bool = False,
) -> TokenSource:
    choose_columns([_COLUMN], columns, source=f'{name} data')
    notes = _notes(runs, keep_last)
    runs = [run for run in runs if run.parts]
    keys: dict[str, str] = {}
    for run in runs:
        keys.setdefault(run.file.dtype, run.file.name)
    if len(keys) > 1:
        (dtype, key), (other, other_key), *_ = keys.items()
        raise FormatError(
            f'The tokens of a dataset have one dtype, but {key} has {dtype}, and {other_key} has {other}. Read them as '
            f'several streams.'
        )
    lengths = {0 if run.rest and keep_last else run.length for run in runs}
    return TokenSource(
        format=name,
        dtype=next(iter(keys), 'int32'),
        length=lengths.pop() if len(lengths) == 1 else 0,
        end_of_document=end_of_document,
        notes=notes,
        parts=PartTable.of(part for run in runs for part in run.parts),
        lengths=np.array([run.length for run in runs for _ in run.parts], np.int64),
    )


def _notes(runs: Sequence[TokenRuns], keep_last: bool) -> list[str]:
    """Facts that a user may not expect."""
    notes: list[str] = []
    blocks = [run for run in runs if run.is_blocks and run.file.count]
    rests = [run for run in blocks if run.rest]
    if blocks:
        first = blocks[0]
        notes.append(
            f'Samples of {_files(blocks)}, are blocks of {first.length:,} tokens, without regard to documents.'
        )
    if rests:
        tokens = sum(run.rest for run in rests)
        what = 'they are shorter samples' if keep_last else 'left out'
        notes.append(f'{tokens:,} tokens at the end of {_files(rests)}, fill no block: {what}.')
        if not keep_last and not any(run.parts for run in runs):
            raise StreamError(
                f'A sample has {blocks[0].length:,} tokens, but all files have fewer, such as {rests[0].file.name} '
                f'with {rests[0].rest:,}. Choose a smaller `block_size`, or `keep_last`.'
            )
    if whole := [run for run in runs if run.lacks_end]:
        if not any(run.parts and not run.lacks_end for run in runs):
            raise StreamError(
                f'`end_of_document` is the token that ends each document, but {_files(whole)}, have no such token. '
                f'Correct it, or `token_dtype`; or leave it out to read blocks.'
            )
        notes.append(f'The token `end_of_document` is not in {_files(whole)}: each is one sample.')
    if empty := sum(run.empty for run in runs):
        notes.append(f'Left out {count_text(empty, "document")} without tokens.')
    return notes


def _files(runs: Sequence[TokenRuns]) -> str:
    return f'{count_text(len(runs), "file")}, such as {runs[0].file.name}'


_SETTINGS: Final = ('format', 'dtype', 'length', 'end_of_document')


def load_tokens(data: bytes) -> TokenSource:
    index = unpack_source(data)
    try:
        settings = {name: index.settings[name] for name in _SETTINGS}
        return TokenSource(
            **settings, parts=PartTable(index.settings['keys'], index.arrays), lengths=index.arrays['lengths']
        )
    except KeyError as error:
        raise FormatError(
            f'The cached index of tokens is of another version of headrace: {error}. Delete it: it is made again.'
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSource:
    """Documents or blocks of tokens, in the column ``tokens``, whose arrays have one axis."""

    format: str
    dtype: str
    length: int  # Tokens of every sample; 0: samples differ.
    end_of_document: int | None  # The token that ends a document, where no ranges beside a part tell the lengths.
    parts: PartTable
    lengths: Integers
    """int64[parts], tokens of each sample of a part, except the last of a file of blocks; 0: documents differ."""
    notes: Sequence[str] = ()  # For the ledger. A loaded source does not know them.

    dropped = ()
    meanings = MappingProxyType({})

    @property
    def columns(self) -> Mapping[str, str]:
        return {_COLUMN: f'ndarray:{self.dtype}' + f':{self.length}' * bool(self.length)}

    def to_bytes(self) -> bytes:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return pack_source({**settings, 'keys': self.parts.keys}, {**self.parts.arrays, 'lengths': self.lengths})

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]]:
        described, length, dtype = self.parts[part], int(self.lengths[part]), np.dtype(self.dtype)
        expected = sum(size for _, _, size in described.beside) + described.ranges[0][1]
        if len(data) != expected:
            raise _damaged(described.key, f'they have {len(data)} bytes, not {expected}')
        beside: list[memoryview] = []
        for key, _, size in described.beside:
            if key.endswith(SIDECARS):
                beside.append(data[:size])
                data = data[size:]
        tokens = np.frombuffer(data, dtype.newbyteorder('<'))
        if length:
            step = max(_BATCH // (length * dtype.itemsize), 1) * length
            for first in range(0, len(tokens), step):
                run = tokens[first : first + step]
                whole = len(run) - len(run) % length
                if whole:
                    yield {_COLUMN: run[:whole].reshape(-1, length)}
                if whole < len(run):
                    yield {_COLUMN: run[None, whole:]}
            return
        if beside:
            bounds = _bounds(_ends(beside, len(tokens), described.key), len(tokens), described.key)
        else:
            bounds = _bounds(document_ends(tokens, self.end_of_document, is_last=True), len(tokens), described.key)
        cuts = np.flatnonzero(np.diff(bounds * dtype.itemsize // _BATCH, append=-1))
        for first, last in pairwise([0, *cuts.tolist()]):
            yield {_COLUMN: [tokens[begin:end] for begin, end in pairwise(bounds[first : last + 1].tolist())]}

    def lengths_of(
        self, part: int, column: str, read: Callable[[Sequence[tuple[str, int, int]]], bytes]
    ) -> list[Integers] | None:
        """See `Source`: of the files beside the tokens. None if only the tokens tell where documents end."""
        del column  # there is one
        described, length = self.parts[part], int(self.lengths[part])
        spans = [span for span in described.beside if span[0].endswith(SIDECARS)]
        stored = described.ranges[0][1] + sum(size for _, _, size in described.beside) - sum(size for *_, size in spans)
        count = stored // np.dtype(self.dtype).itemsize
        if length:
            lengths = np.full(described.rows, length)
            lengths[-1] = count - (described.rows - 1) * length
            return [lengths]
        if not spans:
            return None
        data, beside = memoryview(read(spans)), list[memoryview]()
        for *_, size in spans:
            beside.append(data[:size])
            data = data[size:]
        return [np.diff(_bounds(_ends(beside, count, described.key), count, described.key))]


def _ends(beside: Sequence[memoryview], count: int, where: str) -> Integers:
    """Where each document of a part ends in its `count` tokens, by what is stored beside them; unchecked."""
    if len(beside) == 1:
        ends = np.frombuffer(beside[0], '<i8')
        return ends - (ends[-1] - count)
    documents, lengths = np.frombuffer(beside[0], '<i8'), np.frombuffer(beside[1], '<i4')
    places = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    documents = documents[1:] - documents[0]
    if documents.min() < 0 or documents.max() > len(lengths):
        raise _damaged(where, 'its documents have other sequences than the index says')
    return places[documents]


def _bounds(ends: Integers, count: int, where: str) -> Integers:
    """Where samples begin, and the end of the last one: documents without tokens are none."""
    ends = np.concatenate([[0], ends])
    if (ends[1:] < ends[:-1]).any() or ends[-1] != count:
        raise _damaged(where, 'the lengths of its documents contradict their tokens')
    return ends[np.concatenate([[True], ends[1:] > ends[:-1]])]


def document_ends(tokens: np.ndarray[Any, Any], end_of_document: int | None, *, is_last: bool) -> Integers:
    """Where each document ends. `is_last`: whether the last one ends with the tokens, too."""
    ends = np.flatnonzero(tokens == end_of_document) + 1
    is_open = is_last and len(tokens) and not (len(ends) and ends[-1] == len(tokens))
    return np.append(ends, len(tokens)) if is_open else ends


def _damaged(key: str, reason: str) -> ShardError:
    return ShardError(f'Tokens of {key} do not fit its index: {reason}. Restore the files.')


def read_numbers(
    store: Store, info: ObjectInfo, dtype: str, *, begin: int = 0, count: int, step: int = 1 << 19
) -> Iterator[np.ndarray[Any, Any]]:
    """Numbers of an object in runs of `step`, of which a few are read ahead. `begin`: offset of the first in bytes."""
    size = np.dtype(dtype).itemsize
    starts = range(0, count, step)
    ranges = (ByteRange(info.key, begin + at * size, min(step, count - at) * size, info.etag) for at in starts)
    for data in read_ranges(store, ranges, requests=4, window=4 * step * size):
        yield np.frombuffer(data, dtype)
