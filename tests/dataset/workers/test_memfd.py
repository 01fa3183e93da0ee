"""How batches come from workers."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from headrace import StreamingDataLoader, StreamingDataset
from headrace.dataset.workers.memfd import use_memfd_for_tensors
from tests.support.programs.descriptors import close_leftovers, open_descriptors

pytestmark = pytest.mark.skipif(not hasattr(os, 'memfd_create'), reason='needs Linux')

DTYPES = [
    torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.fixture(scope='module', autouse=True)
def handing_on():
    use_memfd_for_tensors()
    yield
    ForkingPickler.register(torch.Tensor, reduce_tensor)
    ForkingPickler.register(torch.UntypedStorage, reduce_storage)
    default_collate_fn_map[torch.Tensor] = collate_tensor_fn


def sent(value):
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def memory_of(tensor: torch.Tensor) -> str:
    """The name of the file that a tensor's bytes are mapped from."""
    for line in Path('/proc/self/maps').read_text().splitlines():
        begin, end = (int(address, 16) for address in line.split()[0].split('-'))
        if begin <= tensor.data_ptr() < end:
            return line.split(maxsplit=5)[5].strip() if len(line.split()) > 5 else ''
    raise AssertionError(line)


@given(
    st.lists(st.integers(1, 5), max_size=4),
    st.sampled_from(DTYPES),
    st.sampled_from(['whole', 'part', 'turned', 'stepped']),
)
def test_tensors_arrive_as_they_were(shape, dtype, layout):
    data = torch.from_numpy(np.random.default_rng(0).integers(0, 2, [2, *shape, 2])).to(dtype)
    tensor = {'whole': data, 'part': data[1], 'turned': data.transpose(0, -1), 'stepped': data[..., ::2]}[layout]
    got = sent(tensor)
    assert got.dtype == tensor.dtype
    assert got.shape == tensor.shape
    assert torch.equal(got.to(torch.complex128), tensor.to(torch.complex128))
    assert got.stride() == tensor.stride()
    assert ('memfd' in memory_of(got)) == (layout in {'whole', 'turned'})
    assert got.is_shared()
    got.detach_()  # is no view
    got.zero_()
    assert not got.to(torch.complex128).any()


def test_images_keep_their_channels_last():
    images = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    got = sent(images)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got, images)


def test_views_of_one_tensor_share_its_memory():
    rows = torch.arange(1000).view(-1, 10)
    close_leftovers()
    before = open_descriptors('/dev/shm/torch')  # PyTorch sends views of a part
    got = sent(list(rows.unbind()))
    assert (open_descriptors('/dev/shm/torch') - before).total() in {1, 2}
    assert len({row.untyped_storage().data_ptr() for row in got}) == 1
    assert torch.equal(torch.stack(got), rows)


def test_one_tensor_twice_is_one():
    tensor = torch.arange(10)
    first, second = sent([tensor, tensor])
    assert first is second


def test_whole_views_of_one_memory_are_two():
    tensor = torch.arange(6)
    first, second = sent([tensor, tensor.view(2, 3)])
    first.zero_()
    assert second.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize('part', [slice(None), slice(2, 5)])
def test_what_came_may_be_handed_on(part):
    tensor = torch.arange(10.0)
    close_leftovers()
    before = open_descriptors('/memfd:')
    got = sent(sent(sent(tensor)[part]))
    assert got.tolist() == tensor[part].tolist()
    assert got.is_shared()
    first, second = sent([sent(tensor)[1:], sent(tensor)[:3]])
    assert (first.tolist(), second.tolist()) == (tensor[1:].tolist(), tensor[:3].tolist())
    came = sent(tensor)
    first, second = sent([came[1:], came[:3]])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    del got, first, second, came
    close_leftovers()
    assert not open_descriptors('/memfd:') - before


@pytest.mark.parametrize('method', ['fork', pytest.param('spawn', marks=pytest.mark.slow)])
def test_batches_of_one_loader_are_the_data_of_another(make_dataset, method):
    data = StreamingDataset(local=str(make_dataset('data', 40)), batch_size=10)
    batches = list(StreamingDataLoader(data, num_workers=1))
    again = DataLoader(batches, batch_size=None, num_workers=1, timeout=60, multiprocessing_context=method)
    assert [batch['id'].tolist() for batch in again] == [batch['id'].tolist() for batch in batches]


def test_where_new_tensors_are_made_does_not_matter():
    with torch.device('meta'):
        got = sent(torch.arange(3, device='cpu'))
    assert got.tolist() == [0, 1, 2]


def test_a_users_own_ways_stay():
    def collate(rows, *, collate_fn_map=None):
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def reduce(tensor):
        return list, ([7],)

    default_collate_fn_map[torch.Tensor] = collate
    ForkingPickler.register(torch.Tensor, reduce)
    try:
        use_memfd_for_tensors()
        assert default_collate([torch.ones(2), torch.ones(3)]).shape == (2, 3)
        assert sent(torch.ones(2)) == [7]
    finally:
        ForkingPickler.register(torch.Tensor, reduce_tensor)
        default_collate_fn_map[torch.Tensor] = collate_tensor_fn
        use_memfd_for_tensors()


