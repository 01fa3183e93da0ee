"""From a configuration back to plain values and YAML."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from headrace.config.resolver import yaml_text
from headrace.config.schema import Config, LoaderConfig
from headrace.config.streams import SchedulePointConfig
from headrace.images import Decode
from headrace.selection import Conditions, Fraction, Subset

__all__ = ['to_mapping', 'to_yaml']


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
