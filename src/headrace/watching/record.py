"""Writes the record of a run: which samples each step trains, as positions; the ids follow from the plan.

The record is a file of lines that are appended. A line is a checksum of eight hexadecimal digits, a space, and JSON. A
process that is killed while it writes leaves a line that is cut. A reader ignores it, and the next writer begins a new
line behind it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, cast

from headrace.dataset import Stream, StreamingDataLoader
from headrace.dataset.streams.past import keep_index
from headrace.errors import ConfigError, HeadraceError
from headrace.errors.redaction import warn, without_credentials
from headrace.metrics.step_report import skip_with
from headrace.mixing import load_config, to_mapping
from headrace.order import BatchPlan, StreamSize
from headrace.order.config import ORDER_ARGUMENTS
from headrace.packing import PackedDataset, Packing, StreamPacking
from headrace.version import __version__
from headrace.watching.status import RankStatus

RECORD = 'headrace.record'  # name of the file in a run's folder

_CHECKSUM = 8  # digits


class RecordFile:
    """Appends entries to a run's record. An error of the disk is a warning; the next entry brings the missing lines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD
        self._waiting = deque[bytes]()
        self._has_warned = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, 'ab+', buffering=0)  # noqa: SIM115 - open until `close`
        except OSError as error:
            raise ConfigError(
                f'The record of a run is a file in a folder of this machine, but {self.path} cannot be written to: '
                f'{error.strerror}. Give another `folder`.'
            ) from error

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append an entry of plain values. One write call, so that lines of several processes do not mix."""
        text = json.dumps(entry, separators=(',', ':')).encode()
        self._waiting.append(b'%08x %s\n' % (zlib.crc32(text), text))
        try:
            self._write_waiting()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f'The record {self.path} cannot be written to: {error.strerror}. The training continues, and the '
                    f'lines wait in memory for the next ones. Make room on the disk.'
                )

    def _write_waiting(self) -> None:
        while self._waiting:
            line = self._waiting[0]
            size = self._file.seek(0, os.SEEK_END)
            if size:
                self._file.seek(size - 1)
                if self._file.read(1) != b'\n':  # a process was killed, or the disk full, in the middle of a line
                    line = b'\n' + line
            if self._file.write(line) == len(line):
                self._waiting.popleft()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # some file systems say here that an earlier write failed
            self._file.close()


class RecordRead(NamedTuple):
    entries: list[dict[str, Any]]  # in the order in which they were written
    damaged: int  # lines that were cut or changed; each was ignored


def read_record(folder: Path) -> RecordRead:
    path = folder / RECORD
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f'A run with a record has a file {RECORD} in its folder, but {path} cannot be read: {error.strerror}. Name '
            f'the folder that the callback `RunRecord` wrote to.'
        ) from error
    entries: list[dict[str, Any]] = []
    damaged = 0
    for line in content.split(b'\n'):
        entry = _entry(line)
        if entry is not None:
            entries.append(entry)
        elif line:
            damaged += 1
    return RecordRead(entries, damaged)


def _entry(line: bytes) -> dict[str, Any] | None:
    checksum, text = line[:_CHECKSUM], line[_CHECKSUM + 1 :]
    if line[_CHECKSUM : _CHECKSUM + 1] != b' ' or checksum != b'%08x' % zlib.crc32(text):
        return None
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    return cast('dict[str, Any]', entry) if isinstance(entry, dict) else None


_OF_STREAM = (
    *('split', 'endpoint_url', 'region', 'anonymous', 'requester_pays', 'fraction_seed'),
    *('columns', 'format', 'format_options', 'cost'),
)


def loader_config(loader: StreamingDataLoader) -> dict[str, Any] | None:
    """A training loader's configuration as YAML, without credentials and store options; None if YAML cannot say it."""
    dataset = loader.dataset
    packing = dataset.packing if isinstance(dataset, PackedDataset) else None
    if any(
        settings is not None and settings.tokenizer for settings in (packing, *(s.packing for s in dataset.streams))
    ):
        return None
    run = dataset.sample_run
    arguments = run.settings
    order = arguments.order
    values: dict[str, Any] = {
        'streams': [
            {**_stream_config(stream), **_weight_config(size)}
            for stream, size in zip(dataset.streams, run.mixture.streams, strict=True)
        ],
        'packing': _packing_config(packing),
        'global_batch_size': loader.global_batch_size,
        'remainder': loader.remainder,
        'uneven': dataset.uneven,
        'on_growth': dataset.on_growth if dataset.follows_growth else None,
        'epoch_size': arguments.epoch_size,
        'when_exhausted': arguments.when_exhausted,
        'balance': arguments.balance,
        'skip': skip_with(dataset, (), ()),
        **{key: getattr(order, name) for key, name in ORDER_ARGUMENTS.items()},
    }
    if type(order.seed) is not int:  # a default that nobody gave
        del values['shuffle_seed']
    if order.batch_cost is not None:
        values['batch_cost'] = order.batch_cost.plain
    if arguments.schedule is not None:
        values['schedule'] = [dataclasses.asdict(point) for point in arguments.schedule.points]
    given = {key: value for key, value in values.items() if value is not None}
    try:
        config = load_config({'train': given}).train
        assert config is not None
        return json.loads(json.dumps(to_mapping(config)))
    except (HeadraceError, TypeError, ValueError):  # a selection by a Python function, for example
        return None


