"""Copies of batches ahead of the step, on a GPU that is played. `test_gpu.py` has a real one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.dataset import device as on_device
from headrace.dataset.device import check_trainers_device, gpu_of
from headrace.errors import ConfigError
from headrace.mixing import build_loader, load_config

SAMPLES, BATCH = 96, 8

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


class LateCopies(on_device.GpuCopies):
    """Copies that read their source as late as a busy GPU may: when the step waits for them."""

    made: list[LateCopies]

    def __init__(self, gpu: torch.device) -> None:
        self.gpu, self.begun, self.received, self.ended = gpu, 0, 0, False
        self.made.append(self)

    def copy(self, batch: Any) -> tuple[Any, Any]:
        self.begun += 1
        copied = {name: torch.full_like(value, -1) for name, value in batch.items()}
        return copied, batch

    def receive(self, batch: Any, event: Any) -> None:
        self.received += 1
        for name, value in event.items():
            batch[name].copy_(value)

    def end(self) -> None:
        self.ended = True


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> list[LateCopies]:
    LateCopies.made = []
    monkeypatch.setattr(on_device, 'GpuCopies', LateCopies)
    return LateCopies.made


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 16 KiB that have the id of their sample in each number."""
    path = tmp_path_factory.mktemp('device') / 'data'
    with MDSWriter(out=str(path), columns={'id': 'int', 'row': 'ndarray:int32:4096'}, size_limit='256kb') as writer:
        for number in range(SAMPLES):
            writer.write({'id': number, 'row': np.full(4096, number, np.int32)})
    return path


def loader_of(folder: Path, **options: Any) -> StreamingDataLoader:
    dataset = StreamingDataset(local=str(folder), batch_size=BATCH, shuffle=True)
    return StreamingDataLoader(dataset, **{'device': 'cuda', **options})


def ids_of(batches: Iterator[Any]) -> list[list[int]]:
    """Ids of batches, whose rows are checked to be theirs."""
    seen = []
    for batch in batches:
        assert bool((batch['row'] == batch['id'][:, None]).all())
        seen.append(batch['id'].tolist())
    return seen


