"""From a YAML file to loaders: the public names of `headrace.config`."""

from __future__ import annotations

from headrace.config.build import build_dataset, build_loader
from headrace.config.foundry import config_of_foundry
from headrace.config.load import load_config
from headrace.config.packing import PackingConfig, TokenizerConfig
from headrace.config.schema import Config, DatasetConfig, LoaderConfig, StreamConfig, WorkerConfig, to_mapping, to_yaml
from headrace.options.streams import SelectionConfig, TransferConfig

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