def _stream_config(stream: Stream) -> dict[str, Any]:
    config: dict[str, Any] = {'name': stream.name, 'local': os.path.abspath(stream.local)}  # noqa: PTH100 - keeps links
    if stream.remote is not None:
        remote = without_credentials(stream.remote)
        config['remote'] = remote if '://' in remote else os.path.abspath(remote)  # noqa: PTH100
    config |= {name: getattr(stream, name) for name in _OF_STREAM}
    if stream.endpoint_url is not None:
        config['endpoint_url'] = without_credentials(stream.endpoint_url)
    for name in ('subset', 'fraction', 'where'):  # as users write them, or read already
        value = getattr(stream, name)
        config[name] = getattr(value, 'plain', value)
    config['packing'] = _packing_config(stream.packing)
    return {key: value for key, value in config.items() if value is not None and value != ''}


def _packing_config(packing: Packing | StreamPacking | None) -> dict[str, Any] | None:
    values = {} if packing is None else dataclasses.asdict(packing)
    return {name: value for name, value in values.items() if value is not None} or None


def _weight_config(size: StreamSize) -> dict[str, Any]:
    weights = {'proportion': size.proportion, 'repeat': size.repeat, 'choose': size.choose}
    return {key: value for key, value in weights.items() if value is not None}


_LIBRARIES = ('torch', 'numpy', 'lightning', 'mosaicml', 'tokenizers', 'transformers')


def library_versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries that have to do with data."""
    versions = {name: _version(name) for name in _LIBRARIES}
    versions_here = {'python': platform.python_version(), 'headrace': __version__}
    return versions_here | {name: text for name, text in versions.items() if text}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def code_of_run() -> dict[str, str]:
    """The program, and its commit as git's files tell it. Changes that are not committed do not show."""
    path = Path(sys.argv[0] or '.').absolute()
    code = {'program': str(path)}
    for folder in (path, *path.parents):
        commit = _commit(folder / '.git')
        if commit:
            return {**code, 'commit': commit}
    return code


def _commit(git: Path) -> str | None:
    try:
        if git.is_file():  # a worktree's names its folder
            git = git.parent / git.read_text().removeprefix('gitdir:').strip()
        head = (git / 'HEAD').read_text().strip()
        if not head.startswith('ref:'):
            return head
        name = head.removeprefix('ref:').strip()
        common = git / 'commondir'
        shared = git / common.read_text().strip() if common.exists() else git
        if (shared / name).exists():
            return (shared / name).read_text().strip()
        packed = (shared / 'packed-refs').read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((line.split(' ')[0] for line in packed if line.endswith(f' {name}')), None)


_URL = re.compile(r'[A-Za-z][A-Za-z0-9+.-]+:/')  # not the drive C:/
_OF_POSITION = ('epoch', 'sample_in_epoch')
_PINNED_POSITION = ('cuts', 'count')  # of a state's `config`


@dataclass(slots=True)
class _Followed:
    loader: StreamingDataLoader
    config: str  # id of its configuration's entry
    plan: BatchPlan | None = None
    first_step: int = 0  # the step of the plan's first batch


