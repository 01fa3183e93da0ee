"""LLM Foundry, unmodified, on headrace and on MosaicML Streaming: the same batches, and after a kill -9, too.

    make foundry

It converts text with Foundry's converters, and trains with `llmfoundry train`. Each step compares the output of both
libraries. The end is `PROVEN`, or `FAILED` with the reason. The folder gets `transcript.txt` and all programs' logs.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import csv
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
READERS = {
    'headrace': 'headrace.dataset.dataset.StreamingDataset',
    'MosaicML': 'streaming.base.dataset.StreamingDataset',
}
PAUSE = 33
"""The batch before which a run is killed: the tenth of the second epoch, three after the checkpoint."""
SKIPPED = range(15, 18)
PAUSE_BEHIND_SKIPPED = 22
"""The first epoch then has 21 batches; the checkpoint is of 20."""
TRANSCRIPT = 'transcript.txt'
PATIENCE = 1200
"""Seconds for a training, on a busy machine."""


class Failed(Exception):  # noqa: N818
    """The difference that disproves the claim."""


def require(is_so: bool, rule: str) -> None:
    if not is_so:
        raise Failed(rule)


@dataclass(frozen=True)
class Record:
    """The record that the callback wrote of a run."""

    reader: str
    first: int
    batches: dict[int, tuple[Any, str]]
    """By number: documents, and the loss to the last bit."""
    evaluations: list[Any]

    @classmethod
    def read(cls, path: Path) -> Record:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        start = next(line for line in lines if 'reader' in line)
        batches = {line['train']: (line['documents'], line['loss']) for line in lines if 'train' in line}
        return cls(start['reader'], start['first'], batches, [line for line in lines if 'eval' in line])


class Proof:
    """All steps, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mds = folder / 'mds'
        self._ids: dict[str, str] = {}

    def run(self) -> None:
        """Do everything.

        Raises:
            Failed: something is not as it must be.
        """
        self.verify_source('llm-foundry', 'mosaicml-streaming')
        self.convert()
        self.check_datasets()
        for name in ('pretrain', 'finetune'):
            self.train(name)
        self.take_over()
        self.verify_source('llm-foundry')

    def say(self, text: str = '') -> None:
        """Print, and keep."""
        print(text, flush=True)
        with (self._folder / TRANSCRIPT).open('a') as out:
            out.write(f'{text}\n')

    def verify_source(self, *names: str) -> None:
        """Compare installed files with the hashes of the package from PyPI."""
        for name in names:
            files, version = list(verified_files(name)), importlib.metadata.version(name)
            self.say(
                f'{name} {version}: {len(files)} files are as on PyPI, by the hashes of its RECORD; none was added'
            )

    def convert(self) -> None:
        """Write the datasets with both libraries."""
        self.say('\n== Convert, with the commands of `llmfoundry data_prep` and with ConcatTokensDataset')
        source = self._folder / 'input'
        finish([self._start('data', [sys.executable, HERE / 'data.py', source])])
        other = self._folder / 'mds-mosaicml'
        finish(
            [
                self._start('convert', [*headrace(), HERE / 'convert.py', source, self._mds]),
                self._start('convert-mosaicml', [sys.executable, HERE / 'convert.py', source, other]),
            ]
        )
        for dataset in sorted(path.parent for path in self._mds.rglob('index.json')):
            twin = other / dataset.relative_to(self._mds)
            shards = contents(dataset)
            require(shards == contents(twin), f'{dataset} and {twin} differ')
            rows = sum(shard['samples'] for shard in json.loads(shards['index.json'])['shards'])
            self.say(
                f'{dataset.relative_to(self._mds)!s:<16} {rows:>5} rows, {len(shards) - 1:>3} shards: '
                f'equal to those of MosaicML Streaming, to the byte'
            )

    def check_datasets(self) -> None:
        """Compare what Foundry's classes give."""
        self.say('\n== Datasets and collators')
        command = [HERE / 'checks.py', self._folder / 'input', self._mds]
        finish(
            [
                self._start('checks', [*headrace(), *command, self._folder / 'cache' / 'checks']),
                self._start('checks-mosaicml', [sys.executable, *command, self._folder / 'cache' / 'checks-mosaicml']),
            ]
        )
        ours, theirs = (json.loads(self._log(name).read_text()) for name in ('checks', 'checks-mosaicml'))
        require(
            (ours.pop('reader'), theirs.pop('reader')) == tuple(READERS.values()), 'a library was not the one meant'
        )
        self._ids = ours.pop('ids')
        require(theirs.pop('ids') == self._ids, 'ids differ')
        for check, digests in ours.items():
            require(digests == theirs[check], f'{check} differs')
            unit = 'rows' if isinstance(digests[0], str) else 'batches'
            self.say(f'{check:<40} {len(digests):>4} {unit}: equal')

    def train(self, name: str) -> None:
        """Train whole on both libraries, then killed and resumed."""
        self.say(f'\n== llmfoundry train {name}.yaml')
        kill = [f'callbacks.record_batches.pause_at={PAUSE}']
        finish([self._train(name, 'headrace'), self._train(name, 'MosaicML')])
        self._kill(self._train(name, 'killed', kill), f'{name}-killed')
        finish([self._train(name, 'killed', log='resumed')])

        run, other, before, after = (
            Record.read(self._jsonl(f'{name}-{kind}')) for kind in ('headrace', 'MosaicML', 'killed', 'resumed')
        )
        for record, library in ((run, 'headrace'), (other, 'MosaicML'), (before, 'headrace'), (after, 'headrace')):
            require(record.reader == READERS[library], f'{record.reader} is not of {library}')
        require(sorted(run.batches) == list(range(48)), f'{sorted(run.batches)} are not all batches')
        for number in (0, after.first):
            self.say(f'batch {number:>2}: {self._names(run, number)}')
        require(run.batches == other.batches, 'headrace and MosaicML Streaming differ')
        require(run.evaluations == other.evaluations, 'evaluations differ')
        evaluated = len(run.evaluations)
        self.say(f'headrace and MosaicML Streaming: 48 batches and {evaluated} of evaluation: ids and losses equal')
        require(sorted(before.batches) == list(range(PAUSE)), 'the killed run did other batches')
        require(0 < after.first < PAUSE, f'resumed at {after.first}')
        require(sorted(after.batches) == list(range(after.first, 48)), 'the resumed run did other batches')
        both = {number: before.batches.get(number) or after.batches[number] for number in range(48)}
        again = {number: run.batches[number] for number in after.batches}
        require(both == run.batches, 'the killed run differs from the whole one')
        require(after.batches == again, 'the resumed run differs from the whole one')
        require(after.evaluations == run.evaluations[-len(after.evaluations) :], 'its evaluations differ')
        self.say(
            f'killed -9 before batch {PAUSE}, in mid-epoch; resumed by autoresume at batch {after.first}: batches 0 to '
            f'{PAUSE - 1} and {after.first} to 47 have the ids and losses of the uninterrupted run'
        )

    def take_over(self) -> None:
        """Continue MosaicML Streaming's run with headrace, without some batches."""
        self.say('\n== Take over a run of MosaicML Streaming, and leave out a loss spike')
        extra = [
            f'load_path={self._folder}/runs/pretrain-MosaicML/ep0-ba10-rank0.pt',  # until there is one of its own
            f'train_loader.dataset.skip=[[{SKIPPED.start}ba,{SKIPPED.stop}ba]]',
            'train_loader.dataset.on_mixture_change=continue',
        ]
        kill = [*extra, f'callbacks.record_batches.pause_at={PAUSE_BEHIND_SKIPPED}']
        self._kill(self._train('pretrain', 'taken-over', kill), 'pretrain-taken-over')
        finish([self._train('pretrain', 'taken-over', extra, log='went-on')])
        whole, *runs = (Record.read(self._jsonl(f'pretrain-{kind}')) for kind in ('MosaicML', 'taken-over', 'went-on'))
        left = [whole.batches[number][0] for number in range(10, 48) if number not in SKIPPED]
        expected = dict(enumerate(left, 10))  # Composer counts what is trained
        for run, last in zip(runs, (PAUSE_BEHIND_SKIPPED, 10 + len(left)), strict=True):
            require(run.reader == READERS['headrace'], f'{run.reader} is not of headrace')
            got = {number: documents for number, (documents, _) in run.batches.items()}
            require(sorted(got) == list(range(run.first, last)), f'{sorted(got)} are other batches')
            require(all(got[number] == expected[number] for number in got), 'a batch is not the expected one')
        self.say(
            f'from the checkpoint of batch {runs[0].first} with skip: [[{SKIPPED.start}ba, {SKIPPED.stop}ba]]; killed '
            f'-9 before batch {PAUSE_BEHIND_SKIPPED}, resumed at batch {runs[1].first}: the batches of the whole '
            f'run without {SKIPPED.start} to {SKIPPED.stop - 1}'
        )

    def _names(self, run: Record, number: int) -> str:
        rows = [[self._ids.get(document, '(cut)') for document in row] for row in run.batches[number][0]]
        return '  '.join('+'.join(row) for row in rows)

    def _train(self, name: str, kind: str, extra: Sequence[str] = (), *, log: str = '') -> Process:
        """Start `llmfoundry train`; all but MosaicML's on headrace."""
        run = f'{name}-{kind}'
        options = [
            *(f'variables.{key}={value}' for key, value in self._variables(run, f'{name}-{log or kind}').items()),
            f'save_folder={self._folder}/runs/{run}',
            *extra,
        ]
        foundry = [BIN / 'llmfoundry'] if kind == 'MosaicML' else [*headrace(), 'llmfoundry']
        command = [*foundry, 'train', HERE / f'{name}.yaml', *options]
        return self._start(f'{name}-{log or kind}', command)

    def _variables(self, run: str, log: str) -> dict[str, Path]:
        return dict(
            data=self._mds,
            tokenizer=self._folder / 'input' / 'tokenizer',
            cache=self._folder / 'cache' / run,
            log=self._jsonl(log),
            code=HERE,
        )

    def _kill(self, process: Process, log: str) -> None:
        """Kill a run and its workers once it has come to its batch."""
        process.wait_for(self._jsonl(log), '"paused"')
        process.kill()

    def _start(self, name: str, command: Sequence[object]) -> Process:
        return Process([str(word) for word in command], self._log(name))

    def _log(self, name: str) -> Path:
        return self._folder / 'logs' / f'{name}.txt'

    def _jsonl(self, name: str) -> Path:
        return self._folder / 'logs' / f'{name}.jsonl'