def test_nothing_is_a_view_for_autograd():
    with torch.no_grad():
        got = sent(torch.ones(3))
    weight = torch.ones(3, requires_grad=True)
    assert type(got.mul_(weight).grad_fn).__name__ == 'MulBackward0'


@pytest.mark.parametrize(
    'tensor',
    [
        torch.ones(0, 3),
        torch.ones(1).expand(1000, 1000),
        torch.ones(3, requires_grad=True),
        torch.ones(3).share_memory_(),
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=['empty', 'expanded', 'gradient', 'shared', 'parameter', 'conjugate', 'sparse', 'nested'],
)
def test_what_is_no_plain_memory_goes_as_pytorch_does_it(tensor):
    got = sent(tensor)
    assert type(got) is type(tensor)
    assert got.requires_grad == tensor.requires_grad
    assert got.layout is tensor.layout
    if tensor.is_nested:
        assert all(map(torch.equal, got.unbind(), tensor.unbind()))
        return
    if tensor.layout is torch.strided:
        assert got.stride() == tensor.stride()
        assert 'memfd' not in memory_of(got) if tensor.numel() else True
    assert torch.equal(got.to_dense(), tensor.to_dense())


def test_the_other_strategy_of_sharing_holds():
    torch.multiprocessing.set_sharing_strategy('file_system')
    try:
        assert '/dev/shm/torch_' in memory_of(sent(torch.ones(3)))
    finally:
        torch.multiprocessing.set_sharing_strategy('file_descriptor')


def test_where_there_is_no_such_memory_pytorch_does_it(monkeypatch):
    def refuse(name):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, 'memfd_create', refuse)
    got = sent(torch.arange(3))
    assert got.tolist() == [0, 1, 2]
    assert '/dev/shm/torch_' in memory_of(got)


def test_nothing_stays_open():
    close_leftovers()
    before = open_descriptors('/memfd:')
    for _ in range(20):
        sent([torch.ones(3), torch.ones(5)])
    close_leftovers()
    assert not open_descriptors('/memfd:') - before


@pytest.mark.parametrize(
    'method', ['fork', *(pytest.param(method, marks=pytest.mark.slow) for method in ('spawn', 'forkserver'))]
)
@pytest.mark.once
def test_batches_of_a_loader_have_no_names(make_dataset, method):
    data = StreamingDataset(local=str(make_dataset('data', 40)), batch_size=10)
    loader = StreamingDataLoader(data, num_workers=2, multiprocessing_context=method)
    for number, batch in enumerate(loader):
        assert batch['id'].tolist() == list(range(10 * number, 10 * number + 10))
        assert '/dev/shm' not in memory_of(batch['id'])


class Transformed(StreamingDataset):
    """Its samples are collated one by one."""

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        return {'id': sample['id'], 'x': torch.full((3,), sample['id']), 'y': np.full(2, sample['id'])}


@pytest.mark.parametrize('collate_fn', [None, default_collate, lambda rows: default_collate(rows)])
@pytest.mark.once
def test_nor_have_those_of_default_collate(make_dataset, collate_fn):
    data = Transformed(local=str(make_dataset('data', 40)), batch_size=10)
    for number, batch in enumerate(StreamingDataLoader(data, num_workers=1, collate_fn=collate_fn)):
        assert batch['x'][:, 0].tolist() == list(range(10 * number, 10 * number + 10))
        assert not [tensor for tensor in batch.values() if '/dev/shm' in memory_of(tensor)]


def test_what_cannot_be_stacked_says_so_as_in_pytorch():
    for rows in ([torch.ones(2), torch.ones(3)], [torch.eye(2).to_sparse()] * 2):
        with pytest.raises(RuntimeError) as ours:
            default_collate(rows)
        with pytest.raises(RuntimeError) as pytorchs:
            collate_tensor_fn(rows)
        assert str(ours.value) == str(pytorchs.value)
    rows = [torch.ones(2, requires_grad=True)] * 2
    assert default_collate(rows).grad_fn is not None


LARGE_BATCHES = """
import sys, torch
from headrace import StreamingDataLoader, StreamingDataset

data = StreamingDataset(local=sys.argv[1], batch_size=10)
loader = StreamingDataLoader(data, num_workers=1, collate_fn=lambda rows: torch.ones(1_000_000))
assert [int(batch.sum()) for batch in loader] == [1_000_000] * 4
"""


@pytest.mark.once
def test_a_small_dev_shm_is_enough(make_dataset):
    small = ['unshare', '-m', 'sh', '-c', 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', 'sh']
    if shutil.which('unshare') is None or subprocess.run([*small, 'true'], capture_output=True).returncode:
        pytest.skip('A small /dev/shm needs the right to mount one.')
    program = [sys.executable, '-c', LARGE_BATCHES, str(make_dataset('data', 40))]
    done = subprocess.run([*small, *program], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
