"""From a configuration back to plain values and YAML."""

from __future__ import annotations

from typing import Any

from headrace.config.resolver import yaml_text
from headrace.config.schema import Config, LoaderConfig, given_values

__all__ = ['to_mapping', 'to_yaml']


def to_yaml(config: Config) -> str:
    """The configuration as YAML that `load_config` reads back as an equal one; defaults are left out."""
    return yaml_text(to_mapping(config))


def to_mapping(config: Config | LoaderConfig) -> dict[str, Any]:
    """The configuration as plain values, as YAML would have them; defaults are left out."""
    return given_values(config)
