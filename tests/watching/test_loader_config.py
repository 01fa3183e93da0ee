"""The configuration of a recorded loader."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import MDSWriter, Topology
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.mixing import build_loader, load_config
from headrace.watching import RecordedRun, RunRecorder


def test_a_packed_run_is_explained_with_its_configuration(tmp_path, capsys) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'tokens': 'ndarray:int32'}, size_limit=2000) as writer:
        for number in range(60):
            writer.write({'tokens': np.full(5 + number % 11, number + 1, np.int32)})
    packing = {'sequence_length': 32, 'column': 'tokens'}
    train = {'local': str(tmp_path / 'data'), 'shuffle': True, 'global_batch_size': 2, 'packing': packing}
    config = load_config({'train': train}).train
    assert config is not None
    trained: dict[int, list[int]] = {}
    state = None
    for first, steps, saved in ((0, 5, 3), (3, 4, None)):  # killed at step 5
        loader, record = build_loader(config, topology=Topology()), RunRecorder(tmp_path / 'run')
        if state is not None:
            loader.load_state_dict(state)
        record.begin({'': loader}, step=first)
        for _, batch in zip(range(steps), loader, strict=False):
            record.batch_done()
            trained[record.step - 1] = [
                token - 1 for token in batch['input_ids'].unique().tolist() if token
            ]  # 0 fills up
            if record.step == saved:
                record.checkpoint()
                state = loader.state_dict()
    run = RecordedRun(tmp_path / 'run', config=config)
    assert {step: sorted(set(run.step(step).report.batches[0].ids.tolist())) for step in trained} == trained
    assert main(['explain', '--run', str(tmp_path / 'run'), '--step', '4']) == 1
    assert 'Name its configuration: headrace explain CONFIG --run' in capsys.readouterr().err
    with pytest.raises(ConfigError, match='without `packing`, got 3'):
        list(run.uses(3))
