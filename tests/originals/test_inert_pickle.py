"""Pickles of CIFAR-10 are read without running what they name."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import FormatError
from headrace.originals.inert_pickle import read_inert_pickle
from headrace.vision.convert.cifar10 import ORIGINAL as CIFAR10
from tests.support.originals.vision_originals import make_cifar10, python2_pickle

CONTENT = {'labels': [3, 1], 'data': np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072), 'filenames': ['a', 'b']}


def test_pickles_of_python_2_and_3_are_read() -> None:
    # The helper of these tests writes what Python itself reads so.
    with np.errstate(all='ignore'):
        known = pickle.loads(python2_pickle(CONTENT), encoding='latin1')
    np.testing.assert_array_equal(known['data'], CONTENT['data'])

    for data in (python2_pickle(CONTENT), *(pickle.dumps(CONTENT, protocol) for protocol in range(5))):
        found = read_inert_pickle(data)
        assert found['labels'] == [3, 1]
        assert found['filenames'] in (['a', 'b'], [b'a', b'b'])
        assert found['data'].dtype == np.uint8
        np.testing.assert_array_equal(found['data'], CONTENT['data'])


class _Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_attack_runs_nothing(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({'labels': [1], 'data': _Attack(tmp_path / 'attacked')}, protocol)
    with pytest.raises(FormatError):
        read_inert_pickle(data)
    assert not (tmp_path / 'attacked').exists()
    # It is a real attack.
    pickle.loads(data)
    assert (tmp_path / 'attacked').exists()


def test_an_attack_in_a_batch_is_a_broken_member(tmp_path: Path) -> None:
    made = make_cifar10(tmp_path / 'in', broken=False)
    batch = tmp_path / 'in' / 'cifar-10-batches-py' / 'data_batch_2'
    batch.write_bytes(pickle.dumps({'labels': [], 'data': _Attack(tmp_path / 'attacked')}, 2))
    (report,) = CIFAR10.convert(tmp_path / 'in', tmp_path / 'out', splits=['train'], progress_bar=False).values()
    assert report.rows == made.rows['train'] - 20
    assert [error.input for error in report.errors] == ['cifar-10-batches-py/data_batch_2']
    assert 'names posix.mkdir' in report.errors[0].error
    assert not (tmp_path / 'attacked').exists()


@pytest.mark.parametrize('name', [b'\xff', 3, np.zeros(2, np.uint8)])
def test_odd_names_of_classes_stop_nothing(tmp_path: Path, name: Any) -> None:
    make_cifar10(tmp_path / 'in', broken=False)
    meta = {'label_names': [name, *'bcdefghij']}
    (tmp_path / 'in' / 'cifar-10-batches-py' / 'batches.meta').write_bytes(pickle.dumps(meta, 2))
    CIFAR10.convert(tmp_path / 'in', tmp_path / 'out', splits=['val'], progress_bar=False)
    classes = json.loads((tmp_path / 'out' / 'val' / 'classes.json').read_text())
    assert classes == (['\ufffd', *'bcdefghij'] if isinstance(name, bytes) else list('0123456789'))


@pytest.mark.parametrize(
    'data',
    [
        b'',
        b'\x80\2}.'[:-1],
        python2_pickle(CONTENT)[:-100],
        pickle.dumps([1]),
        # A memo with a huge number; another class; the array's function with attributes; a dtype of objects.
        b'\x80\2}r\xff\xff\xff\x7f.',
        b'\x80\2}cbuiltins\neval\nU\x021+\x85Rs.',
        b'\x80\2cnumpy.core.multiarray\n_reconstruct\nN}U\x01aK\1s\x86b}.',
        python2_pickle(CONTENT).replace(b'U\2u1', b'U\2O8'),
        python2_pickle(CONTENT).replace(b'J\0\x0c\0\0', b'J\1\x0c\0\0'),
        python2_pickle(CONTENT).replace(b'J\0\x0c\0\0', b'J\0\xf4\xff\xff'),
        # An array that was begun only, and instructions that call classes by other ways.
        b'\x80\2}U\4dataccnumpy.core.multiarray\n_reconstruct\n)Rs.',
        b'(dU\1a(i__builtin__\nobject\ns.',
        b'\x80\2}U\1acnumpy\nndarray\n)\x81s.',
        b'\x80\2}U\1aPsomewhere\ns.',
        # Tuples of one another, of which a hash would take years; and the same, hidden from the memo.
        b'\x80\2})q\0' + b''.join(b'h%ch%c\x86q%c' % (k, k, k + 1) for k in range(60)) + b'K\1s.',
        b'\x80\2}K\1K\2\x86N0q\0h\0h\0\x86N0q\1K\1s.',
        b'\x80\2}K\1K\1s.',
    ],
)
def test_damaged_and_odd_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_inert_pickle(data)
