"""One rank of a run that is watched, `python watched_run.py RANK RANKS RUN DATA_A DATA_B`, until RUN/stop exists."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.watching import RunRecorder


def main() -> None:
    rank, ranks, folder, *data = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:]
    streams = [
        Stream(remote=remote, local=str(folder / 'cache' / name), name=name, proportion=weight)
        for name, remote, weight in zip(('code', 'prose'), data, (0.4, 0.6), strict=True)
    ]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=4)
    loader = StreamingDataLoader(dataset, topology=Topology(rank=rank, world_size=ranks))
    record = RunRecorder(folder, status_every=0.2)
    record.begin({'': loader})
    while not (folder / 'stop').exists():
        for _ in loader:
            time.sleep(0.02 + 0.002 * rank)  # the training step
            record.batch_done()
    record.end()


if __name__ == '__main__':
    main()
