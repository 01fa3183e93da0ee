"""Batches on their way to a GPU; these tests run where there is one.

A copy to a GPU may still run when the trainer asks for the next batch. Workers use the memory of batches again. So each
test checks on the GPU that every row has the numbers of its sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.dataset.device import GpuCopies

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')

SAMPLES, BATCH = 2048, 16
BUSY = 20_000_000
"""Cycles of other work on the GPU before each copy: about 10 ms. Workers read several batches meanwhile."""


@pytest.fixture(scope='module', params=[16, 16_384, 131_072], ids=['small rows', 'rows of 64 KiB', 'rows of 512 KiB'])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Rows that have the id of their sample in each number, and the samples of an epoch."""
    length = request.param
    samples = min(SAMPLES, (1 << 28) // (4 * length))
    path = tmp_path_factory.mktemp('gpu') / 'data'
    with MDSWriter(out=str(path), columns={'id': 'int', 'row': f'ndarray:int32:{length}'}, size_limit='16mb') as writer:
        for number in range(samples):
            writer.write({'id': number, 'row': np.full(length, number, np.int32)})
    return path, samples


def loader_of(folder: Path, **options: Any) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(local=str(folder), batch_size=BATCH, shuffle=True), **options)


def copied(batches: Iterator[Any], busy: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Ids and rows of batches on the GPU, each copied while the GPU works, and dropped at once."""
    for batch in batches:
        if busy:
            torch.cuda._sleep(busy)
        ids = batch['id'].clone()
        row = batch['row'].to('cuda', non_blocking=True)
        del batch
        yield ids, row


@pytest.mark.parametrize('busy', [0, BUSY], ids=['idle', 'busy'])
@pytest.mark.parametrize('pinned', [False, True], ids=['pageable', 'pinned'])
@pytest.mark.parametrize(('workers', 'context'), [(0, None), (2, 'fork'), (2, 'spawn')])
def test_rows_on_the_gpu_are_those_of_their_samples(folder, workers, context, pinned, busy):
    path, samples = folder
    torch.zeros(1, device='cuda')  # as when the model is there before the workers are forked
    loader = loader_of(path, num_workers=workers, multiprocessing_context=context, pin_memory=pinned)
    wrong = torch.zeros((), dtype=torch.int64, device='cuda')
    seen: list[torch.Tensor] = []
    for ids, row in copied(iter(loader), busy):
        wrong += (row != ids.to('cuda')[:, None]).sum()
        seen.append(ids)
    assert sorted(torch.cat(seen).tolist()) == list(range(samples))
    assert int(wrong) == 0


@pytest.mark.parametrize('pinned', [False, True], ids=['pageable', 'pinned'])
def test_rows_that_a_second_stream_copies_are_those_of_their_samples(folder, pinned):
    path, samples = folder
    loader = loader_of(path, num_workers=2, pin_memory=pinned)
    stream, rows, seen = torch.cuda.Stream(), [], []
    with torch.cuda.stream(stream):
        for ids, row in copied(iter(loader), BUSY // 4):
            seen.append(ids)
            rows.append(row[:, :: max(1, row.shape[1] // 64)].clone())
    stream.synchronize()
    assert torch.equal(torch.cat(rows)[:, 0].cpu(), torch.cat(seen).to(torch.int32))
    assert bool((torch.cat(rows) == torch.cat(rows)[:, :1]).all())
    assert len(torch.cat(seen)) == samples


def test_pinned_batches_are_pinned(folder):
    for workers in (0, 2):
        batch = next(iter(loader_of(folder[0], num_workers=workers, pin_memory=True)))
        assert batch['row'].is_pinned()
        assert batch['id'].is_pinned()


@pytest.mark.parametrize('workers', [0, 2])
def test_a_default_device_leaves_batches_in_memory(folder, workers):
    torch.set_default_device('cuda')
    try:
        loader = loader_of(folder[0], num_workers=workers, remainder='exact', mark_streams=True)
        assert {value.device.type for value in next(iter(loader)).values()} == {'cpu'}
    finally:
        torch.set_default_device('cpu')


@pytest.mark.parametrize('busy', [0, BUSY], ids=['idle', 'busy'])
@pytest.mark.parametrize(('workers', 'context'), [(0, None), (2, 'fork'), (2, 'spawn')])
def test_rows_that_a_loader_copies_are_those_of_their_samples(folder, workers, context, busy):
    path, samples = folder
    loader = loader_of(path, num_workers=workers, multiprocessing_context=context, device='cuda')
    wrong = torch.zeros((), dtype=torch.int64, device='cuda')
    seen: list[torch.Tensor] = []
    for batch in loader:
        assert batch['row'].is_cuda
        assert batch['row'].to('cuda') is batch['row']
        if busy:
            torch.cuda._sleep(busy)
        wrong += (batch['row'] != batch['id'][:, None]).sum()  # after the sleep: the memory must still be this batch's
        seen.append(batch['id'])
        del batch
    assert sorted(torch.cat(seen).tolist()) == list(range(samples))
    assert int(wrong) == 0


def test_another_stream_may_use_copied_rows(folder):
    path, samples = folder
    stream, seen, wrong = torch.cuda.Stream(), [], []
    with torch.cuda.stream(stream):
        for batch in loader_of(path, num_workers=2, device='cuda'):
            torch.cuda._sleep(BUSY // 4)
            seen.append(batch['id'].clone())
            wrong.append((batch['row'] != batch['id'][:, None]).sum())
    stream.synchronize()
    assert sorted(torch.cat(seen).tolist()) == list(range(samples))
    assert int(torch.stack(wrong).sum()) == 0


@pytest.mark.parametrize('pinned', [False, True], ids=['pageable', 'pinned'])
def test_sources_may_change_once_their_copies_have_ended(pinned):
    copies = GpuCopies(torch.device('cuda'))
    taken: list[torch.Tensor] = []
    for number in range(32):
        source = torch.full((1 << 20,), number, pin_memory=pinned)
        batch, event = copies.copy({'x': source})
        copies.receive(batch, event)
        torch.cuda._sleep(BUSY // 8)
        taken.append((batch['x'] != number).sum())
        del batch
        if number % 8 == 7:
            copies.end()
            source.fill_(-1)
    assert int(torch.stack(taken).sum()) == 0


def test_the_next_batch_is_copied_while_a_step_computes(folder):
    path, _ = folder
    batches = iter(loader_of(path, device='cuda'))
    for _ in range(8):  # pinned memory and the GPU's is taken once, which may wait for the GPU
        next(batches)
    torch.cuda.synchronize()
    torch.cuda._sleep(50 * BUSY)  # half a second of the current stream
    copied = torch.cuda.Event()
    following = next(batches)  # its copy began before the step
    copied.record(torch.cuda.current_stream())
    assert following['row'].is_cuda
    assert not copied.query()  # nothing here waited for the step
    torch.cuda.synchronize()


def test_a_pass_that_is_left_and_a_resume_go_on_with_the_next_batch(folder):
    path, _ = folder
    whole = [batch['id'].tolist() for batch in loader_of(path)]
    loader = loader_of(path, num_workers=2, device='cuda')
    batches = iter(loader)
    taken = [next(batches)['id'].tolist() for _ in range(3)]
    state = loader.state_dict()
    batches.close()
    resumed = loader_of(path, device='cuda')
    resumed.load_state_dict(state)
    assert taken + [batch['id'].tolist() for batch in resumed] == whole