class RunRecorder:
    """Writes down where each step of a run is in the data, for `headrace explain --run`, and shows it while it trains.

    Each rank writes a small file with its rates and waits, for `headrace watch`. Only rank 0 writes the record. A new
    pass, a checkpoint and a resume write a line of about 100 bytes; a new mixture or
    configuration is written once. A killed process loses at most the line that it was writing. An error of the disk
    during the run is a warning.

        record = RunRecorder('runs/a')
        record.begin({'': loader}, step=steps_of_the_checkpoint)
        for batch in loader:
            ...
            record.batch_done()
        record.end()

    Args:
        folder: the run's folder, the same after each resume.
        every: seconds after which the step is written down again without a checkpoint.
        clock: seconds, from anywhere.
        status_every: seconds between two writes of a rank's status; None writes no status to watch.

    Raises:
        ConfigError: the folder is a URL; or, at `begin`, the record cannot be opened.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        status_every: float | None = 2.0,
    ) -> None:
        if _URL.match(str(folder)):
            raise ConfigError(
                f'The record of a run is a file in a folder of this machine, got {folder}. Give a local '
                f'`folder`, the same after each resume.'
            )
        self.folder = Path(folder)
        """The run's folder."""
        self.step = 0
        """Batches trained in the run."""
        self._every, self._clock = every, clock
        self._status = None if status_every is None else RankStatus(folder, every=status_every, clock=clock)
        self._file: RecordFile | None = None
        self._followed: dict[str, _Followed] = {}
        self._known = set[str]()
        self._written_at = 0.0

    def begin(self, loaders: Mapping[str, StreamingDataLoader], *, step: int = 0) -> None:
        """Begin a segment of the run: its start, or a resume.

        Args:
            loaders: the training loaders by name; a single one is ''.
            step: global batches that the run has trained by then, as the trainer counts them.
        """
        self.end()
        self.step = step
        topology = next(iter(loaders.values())).dataset.topology
        self._followed = {}
        if self._status is not None:
            self._status.begin(loaders, step=step)
        if topology.rank:
            return
        self._file, self._known, self._written_at = RecordFile(self.folder), set(), self._clock()
        self._add(
            'segment',
            format=1,
            time=round(time.time(), 3),
            topology={
                'world_size': topology.world_size,
                'num_nodes': topology.num_nodes,
                'replication': topology.replication,
            },
            versions=library_versions(),
            code=code_of_run(),
        )
        self.follow(loaders)

    def follow(self, loaders: Mapping[str, StreamingDataLoader]) -> None:
        """Follow these loaders from now on, which the trainer may have replaced."""
        if self._status is not None:
            self._status.follow(loaders)
        for name, loader in loaders.items():
            if self._file is not None and (name not in self._followed or self._followed[name].loader is not loader):
                self._followed[name] = _Followed(loader, self._once('config', {'config': loader_config(loader)}))

    def batch_done(self) -> None:
        """A global batch of each loader was trained."""
        self.step += 1
        if self._status is not None:
            self._status.batch_done()
        if self._file is None:
            return
        for name, followed in self._followed.items():
            handed_out = followed.loader.handed_out
            if handed_out is not None and handed_out[0] is not followed.plan:
                self._begin_pass(name, followed, handed_out[0])
        if self._clock() - self._written_at >= self._every:
            self.flush()

    def _begin_pass(self, name: str, followed: _Followed, plan: BatchPlan) -> None:
        loader, epoch = followed.loader, plan.order.epoch
        followed.plan, followed.first_step = plan, self.step - 1
        for stream in loader.dataset.pool.streams:
            if not stream.is_local:
                keep_index(self.folder, stream.fingerprint, stream.cache.index.path)
        state = loader.dataset.resume_state(epoch, plan.start, loader.global_batch_size, loader.remainder).to_dict()
        pinned = json.loads(str(state['config']))
        of_position = {key: pinned.pop(key) for key in _PINNED_POSITION if key in pinned}
        decided = None
        for decision in pinned.pop('decisions', ()):
            if decision['digest'] not in self._known:
                self._known.add(decision['digest'])
                self._add('decision', loader=name, after=decided, **decision)
            decided = decision['digest']
        mixture = {key: value for key, value in state.items() if key not in (*_OF_POSITION, 'config')}
        now = [mixture for begin, mixture in plan.order.mixtures if begin <= plan.start][-1]
        if isinstance(loader.dataset, PackedDataset):  # its plan deals sequences, which hold documents of all streams
            now, _ = loader.dataset.read_order()
        shares = zip(now.streams, now.proportions, strict=True)
        self._add(
            'pass',
            loader=name,
            first_step=followed.first_step,
            epoch=epoch,
            sample=plan.start,
            config=followed.config,
            mixture=self._once(
                'mixture',
                {'state': {**mixture, 'config': pinned}, 'proportions': {s.name: share for s, share in shares}},
            ),
            **({'of_position': of_position} if of_position else {}),
            **({'decided': decided} if decided else {}),
        )

    def checkpoint(self, step: int | None = None) -> None:
        """A checkpoint is saved.

        Args:
            step: batches that it has trained; by default all that were reported.
        """
        if self._file is None:
            return
        step = self.step if step is None else step
        places: dict[str, list[int]] = {}
        for name, followed in self._followed.items():
            plan, done = followed.plan, step - followed.first_step
            if plan is not None and 0 <= done == len(plan.batches(0, done)):
                places[name] = [plan.order.epoch, plan.end(done - 1) if done else plan.start]
        self._add('checkpoint', at=step, time=round(time.time(), 3), places=places)

    def flush(self) -> None:
        """Write down the step that was reached."""
        if self._file is not None:
            self._add('reached')

    def pause(self) -> None:
        """Stop the clock of the rates for an evaluation."""
        if self._status is not None:
            self._status.pause()

    def resume(self) -> None:
        """Restart the clock of the rates after `pause`."""
        if self._status is not None:
            self._status.resume()

    def end_status(self, state: str = 'ended') -> None:
        """Say that the training is over, or has failed; the record stays open for a last checkpoint."""
        if self._status is not None:
            self._status.end(state)

    def end(self) -> None:
        """End the segment."""
        self.end_status()
        if self._file is not None:
            self._add('end', time=round(time.time(), 3))
            self._file.close()
            self._file = None

    def _once(self, kind: str, content: Mapping[str, Any]) -> str:
        """Write an entry that later ones refer to, unless this segment has it; returns its id."""
        text = json.dumps(content, default=list)  # the order of streams counts
        key = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        if key not in self._known:
            self._known.add(key)
            self._add(kind, id=key, **json.loads(text))
        return key

    def _add(self, kind: str, **content: Any) -> None:
        assert self._file is not None
        self._file.add({'kind': kind, 'step': self.step, **content})
        self._written_at = self._clock()
