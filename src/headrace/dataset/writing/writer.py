"""The writers of a dataset, to a folder, to a store, or both: `Writer`, whatever the format, and one of each format."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.dataset.arguments import check_kind
from headrace.dataset.writing.claim import Claim, FolderClaim, read_mark
from headrace.dataset.writing.columns import FirstSamples
from headrace.dataset.writing.pipeline import Progress, ShardPipeline
from headrace.dataset.writing.place import FolderPlace, Place, StorePlace, may_hold
from headrace.dataset.writing.start import INDEX, Journal, Terms
from headrace.errors import ConfigError, StorageError
from headrace.errors.mapping import add_note
from headrace.format import (
    CollectedShard,
    JSONEncoder,
    MDSEncoder,
    ShardEncoder,
    ShardInfo,
    ShardPieces,
    XSVEncoder,
    bytes_to_int,
    dump_index,
)
from headrace.format.encoder import as_sequence, common_length
from headrace.storage import Retry, StoreOptions, open_store
from headrace.storage.output import Out, split_out
from headrace.storage.stores.local import mapped_output_errors

Columns: TypeAlias = Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]
_open: Final[weakref.WeakValueDictionary[str, Writer]] = weakref.WeakValueDictionary()
"""The writers of this process by the tokens of their marks."""


class Writer:
    """Writes samples into shards, and at the end their index.

    The index comes last, after all shards, so a dataset whose writer crashed has none. The next writer to the same
    `out` removes the files and the temporary folder of a killed one, or continues it (`resume`). Once the index is
    stored, at the URL if there is one, nothing is deleted but the writer's own notes. The next writer with `append`,
    `resume` or `exist_ok` removes leftover notes.

    Full shards are compressed, hashed, stored and uploaded in threads. An error there is raised by the next call.

    Args:
        encoder: makes the encoder of given columns, which turns samples into shards.
        columns: the columns; by default those of the dataset that is continued, or of the first samples.
        out: a folder, a URL, or both as `(folder, URL)`.
        keep_local: with a URL, whether the shards stay in the folder too.
        exist_ok: whether to empty a folder, or a prefix of a store, that holds something. It also gives up a writer of
            this process that has no `with` block, such as one that an exception left behind; as does `resume`.
        append: whether to add to the finished dataset that `out` holds, if there is one. The new index replaces the old
            one at the end, so readers see the old samples or all.
        resume: whether to continue behind the whole shards of a writer that was killed or raised. `num_samples` says
            how many samples they hold: leave these out. After an error the whole shards stay. On a store this also
            takes over from a writer on another machine, so nothing else may write there.
        progress_bar: whether to show a progress bar with samples, bytes, rates, and the time left.
        total: samples of the whole dataset, for the bar's time left.
        retry: attempts after the first for an upload that fails.
        max_workers: shards that are stored or uploaded at one time.
        options: how to reach the store.

    Raises:
        FileExistsError: another writer writes to `out`, or it holds more than `exist_ok`, `append` and `resume` allow
            and more than leftovers of a writer that was killed on this machine.
        ConfigError: an argument breaks a rule, or differs from that of the dataset that is continued.
    """

    def __init__(
        self,
        encoder: Callable[[Mapping[str, Any]], ShardEncoder],
        columns: Mapping[str, Any] | None,
        *,
        out: Out,
        keep_local: bool = False,
        exist_ok: bool = False,
        append: bool = False,
        resume: bool = False,
        progress_bar: bool = False,
        total: int | None = None,
        retry: int = 2,
        max_workers: int | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        for name, value, kind in (
            ('keep_local', keep_local, bool),
            ('progress_bar', progress_bar, bool),
            ('total', total, int),
            ('retry', retry, int),
            ('max_workers', max_workers, int),
        ):
            check_kind(name, value, kind)
        if retry < 0 or (max_workers is not None and max_workers < 1):
            raise ConfigError(
                f'`retry` of a writer is 0 or more, and `max_workers` is 1 or more, but got {retry} and {max_workers}.'
            )
        made = None if columns is None else encoder(columns)
        self._make_encoder = encoder
        self.meanings: Mapping[str, str] = {}
        """Meanings of columns beyond their encodings, by name; see `Schema.meanings`."""
        folder, remote = split_out(out)
        terms = Terms(
            exist_ok=exist_ok,
            append=append,
            resume=resume,
            settings=lambda shard: {'cost': None, **(made or encoder(shard.schema.columns)).get_config()},
        )
        self._is_resumable = resume
        store = None if remote is None else open_store(remote, options or StoreOptions())
        self._store = None if store is None else StorePlace(store, Retry(attempts=1 + retry))
        self._keep_local = keep_local or self._store is None
        if exist_ok or resume:
            _give_up([*([] if folder is None else [FolderPlace(folder)]), *([self._store] if self._store else [])])
        beside = _sizes_in(folder) if self._store and keep_local and folder is not None else None
        claim = Claim(folder, self._store, terms, keep_local=keep_local, beside=beside)
        self._claim, self._remote_claim, self._start = claim.folder, claim.store, claim.start
        self.local = self._claim.path
        self.remote = remote
        self._free = weakref.finalize(self, _release, self._claim, os.getpid())
        self._free.atexit = False
        _open[self._claim.mark.token] = self
        self._has_block = False
        self._index: bytes | None = None
        """The index, once it may be stored."""
        self._journal = Journal(self._store or self._claim.place)
        try:
            if not self._start.is_finished:
                self._journal.begin(self._start.whole, self._start.journal)
        except BaseException:
            self._free.detach()
            self._claim.release(is_done=not self._is_resumable)
            raise
        cores = os.cpu_count() or 1
        threads = max_workers or min(8, 2 * cores)
        self._pipeline = ShardPipeline(
            self._write_files, self._upload, self._fail, threads=threads, packed_ahead=min(threads, cores)
        )
        self._stored_before = sum(shard.samples for shard in self._start.whole)
        self._progress = Progress(total, self._stored_before) if progress_bar else None
        self._is_open = True
        self._shards: tuple[ShardInfo, ...] = tuple(self._start.shards) if self._start.is_finished else ()
        self._first: FirstSamples | None = None
        self._encoder: ShardEncoder | None = None
        self._collect: Callable[[Mapping[str, Any]], CollectedShard | None]
        if made is None and self._start.shards:
            made = encoder(self._start.shards[-1].schema.columns)
        if made is None:
            self._first = FirstSamples()
            self._collect = self._collect_first
        else:
            self._encode_with(made)

    @property
    def num_samples(self) -> int:
        """Samples of this dataset so far: those that a killed writer stored (`resume`), and those given since.

        With `append`, samples of the dataset that was there before do not count.
        """
        held = self._stored_before if self._encoder is None else self._encoder.num_samples
        return held + (0 if self._first is None else len(self._first.samples))

    @property
    def shards_before(self) -> tuple[ShardInfo, ...]:
        """The whole shards of the writer that is continued (`resume`), in order; `num_samples` begins with theirs."""
        return tuple(self._start.whole)

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards of the index, in order, once `finish` has written it."""
        return self._shards

    def get_config(self) -> dict[str, Any]:
        """The settings that are stored with each shard.

        Raises:
            ConfigError: the columns are left out, and not yet known.
        """
        if self._encoder is None:
            raise ConfigError(
                'The columns of this writer follow from its first samples: write them, or give `columns`.'
            )
        return self._encoder.get_config()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample.

        Raises:
            KeyError: the sample lacks a column.
            AttributeError, TypeError, ValueError, OverflowError: a value does not fit its column. The message names
                the column, and the sample by the number of samples given before it. The writer skips the sample, and
                can continue.
            OSError: an earlier shard could not be stored or uploaded.
        """
        full = self._collect(sample)
        if full is not None:
            self._pipeline.put(full)
        if self._progress is not None:
            self._progress.written(1)

    def write_batch(self, columns: Columns) -> None:
        """Add many samples: the same dataset as of `write`, sample by sample, in a fraction of the time.

        Args:
            columns: the values of each column, equally many. A column is a list, an array whose first axis is the
                sample, or an object that converts to one, such as a tensor. Numbers of an array of one axis count as
                Python numbers.

        Raises:
            KeyError: a column is missing.
            AttributeError, TypeError, ValueError, OverflowError: as for `write`, or the columns differ in length. None
                of the samples is added, and the writer can continue.
            OSError: an earlier shard could not be stored or uploaded.
        """
        self._pipeline.check()
        self._check_open()
        if self._first is not None:
            columns = {name: as_sequence(name, values) for name, values in columns.items()}
            if not common_length(columns):
                return
            self._first.add_rows(columns)
            self._end_inference()
        assert self._encoder is not None
        before = self._encoder.num_samples
        for full in self._encoder.collect_batch(columns):
            self._pipeline.put(full)
        if self._progress is not None:
            self._progress.written(self._encoder.num_samples - before)

    def finish(self) -> None:
        """Write the last shards, then the index. A second call does nothing.

        Raises:
            OSError: a shard or the index could not be stored or uploaded.
        """
        if not self._is_open:
            return
        try:
            if self._start.is_finished:
                self._mend_local_index()
            else:
                self._end_inference()
                last = None if self._encoder is None else self._encoder.cut()
                if last is not None:
                    self._pipeline.put(last)
                self._shards = (*self._start.shards, *self._pipeline.finish())
                self._store_index(dump_index(self._shards, meanings=self.meanings))
            self._journal.remove([*self._start.journal, *(self._start.obsolete if self._start.is_finished else ())])
            self._close(is_done=True)
            # Last: the mark at the URL tells the next writer that this one has finished.
            if self._remote_claim is not None:
                self._remote_claim.release()
        except BaseException as error:
            if self._may_be_stored():
                add_note(
                    error,
                    f'The index of {self.remote or self.local} may be stored, and then the dataset is whole. '
                    f'`resume=True` says so, and removes what this writer has left.',
                )
            raise

    def _store_index(self, index: bytes) -> None:
        """Finish the dataset: from here on nothing of it is deleted."""
        self._index = index
        if self._remote_claim is not None:
            self._remote_claim.check()
            self._remote_claim.place.write(INDEX, index)
        if self._keep_local:
            self._claim.place.write(INDEX, index)

    def _mend_local_index(self) -> None:
        """Give the folder the index of the store, if a writer was killed between both."""
        if self._remote_claim is not None and self._keep_local:
            there = self._claim.place.sizes()
            if all(there.get(name) == size for shard in self._start.shards for name, size in shard.stored.items()):
                self._claim.place.write(INDEX, self._remote_claim.place.read(INDEX))

    def _may_be_stored(self) -> bool:
        """Whether the index is stored; also if nobody can tell."""
        if self._start.is_finished or self._index is None:
            return self._start.is_finished
        return may_hold(self._store or self._claim.place, INDEX, self._index)

    def abort(self) -> None:
        """Stop without an index. With `resume` the whole shards stay, else the files of the folder go.

        If the index is stored already, all stays as a killed writer leaves it.
        """
        if not self._is_open:
            return
        is_done = False
        try:
            self._pipeline.stop()
            if not self._is_resumable and not self._may_be_stored():
                is_done = self._claim.remove_files()
        finally:
            self._close(is_done=is_done)

    def _encode_with(self, encoder: ShardEncoder) -> None:
        encoder.start_at(self._start.taken, self._stored_before)
        self._encoder = encoder
        self._collect = self._refuse if self._start.is_finished else encoder.collect

    def _collect_first(self, sample: Mapping[str, Any]) -> None:
        assert self._first is not None
        if self._first.add(sample):
            self._end_inference()

    def _end_inference(self) -> None:
        """Infer the columns, and encode the samples that waited for them."""
        first = self._first
        if first is None or not first.samples:
            return
        encoder = self._make_encoder(first.columns())
        self._first = None
        self._encode_with(encoder)
        refused: Exception | None = None
        for sample in first.given:
            try:
                full = encoder.collect(sample)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                refused = refused or error
                continue
            if full is not None:
                self._pipeline.put(full)
        if refused is not None:
            raise refused

    def _refuse(self, sample: Mapping[str, Any]) -> None:
        del sample
        self._pipeline.check()
        self._check_open()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError('This writer is closed: samples are written before `finish` or inside its `with` block.')
        if self._start.is_finished:
            raise FileExistsError(
                f'The dataset is finished: the index of {self.remote or self.local} has the {self._stored_before} '
                f'samples of `num_samples`. Leave these out, or pass `append=True` without `resume` to add others.'
            )

    def _fail(self) -> None:
        self._collect = self._refuse

    def _write_files(self, shard: ShardPieces) -> None:
        for name, pieces in shard.files:
            self._claim.place.write_pieces(name, pieces)

    def _upload(self, shard: ShardInfo) -> None:
        if self._remote_claim is not None:
            self._remote_claim.check()
            for name, size in shard.stored.items():
                path = self.local / name
                with mapped_output_errors(path), open(path, 'rb') as file:
                    self._remote_claim.place.upload(name, file, size)
                if not self._keep_local:
                    self._claim.place.delete(name)
        self._journal.add(shard)
        if self._progress is not None:
            self._progress.stored(shard)

    def _close(self, *, is_done: bool) -> None:
        self._is_open = False
        self._free.detach()
        self._claim.release(is_done=is_done)
        self._collect = self._refuse
        if self._encoder is not None:
            # A closed writer may live long, beside the training.
            self._encoder.release()
        if self._progress is not None:
            self._progress.close()

    def __enter__(self) -> Writer:
        self._has_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.finish()
        except BaseException:
            self.abort()
            raise


def _give_up(places: Sequence[Place]) -> None:
    """Abort the writers of this process to these places, unless the ends of their `with` blocks do so."""
    for place in places if _open else ():
        with contextlib.suppress(StorageError):  # the claim says what is wrong
            mark = read_mark(place)
            writer = None if mark is None else _open.get(mark.token)
            if writer is not None and not writer._has_block:
                writer.abort()


def _release(claim: FolderClaim, process: int) -> None:
    """Free the folder of a writer that nobody has any more, as a killed one does."""
    if os.getpid() == process:
        claim.release(is_done=False)


def _sizes_in(folder: Path) -> dict[str, int]:
    return FolderPlace(folder).sizes() if folder.is_dir() else {}


class MDSWriter(Writer):
    """Writes MDS shards, which hold any value; `headrace.format.get_mds_encodings` names the encodings.

    Args:
        columns: encoding of each column: a name, or an `Encoding` or its class, which is registered under its name.
            Left out: found from the first samples, and printed.
        out: a folder, a URL, or both as `(folder, URL)`.
        keep_local, exist_ok, append, resume, progress_bar, total, retry, max_workers, options: see `Writer`.
        compression: 'zstd', 'br', 'bz2', 'gz' or 'snappy', with a level as in 'zstd:7'.
        hashes: names of hashes to store in the index, sorted.
        size_limit: bytes of a shard file before compression, as a number or text ('64mb'); None for a single shard.
        cost: the column whose numbers, or lengths, streams with the same `cost` read from the heads of shards.

    Raises:
        ValueError: an argument breaks a rule, or is unknown.
        FileExistsError: `out` holds something; see `Writer`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, Any] | None = None,
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        cost: str | None = None,
        **kwargs: Any,
    ) -> None:
        encoder = partial(
            MDSEncoder, compression=compression, hashes=hashes, size_limit=_checked(size_limit), cost=cost
        )
        super().__init__(encoder, columns, out=out, keep_local=keep_local, **_known(type(self), kwargs))