@pytest.mark.parametrize(('workers', 'context'), [(0, None), (2, 'fork')])
def test_batches_are_those_of_a_loader_without_copies(folder, copies, workers, context):
    plain = ids_of(iter(loader_of(folder, device=None)))
    loader = loader_of(
        folder, num_workers=workers, multiprocessing_context=context, prefetch_factor=2 if workers else None
    )
    assert ids_of(iter(loader)) == plain
    (made,) = copies
    assert (made.begun, made.received, made.ended) == (SAMPLES // BATCH, SAMPLES // BATCH, True)
    assert made.gpu == torch.device('cuda')
    ids_of(iter(loader))  # the next epoch
    assert len(copies) == 2


def test_the_copy_of_the_next_batch_has_begun_when_a_batch_is_given(folder, copies):
    for number, _ in enumerate(loader_of(folder), 1):
        assert copies[0].received == number
        assert copies[0].begun == min(number + 1, SAMPLES // BATCH)


@pytest.mark.parametrize('workers', [0, 1])
def test_a_batch_that_is_copied_and_not_given_is_given_after_a_resume(folder, workers):
    loader = loader_of(folder, num_workers=workers)
    whole = ids_of(iter(loader_of(folder, device=None)))
    batches = iter(loader)
    for number in range(1, SAMPLES // BATCH + 1):
        next(batches)
        state = loader.state_dict()
        assert state['sample_in_epoch'] == number * BATCH
        assert loader.stats().batches == number
        if number % 5 == 0:
            resumed = loader_of(folder)
            resumed.load_state_dict(state)
            assert ids_of(iter(resumed)) == whole[number:]


def test_a_pass_that_is_left_ends_its_copies(folder, copies):
    batches = iter(loader_of(folder))
    next(batches)
    assert not copies[0].ended
    batches.close()  # type: ignore[attr-defined]
    assert copies[0].ended


def test_peek_gives_the_batch_that_comes_next(folder):
    loader = loader_of(folder)
    first = loader.peek()
    assert loader.state_dict()['sample_in_epoch'] == 0
    assert next(iter(loader)) is first


class Failing(StreamingDataset):
    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        if sample_id == 4 * BATCH + 3:
            raise KeyError('no such word')
        return super().get_item(sample_id)


@pytest.mark.parametrize('workers', [0, 1])
def test_an_error_comes_after_the_batches_before_it(folder, copies, workers):
    dataset = Failing(local=str(folder), batch_size=BATCH)
    loader = StreamingDataLoader(dataset, num_workers=workers, device='cuda')
    seen = []
    with pytest.raises(KeyError, match='no such word'):
        for batch in loader:
            seen += batch['id'].tolist()
    assert seen == list(range(4 * BATCH))
    assert loader.state_dict()['sample_in_epoch'] == 4 * BATCH
    assert copies[0].ended


def test_a_machine_without_a_gpu_is_refused_before_workers_start(folder, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    loader = loader_of(folder, num_workers=1)
    with pytest.raises(ConfigError, match="`device` is 'cuda', but PyTorch finds no GPU here"):
        next(iter(loader))
    assert loader._worker_pool is None
    assert loader.state_dict()['sample_in_epoch'] == 0


def test_the_cpu_needs_no_copies(folder, copies):
    loader = loader_of(folder, device='cpu')
    assert len(ids_of(iter(loader))) == SAMPLES // BATCH
    assert not copies
    assert not loader.pin_memory


class Stream:
    """A stream whose work is done when `done` says so."""

    def __init__(self, *_: Any) -> None:
        self.done, self.waited = False, list[Any]()

    def record_event(self) -> Stream:
        return Stream()

    def wait_event(self, event: Stream) -> None:
        self.waited.append(event)

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The current stream of a GPU whose memory is this process'."""
    monkeypatch.undo()  # the real copies
    current = Stream()
    played = {'is_available': lambda: True, 'current_device': lambda: 0, 'Stream': Stream}
    played |= {'stream': lambda _: nullcontext(), 'current_stream': lambda _: current}
    for name, value in played.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(on_device.GpuCopies, '_to_gpu', lambda _, tensor: tensor.clone())
    return current


class Row(NamedTuple):
    x: torch.Tensor
    names: list[str]


def test_sources_are_kept_until_their_copies_have_ended(gpu):
    copies = on_device.GpuCopies(torch.device('cuda'))
    events, sources = [], []
    for number in range(4):
        source = torch.full((2,), number)
        copied, event = copies.copy({'x': source, 'pair': (source, [source]), 'row': Row(source, ['a']), 'text': ['b']})
        sources.append(weakref.ref(source))
        del source
        events.append(event)
        assert copied['x'].tolist() == copied['pair'][1][0].tolist() == copied['row'].x.tolist() == [number] * 2
        assert (copied['row'].names, copied['text']) == (['a'], ['b'])
        copies.receive(copied, event)
        assert gpu.waited[-1] is event
    gc.collect()
    assert all(source() is not None for source in sources)
    events[0].done = events[1].done = True
    copies.copy({})
    gc.collect()
    assert [source() is None for source in sources] == [True, True, False, False]
    copies.end()
    gc.collect()
    assert all(event.done for event in events)
    assert all(source() is None for source in sources)


@pytest.mark.parametrize('wrong', ['mps', 'gpu', 'meta', object()])
def test_other_devices_are_refused(folder, wrong):
    with pytest.raises(ConfigError, match='`device`'):
        loader_of(folder, device=wrong)


def test_yaml_names_the_device(folder):
    content = {'train': {'local': str(folder), 'device_batch_size': BATCH, 'loader': {'device': 'cuda'}}}
    assert len(ids_of(iter(build_loader(load_config(content).train)))) == SAMPLES // BATCH
    with pytest.raises(ConfigError, match='`device`'):
        build_loader(load_config(content, overrides=['train.loader.device=tpu']).train)


def test_accelerate_refuses_another_device(folder):
    accelerate = pytest.importorskip('accelerate', reason='pip install -e ".[recipes]"')
    from headrace.accelerate import prepare

    with pytest.raises(ConfigError, match="the trainer puts batches on 'cpu'"):
        prepare(accelerate.Accelerator(cpu=True), loader_of(folder))


def test_another_device_than_the_trainers_is_refused():
    for same in ('cuda', 'cuda:1', torch.device('cuda', 1), 'cpu', None):
        check_trainers_device(same, torch.device('cuda', 1))
    for device, trainers in (('cuda', 'cpu'), ('cuda:0', 'cuda:1')):
        with pytest.raises(ConfigError, match=f"`device` is '{device}', but the trainer puts batches on '{trainers}'"):
            check_trainers_device(device, torch.device(trainers))
    assert gpu_of('cuda:1') == torch.device('cuda', 1)
