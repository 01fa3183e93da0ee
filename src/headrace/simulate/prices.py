"""Prices of egress, from a file that users edit."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headrace.errors import ConfigError

__all__ = ['costs', 'read_prices']


def read_prices(path: Path | None = None) -> dict[str, float]:
    """US dollars per GB by provider.

    Args:
        path: a YAML mapping from names to numbers; None: headrace's own list prices.

    Raises:
        ConfigError: the file is no such mapping.
        OSError: it cannot be read.
    """
    text = (
        resources.files('headrace.simulate').joinpath('prices.yaml').read_text() if path is None else path.read_text()
    )
    try:
        found: Any = OmegaConf.to_container(OmegaConf.create(text))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f'{path} must be YAML from providers to dollars per GB: {error}') from error
    if not isinstance(found, dict):
        raise ConfigError(f'{path} must be a mapping from providers to dollars per GB.')
    prices = cast('dict[Any, Any]', found)
    wrong = [name for name, price in prices.items() if isinstance(price, bool) or not isinstance(price, int | float)]
    if wrong:
        raise ConfigError(f'A price is a number of dollars per GB, but {path} has {prices[wrong[0]]!r} for {wrong[0]}.')
    return {str(name): float(price) for name, price in prices.items()}


def costs(size: int, prices: dict[str, float]) -> dict[str, float]:
    """Dollars by provider for a number of bytes, to the cent."""
    return {provider: round(price * size / 1e9, 2) for provider, price in prices.items()}
