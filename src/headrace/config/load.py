"""From a file, a mapping and overrides to a `Config`, and back.

1. `yaml_source` reads files and their includes, applies overrides and resolves interpolations.
2. `validate` reads the plain values into the dataclasses of `schema`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace.config.problems import Problem
from headrace.config.resolver import yaml_text
from headrace.config.schema import Config, LoaderConfig
from headrace.config.streams import SchedulePointConfig
from headrace.config.validate import Validator
from headrace.config.yaml_source import DIRECTIVES, YamlSource
from headrace.images import Decode
from headrace.selection import Conditions, Fraction, Subset

__all__ = ['load_config', 'to_mapping', 'to_yaml']


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
) -> Config:
    """The validated configuration of a YAML file.

    Nothing is downloaded, and no folder is read.

    Args:
        source: Path of a YAML file, or its content as a mapping or an OmegaConf one.
        overrides: Changes to the file, as on a command line: ``train.loader.num_workers=8`` sets a key,
            ``train.streams=[{name: a, local: /a}]`` a list, ``~train.streams.code`` removes a key. Or a mapping
            from such keys to values.

    Returns:
        The configuration, frozen; the top level's batch size and seed are written into the loaders.

    Raises:
        ConfigError: With one line for each mistake: file and line, key, value, rule.
    """
    yaml_source = YamlSource(source, overrides)
    foreign = [key for key in ('train_loader', 'eval_loader') if key in yaml_source.keys]
    yaml_source.refuse(
        Problem(
            (key,),
            "is a key of LLM Foundry's YAML: read it with `headrace.mixing.config_of_foundry`, or turn it into YAML of "
            'headrace with `headrace convert-config`',
        )
        for key in foreign
    )
    validator = Validator(yaml_source.written)
    config = validator.read(Config, yaml_source.plain(validator.problems), also_known=DIRECTIVES)
    yaml_source.refuse(validator.problems)
    return config.inherited()


def to_yaml(config: Config) -> str:
    """The configuration as YAML that `load_config` reads back as an equal one; defaults are left out."""
    return yaml_text(to_mapping(config))


def to_mapping(config: Config | LoaderConfig) -> dict[str, Any]:
    """The configuration as plain values, as YAML would have them; defaults are left out."""
    return _given(config)


def _given(config: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults; named items as a mapping from their names."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == 'name' or value == field.default:
            continue
        if isinstance(value, tuple) and not any(map(dataclasses.is_dataclass, cast('tuple[Any, ...]', value))):
            items = cast('tuple[Any, ...]', value)
            value = [list(cast('tuple[Any, ...]', item)) if isinstance(item, tuple) else item for item in items]
        elif isinstance(value, tuple) and isinstance(value[0], SchedulePointConfig):
            value = [_given(point) for point in cast('tuple[SchedulePointConfig, ...]', value)]
        elif isinstance(value, tuple):
            named = {item.name: _given(item) for item in cast('tuple[Any, ...]', value)}
            single = list(named) == [field.name] and isinstance(value[0], LoaderConfig)
            value = named[field.name] if single else named
        if isinstance(value, (Subset, Fraction, Conditions, Decode)):
            given[field.name] = value.plain
            continue
        given[field.name] = _given(value) if dataclasses.is_dataclass(value) else value
    return given
