"""Loaders that a meter follows: one in the place of another, and several."""

from __future__ import annotations

import itertools

from headrace.metrics import DataMeter


def test_a_loader_in_the_place_of_another_continues_with_its_counts(make_loader):
    meter = DataMeter()
    hits = 0
    for _ in range(3):
        loader = make_loader()
        meter.follow({'': loader})
        meter.follow({'': loader})
        for _ in itertools.islice(loader, 2):
            meter.batch_done()
        hits += loader.stats().cache_hits
        figures = meter.read()
    assert figures['data/samples'] == 60
    assert figures['data/cache_hits'] == hits


def test_several_loaders_are_added_up_and_their_streams_told_apart(make_loader):
    meter, loaders = DataMeter(), {'x': make_loader(), 'y': make_loader()}
    meter.follow(loaders)
    for _ in zip(loaders['x'], itertools.islice(loaders['y'], 3), strict=False):
        meter.batch_done()
    figures = meter.read()
    assert figures['data/samples'] == 60
    assert figures['mix/x/a/samples'] + figures['mix/x/b/samples'] == 30
    meter.follow({'x': loaders['x']})
    assert meter.read()['data/samples'] == 60
