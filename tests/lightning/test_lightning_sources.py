"""Datasets and loader options from a data module's arguments."""

from __future__ import annotations

import pytest

from headrace import StreamingDataset, Topology
from headrace.lightning import StreamingDataModule
from headrace.lightning.sources import LoaderSource
from headrace.mixing import load_config
from tests.support.trainers.data_modules import ids, quiet
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import Model

pytestmark = [pytest.mark.filterwarnings('ignore')]


@pytest.mark.parametrize('kind', ['dataset', 'keywords', 'function'])
def test_a_source_is_a_dataset_or_what_makes_one(kind, run):
    folder = run.streams['a']
    source = {
        'dataset': lambda: StreamingDataset(local=folder),
        'keywords': lambda: {'local': folder},
        'function': lambda: lambda: StreamingDataset(local=folder),
    }[kind]()
    module = StreamingDataModule(train=source, batch_size=10)
    quiet(run).fit(Model(run), module)
    assert sorted(i for batch in ids(run) for i in batch) == list(range(60))


def test_a_global_batch_is_dealt_anew_on_other_ranks(run):
    dataset = StreamingDataset(local=run.streams['a'], global_batch_size=10, uneven='pad')
    source = LoaderSource('train', '', dataset, {})
    for ranks, rows in ((1, 10), (3, 4), (4, 3)):
        source.open(Topology(world_size=ranks))
        assert (source.batch_size, dataset.batch_size) == (rows, rows)


@pytest.mark.parametrize('kind', ['path', 'mapping', 'config'])
def test_a_yaml_file_gives_all_loaders(kind, run, yaml):
    given = {'path': lambda: yaml, 'mapping': lambda: {'defaults': [yaml]}, 'config': lambda: load_config(yaml)}[kind]()
    module = StreamingDataModule(given)
    assert module.batch_size is None
    quiet(run).fit(Model(run), module)
    assert module.batch_size == 8
    assert judge([(run, None)]).is_exact
    validated = records(run, 'validation')[0]
    assert [len(record['ids']) for record in validated] == [8] * 7 + [4] + [5] * 7 + [1]
    assert [record['loader'] for record in validated] == [0] * 8 + [1] * 8


def test_overrides_go_over_the_yaml(run, yaml):
    module = StreamingDataModule(yaml, overrides=['global_batch_size=12', '~eval'])
    quiet(run).fit(Model(run), module)
    assert [len(batch) for batch in ids(run)] == [12] * 8
    assert not records(run, 'validation')[0]
