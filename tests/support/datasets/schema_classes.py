"""Dataclasses of the schema."""

from __future__ import annotations

import dataclasses
import inspect

from headrace.config.packing import PackingConfig, TokenizerConfig
from headrace.config.schema import FileDirectives
from headrace.mixing import (
    Config,
    DatasetConfig,
    LoaderConfig,
    SelectionConfig,
    StreamConfig,
    TransferConfig,
    WorkerConfig,
)

CLASSES = (
    Config,
    FileDirectives,
    LoaderConfig,
    DatasetConfig,
    StreamConfig,
    SelectionConfig,
    TransferConfig,
    WorkerConfig,
    PackingConfig,
    TokenizerConfig,
)


def parameters(cls: type) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(cls.__init__).parameters)
    del found['self']
    return found


def fields(cls: type, *, without: type | None = None) -> dict[str, object]:
    left_out = {field.name for field in dataclasses.fields(without)} if without else set()
    return {field.name: field.default for field in dataclasses.fields(cls) if field.name not in left_out}
