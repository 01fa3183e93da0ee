"""Reference scripts of saving and resuming, run with real datasets and loaders.

Every answer must be the recorded one, except for the designed differences of headrace's position:

* A state from before the first pass is epoch 0, sample 0, in place of epoch -1.
* `load` is a command. The next pass begins there, also in an earlier epoch, and a state taken after it equals the
  loaded one. MosaicML Streaming adds the samples of the previous pass, and refuses to go back.
* The checkpoint's seed also rounds samples among streams, as in the run that wrote it. MosaicML Streaming rounds with
  the constructor's seed.
* `load` refuses a wrong state at once, not at the next pass. A negative position is wrong; long extra keys are not.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from tests.support.golden.case import Case, Outcome, read_json

__all__ = ['run', 'write_streams']

_BY_DESIGN = {
    'load_in_process': 'a loaded position is obeyed as it is',
    'other_seed_weights': "the checkpoint's seed decides the streams' samples",
}
_DATASET_KEYS = (
    'epoch_size', 'sampling_method', 'sampling_granularity', 'partition_algo', 'num_canonical_nodes', 'batch_size',
    'shuffle', 'shuffle_algo', 'shuffle_seed', 'shuffle_block_size', 'batching_method', 'replication',
)  # fmt: skip


def run(folder: Path) -> Iterator[Outcome]:
    """Run ``resume/``: one outcome for each script."""
    with tempfile.TemporaryDirectory(prefix='headrace-golden-') as scratch:
        for case in read_json(folder / 'resume' / 'manifest.json')['cases']:
            try:
                problem = _case_problem(case, Path(scratch))
            except Exception as error:  # an error of one vector is that vector's failure
                problem = f'{type(error).__name__}: {error}'
            yield f'resume {case["id"]} ({case["family"]})', problem


def write_streams(streams: list[Case], folder: Path) -> list[Path]:
    """Write streams of samples ``{'id': global id}`` with shards of the given numbers of samples."""
    out: list[Path] = []
    first = 0
    for number, stream in enumerate(streams):
        place = folder / str(number)
        place.mkdir(parents=True)
        shards: list[Any] = []
        for shard, samples in enumerate(stream['shards']):
            part = folder / 'part'
            with MDSWriter(columns={'id': 'int'}, out=str(part), size_limit=None) as writer:
                for sample in range(first, first + samples):
                    writer.write({'id': sample})
            first += samples
            (info,) = json.loads((part / 'index.json').read_text('utf-8'))['shards']
            name = info['raw_data']['basename']
            info['raw_data']['basename'] = f'shard.{shard:05}.mds'
            (part / name).replace(place / f'shard.{shard:05}.mds')
            shutil.rmtree(part)
            shards.append(info)
        (place / 'index.json').write_text(json.dumps({'version': 2, 'shards': shards}), 'utf-8')
        out.append(place)
    return out


def _case_problem(case: Case, scratch: Path) -> str:
    folders = write_streams(case['args']['streams'], scratch / case['id'])
    for script in case['runs']:
        loader = _loader({**case['args'], **script['overrides']}, folders)
        run_of_it = _Script(loader, case['family'])
        problem = run_of_it.problem(script['steps'], script['answers'])
        run_of_it.close()
        if problem:
            return f'{script["name"]}: {problem}'
    return ''


def _loader(args: Case, folders: list[Path]) -> StreamingDataLoader:
    streams = [
        Stream(local=str(folder), **{k: stream[k] for k in ('proportion', 'repeat', 'choose') if k in stream})
        for folder, stream in zip(folders, args['streams'], strict=True)
    ]
    dataset = StreamingDataset(streams=streams, **{key: args[key] for key in _DATASET_KEYS if key in args})
    return StreamingDataLoader(dataset, num_workers=args['num_workers'], drop_last=args.get('drop_last', False))


class _Script:
    """A simulated process: a loader and its history."""

    def __init__(self, loader: StreamingDataLoader, family: str) -> None:
        self._loader, self._family = loader, family
        self._batches: Generator[list[int], None, None] = (ids for ids in [])
        self._steps = {
            'iter': self._iter,
            'continue': self._continue,
            'state': self._state,
            'dataset_state': self._dataset_state,
            'load': self._load,
            'len': self._len,
        }

    def problem(self, steps: list[Case], answers: list[Any]) -> str:
        """Return the answer that differs."""
        # An earlier step may raise the error here.
        raises = next((a['raises'] for a in answers if isinstance(a, dict) and 'raises' in a), None)
        for number, (step, wanted) in enumerate(zip(steps, answers, strict=True)):
            try:
                got = self._steps[step['op']](step)
            except (ValueError, KeyError) as error:
                # A negative position; MosaicML Streaming makes batches of it that no run has.
                refused = self._family == 'bad_state' and step['op'] == 'load'
                if refused and (raises is None or raises in {kind.__name__ for kind in type(error).__mro__}):
                    return '' if raises or step['state']['sample_in_epoch'] < 0 else f'step {number}: {error}'
                raise
            if isinstance(wanted, dict) and 'raises' in wanted:
                if self._is_too_long(step):
                    return ''
                return f'step {number}, {step["op"]}: no error, instead of {wanted["raises"]}'
            if got != wanted and not self._is_by_design(got, wanted):
                return f'step {number}, {step["op"]}: {str(got)[:200]} instead of {str(wanted)[:200]}'
        return ''

    def _is_too_long(self, step: Case) -> bool:
        return self._family == 'bad_state' and len(json.dumps(step.get('state'))) >= 4096  # a memory page there

    def _is_by_design(self, got: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict) and wanted.get('epoch') == -1:
            return got == {**wanted, 'epoch': 0}
        return self._family in _BY_DESIGN and type(got) is type(wanted)

    def close(self) -> None:
        """End the pass in progress, and its workers."""
        self._batches.close()

    def _iter(self, step: Case) -> list[list[int]]:
        self.close()
        self._batches = (batch['id'].tolist() for batch in self._loader)
        return self._continue(step)

    def _continue(self, step: Case) -> list[list[int]]:
        return list(islice(self._batches, step['batches']))

    def _state(self, step: Case) -> dict[str, int]:
        return _five_keys(self._loader.state_dict())

    def _dataset_state(self, step: Case) -> dict[str, int]:
        return _five_keys(self._loader.dataset.state_dict(step['num_samples'], step['from_beginning']))

    def _load(self, step: Case) -> None:
        self._loader.load_state_dict(step['state'])

    def _len(self, step: Case) -> list[int]:
        dataset = self._loader.dataset
        return [len(dataset), len(self._loader), dataset.size, dataset.epoch_size]


def _five_keys(state: dict[str, Any]) -> dict[str, int]:
    return {key: value for key, value in state.items() if key not in ('headrace', 'epoch_size', 'config')}
