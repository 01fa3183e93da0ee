"""Training whose ranks come and go, by `torch.distributed` alone: `kill -9` a rank, and it gets a successor.

usage: python examples/elastic_pytorch.py FOLDER RANKS STEPS (1 to 8 ranks; writes shards to FOLDER at the first call)
"""

import io
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plain_pytorch import write_shards
from torch.distributed import HashStore, PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from headrace import PositionTracker, StreamingDataLoader, StreamingDataset, Topology


def rank(folder: Path, port: int, steps: int) -> None:
    data: dict[str, Any] = {'remote': str(folder / 'shards'), 'local': str(folder / 'cache'), 'shuffle': True}
    dataset = StreamingDataset(**data, global_batch_size=24, uneven='ragged', topology=Topology())
    loader = StreamingDataLoader(dataset, num_workers=1, persistent_workers=True, multiprocessing_context='fork')
    train(loader, lambda batch: (batch['tokens'], batch['tokens'], batch['id'].tolist()), port, steps)


def train(loader: StreamingDataLoader, rows: Callable[[Any], tuple[Any, Any, Any]], port: int, steps: int) -> None:
    """Train some steps. `rows` gives a batch's tokens, targets and ids."""
    name = os.getpid()
    loader.peek()  # starts the workers, which would keep connections open if they were forked later
    store: Any = TCPStore('127.0.0.1', port, timeout=timedelta(hours=1))  # its stubs lack `check`
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    tracker, model = PositionTracker(loader), torch.nn.Embedding(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    # Outlives its group: a thread of the group that drops it needs the lock that `destroy_process_group` holds.
    sums = torch.empty(2 + model.weight.numel())
    world = step = 0

    def has_changed() -> bool:
        return store.check([f'world {world + 1}'])

    def join() -> None:
        """Form a group with the ranks of the next world that has this one, and go on where the foremost is."""
        nonlocal world, step
        while True:
            if dist.is_initialized():
                dist.destroy_process_group()
            names = json.loads(store.get(f'world {(world := world + 1)}'))  # waits until there is one
            if name not in names:
                continue
            torch.save([model.state_dict(), optimizer.state_dict(), tracker.state_dict()], saved := io.BytesIO())
            data = torch.frombuffer(saved.getbuffer(), dtype=torch.uint8)  # as `sums`, outlives its group
            store.set(f'{world} {name}', json.dumps([step, len(data)]))
            while not (is_there := store.check([f'{world} {each}' for each in names])) and not has_changed():
                time.sleep(0.01)
            # The first rank decides for all of them whether this world begins.
            if store.compare_set(f'begins {world}', '', 'yes' if is_there else 'no') != b'yes':
                continue
            me, size, ours = names.index(name), len(names), PrefixStore(f'group {world}', store)
            # The last step may have failed here and not there, and a new rank has trained none.
            found = [json.loads(store.get(f'{world} {each}')) for each in names]
            foremost = found.index(max(found))
            if me != foremost:
                data = torch.empty(found[foremost][1], dtype=torch.uint8)
            try:
                dist.init_process_group('gloo', store=ours, rank=me, world_size=size, timeout=timedelta(seconds=30))
                dist.broadcast(data, foremost)
            except RuntimeError:  # one more is gone
                if not dist.is_initialized():
                    # torch counts this group, and names the next one by the count, unless one is destroyed before.
                    dist.init_process_group('gloo', store=HashStore(), rank=0, world_size=1)
                continue
            state = torch.load(io.BytesIO(data.numpy().tobytes()))
            step = found[foremost][0]
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
            return tracker.rescale(Topology(rank=me, world_size=size), state[2])

    def reduce() -> bool:
        try:
            dist.all_reduce(sums)
        except RuntimeError:  # a rank is gone; the error keeps connections open until it is forgotten
            return False
        return True

    join()
    while step < steps:  # a pass ends with its epoch
        for batch in tracker.follow(loader):
            tokens, targets, ids = (each[: loader.own_samples] for each in rows(batch))
            logits, targets = model(tokens[:, :-1].long()).mT, targets[:, 1:].long()
            loss = torch.nn.functional.cross_entropy(logits, targets, reduction='sum')
            (gradient,) = torch.autograd.grad(loss, model.weight)
            # Ranks may have different rows, so sums and their number are added.
            torch.cat([loss.detach().view(1), (targets >= 0).sum().view(1), gradient.view(-1)], out=sums)
            if has_changed() or not reduce():
                join()
                continue
            mean = sums / sums[1]
            model.weight.grad = mean[2:].view_as(model.weight)
            optimizer.step()
            tracker.trained()
            sys.stdout.write(json.dumps([name, world, step, mean[0].item(), ids]) + '\n')
            sys.stdout.flush()
            step += 1
            if step == steps:
                break


def main() -> None:
    folder, ranks, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if not (folder / 'shards' / 'index.json').exists():
        write_shards(folder / 'shards')
    store, world, missing = TCPStore('127.0.0.1', 0, is_master=True), 0, ranks
    # A fork of this process would wait for ever where the store's thread held a lock at the time.
    context = multiprocessing.get_context('forkserver')
    alive: list[Any] = []
    while missing or alive:
        alive += [context.Process(target=rank, args=(folder, store.port, steps)) for _ in range(missing)]
        for process in alive[len(alive) - missing :]:
            process.start()
        store.set(f'world {(world := world + 1)}', json.dumps([process.pid for process in alive]))
        wait([process.sentinel for process in alive])
        missing = sum(bool(process.exitcode) for process in alive)
        alive = [process for process in alive if process.exitcode is None]


if __name__ == '__main__':
    main()
