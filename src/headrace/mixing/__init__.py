"""One YAML file -> loaders.

1. `document` reads the file, what it includes, and overrides, and resolves interpolations.
2. `validate` reads the plain values into the dataclasses of `schema`, `streams` and `packing`, or says all that is
   wrong with them; `load.load_config` is both.
3. `build.build_dataset` and `build.build_loader` make a dataset and its loader from them, on a given topology.

`foundry.config_of_foundry` takes the YAML of LLM Foundry in the place of steps 1 and 2.

Steps 1 and 2 touch no network, no shard and no torch.
"""

from __future__ import annotations

from headrace.mixing.build import build_dataset, build_loader
from headrace.mixing.foundry import config_of_foundry
from headrace.mixing.load import load_config, to_mapping, to_yaml
from headrace.mixing.packing import PackingConfig, TokenizerConfig
from headrace.mixing.schema import Config, DatasetConfig, LoaderConfig, WorkerConfig
from headrace.mixing.streams import SelectionConfig, StreamConfig, TransferConfig

__all__ = [
    'Config',
    'DatasetConfig',
    'LoaderConfig',
    'PackingConfig',
    'SelectionConfig',
    'StreamConfig',
    'TokenizerConfig',
    'TransferConfig',
    'WorkerConfig',
    'build_dataset',
    'build_loader',
    'config_of_foundry',
    'load_config',
    'to_mapping',
    'to_yaml',
]