class Process:
    """A program of a step. Its standard output is a file; its messages are a file beside."""

    def __init__(self, command: Sequence[str], out: Path) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        self._name, self._errors = out.stem, out.with_suffix('.err')
        environment = {
            **os.environ,
            'HF_HUB_OFFLINE': '1',
            'OMP_NUM_THREADS': '1',  # losses are compared to the last bit
            'PYTHONWARNINGS': 'ignore',
            'TOKENIZERS_PARALLELISM': 'false',
        }
        with out.open('wb') as output, self._errors.open('wb') as errors:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=errors, env=environment, start_new_session=True
            )
        self._end = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        self._process.wait()
        self._end.set()

    def finish(self) -> None:
        """Wait for its end.

        Raises:
            Failed: it failed, or takes too long.
        """
        if not self._end.wait(PATIENCE):
            raise Failed(f'{self} was not done after {PATIENCE} s')
        if self._process.returncode:
            raise Failed(f'{self} failed')

    def wait_for(self, file: Path, text: str) -> None:
        """Wait for a text in a file.

        Raises:
            Failed: the process ended before, or takes too long.
        """
        deadline = time.monotonic() + PATIENCE
        while not (file.exists() and text in file.read_text()):
            if self._end.wait(0.1):
                raise Failed(f'{self} ended too early')
            if time.monotonic() > deadline:
                raise Failed(f'{self} did not come to {text} in {PATIENCE} s')

    def kill(self) -> None:
        """kill -9, with all processes that it started."""
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._end.wait()

    def __str__(self) -> str:
        tail = self._errors.read_text(errors='replace').splitlines()[-15:]
        return '\n'.join([f'{self._name}: {self._errors} ends with', *tail, f'{self._name}'])


