"""Arguments by position, and unknown ones."""

from __future__ import annotations

import inspect

import pytest

from headrace import Stream, StreamingDataset
from headrace.errors import ArgumentError


@pytest.mark.parametrize('cls', [StreamingDataset, Stream])
def test_an_argument_without_a_name(tmp_path, cls):
    for given in (str(tmp_path), tmp_path):
        with pytest.raises(ArgumentError, match=f'{cls.__name__} takes .* by name, but got .*Write `local=` before'):
            cls(given)
    with pytest.raises(TypeError, match='but got 3 by position. Write each argument as `name=value`'):
        cls(3)


@pytest.mark.parametrize('cls', [StreamingDataset, Stream])
def test_an_argument_that_does_not_exist(cls):
    with pytest.raises(ArgumentError, match=f'{cls.__name__} has no argument `remot`. Did you mean `remote`'):
        cls(remot='x')
    with pytest.raises(TypeError, match='has no argument `zzz`. It takes .*local, split'):
        cls(zzz=1)


def test_a_subclass_has_arguments_of_its_own(make_dataset):
    class Own(StreamingDataset):
        def __init__(self, folder, **options):
            super().__init__(local=folder, **options)

    assert Own(str(make_dataset()), batch_size=4).size == 100
    with pytest.raises(ArgumentError, match='Own has no argument `shufle`. Did you mean `shuffle`'):
        Own(str(make_dataset('other')), shufle=True)
    assert 'shuffle' in inspect.signature(StreamingDataset).parameters
