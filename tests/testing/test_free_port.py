"""Ports of test servers: each is given once, also before its server listens."""

from __future__ import annotations

import random

from tests.support.servers.process import free_port


def test_a_port_is_given_once_though_nothing_listens_there_yet(monkeypatch):
    given, draw = free_port(), random.Random(0)
    draws = iter([given, given])
    monkeypatch.setattr(random.SystemRandom, 'randrange', lambda _, *limits: next(draws, draw.randrange(*limits)))
    assert free_port() != given
