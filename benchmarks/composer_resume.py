"""Resuming under Composer: what headrace and mosaicml-streaming train twice, never, or elsewhere.

Each cell is an interrupted training and one that continues from its last checkpoint. They are real processes over gloo,
with the environment of Composer's launcher. They are held against an uninterrupted training of the same library.
mosaicml-streaming is used as Composer's documentation has it: its `StreamingDataset` in its `StreamingDataLoader`, or,
where a row says so, in PyTorch's. If it is not there, its column is left out.

usage: python benchmarks/composer_resume.py [OUT]
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from resume_table import compare, failure, show

from tests.support import support_file
from tests.support.trainers.composer_legs import Leg
from tests.support.trainers.composer_matrix import SAMPLES, Scenario, chain_of
from tests.support.trainers.composer_oracle import random_fault, resumed_at, trained_before
from tests.support.trainers.composer_runs import make_data
from tests.support.trainers.ranks import run_chains

LIBRARIES = {'headrace': 'headrace', 'mosaicml-streaming': 'streaming'}
"""And how each is imported."""

EXCEPTION, SIGKILL = 'exception, load_path', 'SIGKILL, autoresume'
RANDOM_STATE = 'mid-epoch, random numbers too'


def mid_epoch(option: str, before: str, after: str, resume: str = EXCEPTION) -> Scenario:
    return Scenario('mid-epoch', 'ba', 'ep', resume, option, before, after)


ROWS = {
    'mid-epoch, 1 rank': mid_epoch('none', '1x0', '1x0'),
    'mid-epoch, 2 ranks': mid_epoch('none', '2x0', '2x0'),
    'mid-epoch, 1 rank -> 2 ranks': mid_epoch('none', '1x0', '2x0'),
    'mid-epoch, 1 rank -> 4 ranks': mid_epoch('none', '1x0', '4x0'),
    'mid-epoch, 4 ranks -> 1 rank x 2 workers': mid_epoch('none', '4x0', '1x2'),
    'mid-epoch, 1 rank x 2 workers -> 2 ranks': mid_epoch('none', '1x2', '2x0'),
    RANDOM_STATE: mid_epoch('none', '1x0', '1x0'),
    'SIGKILL and autoresume, 1 rank': mid_epoch('none', '1x0', '1x0', SIGKILL),
    'SIGKILL and autoresume, 4 ranks -> 2 ranks': mid_epoch('none', '4x0', '2x0', SIGKILL),
    'SIGKILL and autoresume, 2 ranks -> 4 ranks': mid_epoch('none', '2x0', '4x0', SIGKILL),
    'mid-epoch, save_interval in samples': Scenario('mid-epoch', 'sp', 'ep', EXCEPTION, 'none', '2x0', '1x0'),
    'mid-epoch, save_interval in tokens': Scenario('mid-epoch', 'tok', 'ep', EXCEPTION, 'none', '2x0', '1x0'),
    'mid-epoch, max_duration in batches': Scenario('mid-epoch', 'ba', 'ba', EXCEPTION, 'none', '2x0', '1x0'),
    'mid-epoch, max_duration in samples': Scenario('mid-epoch', 'ba', 'sp', EXCEPTION, 'none', '2x0', '1x0'),
    'mid-epoch, max_duration in tokens': Scenario('mid-epoch', 'ba', 'tok', EXCEPTION, 'none', '2x0', '1x0'),
    'last batch of an epoch': Scenario('last batch', 'ba', 'ep', EXCEPTION, 'none', '1x0', '1x0'),
    'last batch of an epoch, 4 ranks -> 2 ranks': Scenario('last batch', 'ba', 'ep', EXCEPTION, 'none', '4x0', '2x0'),
    'end of an epoch': Scenario('epoch end', 'ep', 'ep', EXCEPTION, 'none', '1x0', '1x0'),
    'end of an epoch, SIGKILL and autoresume': Scenario('epoch end', 'ep', 'ep', SIGKILL, 'none', '1x0', '1x0'),
    'end of an epoch, 2 ranks -> 4 ranks': Scenario('epoch end', 'ep', 'ep', EXCEPTION, 'none', '2x0', '4x0'),
    'end of a fit of 1 epoch, then 3': Scenario('end of a fit', 'ep', 'ep', EXCEPTION, 'none', '1x0', '1x0'),
    'end of a fit in mid-epoch': Scenario('end of a fit', 'ep', 'ba', EXCEPTION, 'none', '1x0', '1x0'),
    'mid-epoch, device_train_microbatch_size=1': mid_epoch('device_train_microbatch_size=1', '2x0', '1x0'),
    'mid-epoch, evaluation between': mid_epoch('evaluation', '1x0', '1x0'),
    'mid-epoch, train_subset_num_batches=4': mid_epoch('train_subset_num_batches=4', '1x0', '1x0'),
    'end of an epoch, train_subset_num_batches=4': Scenario(
        'epoch end', 'ep', 'ep', EXCEPTION, 'train_subset_num_batches=4', '1x0', '1x0'
    ),
    'mid-epoch, global batch of 8 -> 12': mid_epoch('global batch of 12', '1x0', '1x0'),
    'mid-epoch, 1 rank -> 2 ranks, batch size of a rank kept': mid_epoch('batch size of a rank kept', '1x0', '2x0'),
    'mid-epoch, 2 ranks -> 1 rank, batch size of a rank kept': mid_epoch('batch size of a rank kept', '2x0', '1x0'),
    'mid-epoch, replication=2, 2 ranks': mid_epoch('replication=2', '2x0', '2x0'),
    'mid-epoch, replication=2, 4 ranks -> 2 ranks': mid_epoch('replication=2', '4x0', '2x0'),
    'mid-epoch, plain DataLoader': mid_epoch('plain DataLoader', '2x0', '1x0'),
    'end of an epoch, plain DataLoader x 2 workers': Scenario(
        'epoch end', 'ep', 'ep', EXCEPTION, 'plain DataLoader', '1x2', '1x2'
    ),
}


def cell(row: str, error: str | None, whole: Leg, first: Leg, second: Leg) -> str:
    if error is not None:
        return failure(error)
    try:
        expected, before, after = (
            [ids for ids, _, _ in trained_before(leg, end)]
            for leg, end in ((whole, None), (first, resumed_at(second)), (second, None))
        )
    except AssertionError as reason:
        return str(reason)
    verdict = compare(expected, before + after)
    is_random = row == RANDOM_STATE and bool(random_fault(whole, second))
    return 'other random numbers' if verdict == 'exact' and is_random else verdict


def column(library: str, folder: Path, data: str, evaluate: str) -> dict[str, str]:
    """The result of each row with a library."""
    found: dict[str, list[Leg]] = {}
    for number, (row, scenario) in enumerate(ROWS.items()):
        first, second = (
            dataclasses.replace(leg, library=library)
            for leg in chain_of(scenario, f'r{number}', str(folder), data, evaluate)
        )
        told = {'crash_after': None, 'kill_after': None, 'folder': None, 'autoresume': False}
        whole = dataclasses.replace(first, **told, name=f'r{number}-whole', duration=second.duration)
        found[row] = [whole, first, second]
    fields = [[dataclasses.asdict(leg) for leg in legs] for legs in found.values()]
    # One after the other: mosaicml-streaming lets no two programs of a machine read the same folder.
    errors = run_chains(support_file('trainers/composer_chains.py'), fields, folder, timeout=3600)
    return {row: cell(row, error, *legs) for (row, legs), error in zip(found.items(), errors, strict=True)}


def main() -> None:
    columns: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data, evaluate = make_data(Path(folder, 'data'), SAMPLES), make_data(Path(folder, 'evaluate'), 10)
        for library, module in LIBRARIES.items():
            if importlib.util.find_spec(module):
                out = Path(folder, f'{library}-runs')
                out.mkdir()
                columns[library] = column(library, out, data, evaluate)
    show(columns)


if __name__ == '__main__':
    main()
