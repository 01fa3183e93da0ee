"""Lines that import MosaicML Streaming give headrace, or say what to use."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.errors import AbsentNameError, AliasError

pytestmark = pytest.mark.usefixtures('alias')

LINES = [
    'import streaming',
    'import streaming.base.util',
    'from streaming import MDSWriter',
    'from streaming import StreamingDataset, StreamingDataLoader',
    'from streaming import Stream, StreamingDataset, MDSWriter, JSONWriter, CSVWriter, TSVWriter, XSVWriter',
    'from streaming import LocalDataset',
    'from streaming.base import MDSWriter, Stream, StreamingDataset',
    'from streaming.base.dataset import StreamingDataset',
    'from streaming.base.dataloader import StreamingDataLoader',
    'from streaming.base.stream import Stream, streams_registry',
    'from streaming.base.util import clean_stale_shared_memory, get_list_arg, merge_index',
    'from streaming.base.util import bytes_to_int, number_abbrev_to_int, retry, wait_for_file_to_exist',
    'from streaming.base.format import MDSWriter, reader_from_json, get_index_basename',
    'from streaming.base.format.mds.encodings import Encoding, _encodings, get_mds_encodings',
    'from streaming.base.compression import compress, decompress, get_compressions',
    'from streaming.base.hashing import get_hash, get_hashes',
    'from streaming.base.storage import CloudUploader, CloudDownloader, S3Downloader',
    'from streaming.base.world import World',
    'from streaming.base.distributed import get_rank, barrier, all_gather_object',
    'from streaming.base.array import Array',
    'from streaming.base.partition import get_partitions',
    'from streaming.base.shuffle import get_shuffle',
    'import streaming.text, streaming.vision, streaming.multimodal',
    'import streaming as s; s.base.util.clean_stale_shared_memory()',
    'import streaming; from streaming.base import util; assert util is streaming.base.util',
]


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(text, names)
    return names


@pytest.mark.parametrize('line', LINES)
def test_an_import_line_works(line: str) -> None:
    run(line)


def test_classes_are_those_of_headrace() -> None:
    names = run('from streaming import *; vision.__name__, text, multimodal')

    for name in ('MDSWriter', 'Stream', 'StreamingDataLoader', 'StreamingDataset', 'LocalDataset'):
        assert names[name] is getattr(headrace, name)
    assert pickle.loads(pickle.dumps(names['Stream'])) is headrace.Stream


@pytest.mark.parametrize(
    ('line', 'hint'),
    [
        ('from streaming.base.shared import SharedMemory', 'multiprocessing.shared_memory'),
        ('from streaming.base.batching import generate_work', 'dataset.plan'),
        ('from streaming.base.shuffle.py1e import get_shuffle_py1e', "get_shuffle('py1e'"),
        ('from streaming.multimodal.convert.webvid import crawl_webvid_subsets', 'convert each table'),
        ('import streaming.text.convert.enwiki_text', 'headrace convert enwiki'),
    ],
)
def test_an_absent_name_says_what_to_use(line: str, hint: str) -> None:
    with pytest.raises(AliasError, match='headrace stands for `streaming`') as error:
        run(line)

    assert hint in str(error.value)


def test_an_absent_attribute_says_what_to_use_and_hasattr_is_false() -> None:
    shared = importlib.import_module('streaming.base.shared')

    assert not hasattr(shared, 'SharedMemory')
    with pytest.raises(AbsentNameError, match=r'multiprocessing\.shared_memory'):
        shared.SharedMemory  # noqa: B018


@pytest.mark.parametrize(
    ('line', 'error'),
    [
        ('import streaming.base.nothing', ModuleNotFoundError),
        ('from streaming.base.util import nothing', ImportError),
        ('import streaming; streaming.nothing', AttributeError),
    ],
)
def test_names_that_neither_has_fail_as_ever(line: str, error: type[Exception]) -> None:
    with pytest.raises(error, match='nothing'):
        run(line)


def test_the_file_of_the_package_tells_which_one_it_is() -> None:
    import headrace.compat

    # Not by the name `headrace`: folders above it, such as a checkout, may have it, too.
    package = Path(headrace.compat.__file__).parent
    assert Path(run('import streaming')['streaming'].__file__).is_relative_to(package)


def test_modules_can_be_listed_copied_and_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    util = importlib.import_module('streaming.base.util')

    assert {'merge_index', 'retry'} <= set(dir(util))
    assert 'base' in dir(sys.modules['streaming'])
    assert copy.copy(util.retry) is util.retry
    monkeypatch.setattr('streaming.base.util.get_list_arg', len)
    assert run('from streaming.base.util import get_list_arg')['get_list_arg'] is len


def test_uninstalling_brings_the_installed_package_back() -> None:
    import headrace.compat

    run('import streaming.base')
    headrace.compat.uninstall()

    assert headrace.compat.FOLDER not in sys.path
    assert 'streaming' not in sys.modules
    found = importlib.util.find_spec('streaming')
    assert found is None or not Path(str(found.origin)).is_relative_to(Path(headrace.compat.__file__).parent)


def test_a_loaded_streaming_is_refused() -> None:
    import headrace.compat

    real = types.ModuleType('streaming')
    real.__file__ = '/site-packages/streaming/__init__.py'
    sys.modules['streaming'] = real

    with pytest.raises(AliasError, match=r'before `streaming`.*site-packages.*headrace run'):
        headrace.compat.install()
    headrace.compat.uninstall()
    assert sys.modules.pop('streaming') is real


def test_an_array_takes_all_kinds_of_indexes() -> None:
    array = run('from streaming.base.array import Array')['Array']

    class Squares(array):
        size = 10

        def get_item(self, idx: int) -> int:
            return idx * idx

    squares = Squares()
    assert squares[3] == 9
    assert squares[-1] == 81
    assert squares[np.int64(2)] == 4
    assert squares[2:5] == [4, 9, 16]
    assert squares[::-4] == [81, 25, 1]
    assert squares[-2:] == [64, 81]
    assert squares[[1, [2, -1]]] == [1, [4, 81]]
    assert squares[np.array([[0, 1], [2, 3]])] == [[0, 1], [4, 9]]
    with pytest.raises(IndexError):
        squares[10]
    with pytest.raises(TypeError, match='list or array of ints'):
        squares['ab']


def test_each_name_that_the_tables_give_is_there(tmp_path: Path, make_dataset: Any) -> None:
    from headrace.compat.finder import load
    from headrace.compat.tables import MEMBERS, TABLES, Alias

    for entries in TABLES.values():
        for entry in entries.values():
            assert not isinstance(entry, Alias) or load(entry) is not None

    folder = str(make_dataset('data', 10))
    dataset = headrace.StreamingDataset(local=folder, batch_size=2, shuffle_algo='py1e')
    with headrace.MDSWriter(out=str(tmp_path / 'out'), columns={'id': 'int'}) as writer:
        writer.write({'id': 1})
    made = [dataset, headrace.StreamingDataLoader(dataset), dataset.streams[0], headrace.LocalDataset(folder), writer]
    for one in made:
        members = MEMBERS[type(one).__name__]
        assert [name for name, entry in members.items() if isinstance(entry, Alias) and not hasattr(one, name)] == []
