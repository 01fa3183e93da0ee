"""A rank of examples/online_mixture.py: `python online_run.py FOLDER STEPS WORKERS KILL`, which writes ids by step."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from examples.online_mixture import train
from tests.support.programs.processes import end_rank


def main() -> None:
    folder, (until, workers, kill) = Path(sys.argv[1]), map(int, sys.argv[2:5])
    dist.init_process_group('gloo')
    log = open(folder / f'ids.{dist.get_world_size()}.{dist.get_rank()}.jsonl', 'w')  # noqa: SIM115 - a kill closes it

    def after_step(step: int, batch: Any) -> None:
        print(json.dumps([step, batch['id'].tolist()]), file=log, flush=True)
        if step == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    train(folder, until, workers=workers, after_step=after_step)
    end_rank()


if __name__ == '__main__':
    main()
