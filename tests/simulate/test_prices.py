"""Prices of egress."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.simulate.prices import costs, read_prices


def test_prices(tmp_path):
    assert read_prices()['Cloudflare R2'] == 0
    (tmp_path / 'prices.yaml').write_text('ours: 0.05\nother, region: 1\n')
    assert costs(3 * 10**9, read_prices(tmp_path / 'prices.yaml')) == {'ours': 0.15, 'other, region': 3.0}
    (tmp_path / 'prices.yaml').write_text('ours: much\n')
    with pytest.raises(ConfigError, match="'much' for ours"):
        read_prices(tmp_path / 'prices.yaml')
