"""The table of settings that do not go together; `tests/cli/doctor/test_loaders.py` tries each row with a loader."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from headrace.errors import ConfigError
from headrace.errors.exclusions import EXCLUSIONS, broken_exclusions, refuse_exclusions


class _Stream(NamedTuple):
    name: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    subset: Any = None
    fraction: Any = None


def test_no_settings_break_a_rule_and_unknown_ones_do_not_count() -> None:
    refuse_exclusions({})
    refuse_exclusions({'no_such_setting': 1, 'shuffle_algo': 'native', 'on_growth': 'delta'})


def test_all_broken_rules_are_named_at_once_with_their_values() -> None:
    settings = {'on_growth': 'delta', 'remainder': 'drop', 'shuffle_algo': 'py1e', 'streams': [_Stream('a')]}
    broken = list(broken_exclusions(settings))
    assert len(broken) >= 2
    with pytest.raises(ConfigError) as raised:
        refuse_exclusions(settings)
    for _, rule in broken:
        for part in rule.rule.split('; '):
            assert part[1:] in str(raised.value)
    assert "'delta'" in str(raised.value)
    assert "'py1e'" in str(raised.value)


def test_each_row_has_a_reason_and_a_fix_that_are_sentences() -> None:
    assert len({(row.first.key, row.second.key, row.rule) for row in EXCLUSIONS}) == len(EXCLUSIONS)
    for row in EXCLUSIONS:
        assert row.rule
        assert row.fix
        assert not row.rule.endswith('.')
        assert not row.fix.endswith('.')