def headrace() -> tuple[object, ...]:
    """The command that puts headrace in the place of `streaming`."""
    return BIN / 'headrace', 'run'


def finish(processes: Iterable[Process]) -> None:
    """Wait for processes; the others are killed when one fails."""
    waiting = list(processes)
    try:
        while waiting:
            waiting[0].finish()
            waiting.pop(0)
    finally:
        for process in waiting:
            process.kill()


def contents(dataset: Path) -> dict[str, bytes]:
    """Index and shards by name."""
    return {path.name: path.read_bytes() for path in sorted(dataset.iterdir()) if not path.name.startswith('.')}


def verified_files(name: str) -> Iterator[str]:
    """The files of an installed package, each with the hash that the package from PyPI states.

    Raises:
        Failed: a file was changed, or a Python file is there that the package does not have.
    """
    distribution = importlib.metadata.distribution(name)
    record = distribution.read_text('RECORD') or ''
    root = Path(str(distribution.locate_file('')))
    packages = set()
    known = {}
    for file, stated, _ in csv.reader(record.splitlines()):
        known[file] = stated
        if file.endswith('.py'):
            packages.add(file.partition('/')[0])
    for file, stated in known.items():
        if stated and not file.startswith('..') and '.dist-info/' not in file:
            algorithm, _, value = stated.partition('=')
            found = hashlib.new(algorithm, (root / file).read_bytes()).digest()
            require(base64.urlsafe_b64encode(found).rstrip(b'=').decode() == value, f'{root / file} was changed')
            yield file
    added = [
        path
        for package in packages
        for path in (root / package).rglob('*.py')
        if str(path.relative_to(root)) not in known
    ]
    require(not added, f'{name} does not have {added}')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='a folder to write; it is emptied first')
    folder = parser.parse_args().folder.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / TRANSCRIPT).exists():
        parser.error(f'{folder} holds other files, and no {TRANSCRIPT} of an earlier proof. Choose another folder.')
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / TRANSCRIPT).touch()
    proof = Proof(folder)
    try:
        proof.run()
    except Failed as reason:
        proof.say(f'\nFAILED: {reason}')
        sys.exit(1)
    proof.say('\nPROVEN')


if __name__ == '__main__':
    main()