class JSONWriter(Writer):
    """Writes JSONL shards of columns 'str', 'int' and 'float'; see `MDSWriter`.

    Args:
        columns: encoding of each column; left out, the first samples tell them.
        newline: the end of a line.
        out, keep_local, compression, hashes, size_limit: see `MDSWriter`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, Any] | None = None,
        out: Out,
        newline: str = '\n',
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        limit = _checked(size_limit)
        encoder = partial(JSONEncoder, newline=newline, compression=compression, hashes=hashes, size_limit=limit)
        super().__init__(_of_lines(encoder), columns, out=out, keep_local=keep_local, **_known(type(self), kwargs))


class XSVWriter(Writer):
    """Writes shards of lines of separated values, without quoting; see `MDSWriter`.

    Args:
        columns: encoding of each column: 'str', 'int' or 'float'; left out, the first samples tell them.
        separator: the text between two values.
        newline: the end of a line.
        out, keep_local, compression, hashes, size_limit: see `MDSWriter`.
    """

    _format = 'xsv'

    def __init__(
        self,
        *,
        columns: Mapping[str, Any] | None = None,
        separator: str | None,
        out: Out,
        newline: str = '\n',
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        encoder = partial(
            XSVEncoder,
            shard_format=self._format,
            separator=separator,
            newline=newline,
            compression=compression,
            hashes=hashes,
            size_limit=_checked(size_limit),
        )
        super().__init__(_of_lines(encoder), columns, out=out, keep_local=keep_local, **_known(type(self), kwargs))


class CSVWriter(XSVWriter):
    """Writes comma-separated shards; see `XSVWriter`."""

    _format = 'csv'

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**_known(type(self), kwargs, 'separator'), separator=None)


class TSVWriter(XSVWriter):
    """Writes tab-separated shards; see `XSVWriter`."""

    _format = 'tsv'

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**_known(type(self), kwargs, 'separator'), separator=None)


_ARGUMENTS = {
    'columns', 'out', 'keep_local', 'compression', 'hashes', 'size_limit', 'newline', 'exist_ok', 'append', 'resume',
    'progress_bar', 'total', 'retry', 'max_workers', 'options',
}  # fmt: skip


def _known(writer: type[Writer], arguments: dict[str, Any], *refused: str) -> dict[str, Any]:
    unknown = sorted(set(arguments) - _ARGUMENTS | set(arguments).intersection(refused))
    if unknown:
        raise ConfigError(
            f'{writer.__name__} got an Invalid Writer argument: {unknown[0]!r}. It takes {sorted(_ARGUMENTS)}.'
        )
    return arguments


def _of_lines(encoder: Callable[[Mapping[str, Any]], ShardEncoder]) -> Callable[[Mapping[str, Any]], ShardEncoder]:
    return lambda columns: encoder({name: 'float' if kind == 'float64' else kind for name, kind in columns.items()})


def _checked(size_limit: int | str | None) -> int | None:
    limit = None if size_limit is None else bytes_to_int(size_limit)
    if limit is not None and limit >= 1 << 32:
        raise ConfigError(f'`size_limit` must be less than 2**32 bytes, but is {size_limit!r}.')
    return limit
