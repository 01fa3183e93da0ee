"""The report of a loss spike in a run of two packed streams, compared with the tokens of its documents."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import yaml

from headrace.cli import main
from headrace.mixing import build_loader, load_config
from tests.support.packings.packed_streams import FIRST, LENGTHS, SIZE, tokens_of, unpadded, write_streams

BATCH, SPIKE, STEPS = 4, 5, 8
"""Sequences of a batch; the batch whose loss is high; the batches of the run."""


def write_run(folder: Path) -> str:
    """The streams, and the configuration of a run over them; returns its path."""
    write_streams(folder)
    config = {
        'global_batch_size': BATCH,
        'train': {
            'streams': {name: {'local': str(folder / name)} for name in LENGTHS},
            'shuffle': True,
            'shuffle_seed': 5,
            'packing': {'sequence_length': SIZE, 'window': 3, 'token_dtype': 'int32'},
        },
    }
    (folder / 'run.yaml').write_text(yaml.safe_dump(config))
    return str(folder / 'run.yaml')


def batches_of(config: Any) -> list[list[list[int]]]:
    """The tokens of the sequences of each batch, without a trainer."""
    loader = build_loader(load_config(config).train)
    return [unpadded(batch) for _, batch in zip(range(STEPS), loader, strict=False)]


def by_stream(batches: list[list[list[int]]]) -> dict[str, int]:
    """Tokens of each stream, from the tokens themselves."""
    prose = [(token - 1) // 1000 >= FIRST['prose'] for batch in batches for row in batch for token in row]
    return {'code': prose.count(False), 'prose': prose.count(True)}


def documents_in(batch: list[list[int]]) -> list[int]:
    """Ids of the documents that have tokens in a batch."""
    return sorted({(token - 1) // 1000 for row in batch for token in row})


def check_story(config: str, folder: Path, trained: list[list[list[int]]], logged: dict[str, float]) -> None:
    """Check what `LossSpikes` wrote, what the commands print, and what the last log counts.

    Args:
        config: path of the run's configuration.
        folder: of the spike's files.
        trained: the tokens of each batch that was trained.
        logged: the figures of the last log, by name.
    """
    assert trained == batches_of(config)
    batch = trained[SPIKE]
    report = json.loads((folder / f'loss-spike-batch{SPIKE}.json').read_text())
    skip = [[SPIKE * BATCH, (SPIKE + 1) * BATCH]]
    assert report['skip'] == skip == yaml.safe_load(Path(report_yaml(folder)).read_text())['train']['skip']
    (told,) = report['batches']
    assert told['streams'] == by_stream([batch])
    assert [told_tokens(row) for row in told['rows']] == batch
    told_lines = {line.split()[0]: line for line in report['summary'] if line.startswith('  ')}
    assert {name: int(line.split()[1]) for name, line in told_lines.items()} == by_stream([batch])
    ids = [int(number) for line in told_lines.values() for number in line.split(': ')[1].split(', ')]
    assert sorted(ids) == documents_in(batch)

    explained = json.loads(printed('explain', config, '--batch', SPIKE, '--json'))
    assert [row['documents'] for row in explained['rows']] == [row['documents'] for row in told['rows']]
    assert yaml.safe_load(printed('skip', config, '--step', SPIKE))['train']['skip'] == skip
    ranges = yaml.safe_load(printed('skip', config, '--step', SPIKE, '--documents'))['train']['skip']
    left_out = [n for begin, end in ranges for n in range(int(begin.removesuffix('doc')), int(end.removesuffix('doc')))]
    assert left_out == documents_in(batch)

    assert {name: logged[f'mix/{name}/tokens'] for name in LENGTHS} == by_stream(trained)
    assert logged['data/samples'] == STEPS * BATCH


def without(config: str, documents: list[int]) -> str:
    """The path of the same configuration without documents."""
    path = Path(config).with_name('without.yaml')
    skip = [[f'{number}doc', f'{number + 1}doc'] for number in documents]
    path.write_text(yaml.safe_dump({'defaults': [Path(config).name], 'train': {'skip': skip}}))
    return str(path)


def check_resumed(config: str, trained: list[list[list[int]]], documents: list[int]) -> None:
    """Check a run that left out the documents of the spike from the batch before it on."""
    whole = batches_of(config)
    kept = [[[token for token in row if (token - 1) // 1000 not in documents] for row in batch] for batch in whole]
    assert trained == kept[SPIKE - 1 :]


def told_tokens(row: dict[str, Any]) -> list[int]:
    return [token for piece in row['documents'] for token in tokens_of(piece['id'])[piece['begin'] : piece['end']]]


def report_yaml(folder: Path) -> Path:
    return folder / f'loss-spike-batch{SPIKE}.yaml'


def printed(*arguments: Any) -> str:
    """The output of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(list(map(str, arguments))) == 0
    return out.getvalue()
