"""Training with torchft's Manager and DDP: replicas that are killed get successors, and the rest train on.

usage: python examples/elastic_torchft.py FOLDER REPLICAS STEPS (2 to 24 replicas; writes shards to FOLDER at first)
"""

import json
import multiprocessing.connection
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from plain_pytorch import write_shards
from torch.distributed import GradBucket, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torchft import DistributedDataParallel, Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from headrace import PositionTracker, StreamingDataLoader, StreamingDataset, Topology

PATIENCE = timedelta(seconds=10)
"""After it, a group that a killed replica should join forms anew. torchft's 60 seconds are also those of its quorum."""


class Gloo(ProcessGroupGloo):
    def configure(self, *args: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().configure(*args[:4])  # without the names of ranks and groups, which gloo of torch 2.7 does not take


class DDP(DistributedDataParallel):
    @staticmethod
    def _comm_hook(state: Manager, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        state.allreduce(bucket.buffer()).wait()  # keeps an error for `should_commit`; torchft's hook would raise one
        done = torch.futures.Future[torch.Tensor]()
        done.set_result(bucket.buffer())
        return done


def replica(folder: Path, lighthouse: str, steps: int) -> None:
    data: dict[str, Any] = {'remote': str(folder / 'shards'), 'local': str(folder / 'cache'), 'shuffle': True}
    # Any number of replicas may train a step: a killed one counts for a second, beside its successor.
    dataset = StreamingDataset(**data, global_batch_size=24, uneven='ragged', topology=Topology())
    loader = StreamingDataLoader(dataset, num_workers=1, persistent_workers=True, multiprocessing_context='fork')
    loader.peek()  # starts the worker before there are connections that it would keep open
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    tracker, model = PositionTracker(loader), torch.nn.Embedding(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)

    def save() -> list[Any]:
        return [model.state_dict(), optimizer.state_dict(), tracker.state_dict()]

    def load(state: list[Any]) -> None:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
        healed.append(state[2])

    # A replica of one rank, with a store of its own. It trains from the step on at which it joins.
    store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    alone: dict[str, Any] = {'rank': 0, 'world_size': 1, 'store_addr': '127.0.0.1', 'store_port': store.port}
    alone |= {'hostname': '127.0.0.1', 'lighthouse_addr': lighthouse, 'timeout': PATIENCE}
    manager = Manager(Gloo(PATIENCE), load, save, 2, use_async_quorum=False, **alone)
    ddp, healed, batches, trained = DDP(manager, model), list[Any](), iter(()), True
    while manager.current_step() < steps:
        manager.start_quorum()
        topology = Topology(rank=manager.participating_rank() or 0, world_size=manager.num_participants())
        if healed or not trained or topology != dataset.topology:  # without a state, it goes on after the trained steps
            tracker.rescale(topology, healed.pop() if healed else None)
        batch = next(batches, None) or next(batches := tracker.follow(loader))  # a pass ends with its epoch
        tokens = batch['tokens'].long()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(tokens[:, :-1]).mT, tokens[:, 1:])
        loss = loss * (len(tokens) * topology.world_size / 24)  # so that the mean over replicas is that of all rows
        loss.backward()
        manager.allreduce(mean := loss.detach().clone()).wait()
        if trained := manager.should_commit():
            optimizer.step()
            tracker.trained()
            line = [os.getpid(), topology.world_size, manager.current_step() - 1, mean.item(), batch['id'].tolist()]
            os.write(1, json.dumps(line).encode() + b'\n')
    os._exit(0)  # the manager's threads would wait for one another


def main() -> None:
    folder, replicas, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if not (folder / 'shards' / 'index.json').exists():
        write_shards(folder / 'shards')
    server = LighthouseServer(bind='127.0.0.1:0', min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
    lighthouse = f'http://127.0.0.1:{server.address().rpartition(":")[2]}'
    context = multiprocessing.get_context('forkserver')  # this process has the server's threads
    alive, codes = list[Any](), [-1] * replicas
    while 0 not in codes:
        alive += [context.Process(target=replica, args=(folder, lighthouse, steps)) for _ in codes]
        for process in alive[len(alive) - len(codes) :]:
            process.start()
        multiprocessing.connection.wait([process.sentinel for process in alive])
        codes = [process.exitcode for process in alive if process.exitcode is not None]
        alive = [process for process in alive if process.exitcode is None]
    for process in alive:
        process.join(10)
        process.kill()  # it was still starting, and has nothing left to train


if __name__ == '__main__':
    main()
