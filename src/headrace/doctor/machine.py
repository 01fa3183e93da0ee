"""The launcher's variables, and the limits of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from headrace.dataset.topology import detect_topology
from headrace.display import count_text, human_size
from headrace.doctor.finding import Finding
from headrace.errors import TopologyError

__all__ = ['check_launcher', 'check_machine']

FEW_DESCRIPTORS: Final = 4096
"""A loader with workers holds some for each worker, and a mapped file for each shard in use."""
SHARED_MEMORY: Final = Path('/dev/shm')  # noqa: S108 - the system's own
LITTLE_SHARED_MEMORY: Final = 256 << 20
"""Bytes of it. headrace's own batches do not use it; pinning, gloo and NCCL do."""


def check_launcher(environ: Mapping[str, str] | None = None) -> Iterable[Finding]:
    """Whether this process knows its rank."""
    env = os.environ if environ is None else environ
    try:
        topology = detect_topology(environ=env)
    except TopologyError as error:
        yield Finding('problem', 'launcher', str(error))
        return
    text = f'rank {topology.rank} of {topology.world_size} on {topology.num_nodes} node(s)'
    half = [name for name in ('RANK', 'WORLD_SIZE') if name in env]
    if len(half) == 1:
        (missing,) = {'RANK', 'WORLD_SIZE'} - set(half)
        fix = f'set {missing} as well, or unset {half[0]}; torchrun sets both'
        yield Finding('problem', 'launcher', f'{half[0]} is set and {missing} is not, so this is {text}', fix)
    elif topology.world_size == 1 and int(_number(env.get('SLURM_JOB_NUM_NODES', '1'))) > 1:
        fix = 'start it with srun or torchrun, or run `srun headrace doctor` for the view of a rank'
        yield Finding('note', 'launcher', f'{text}, in a SLURM job of {env["SLURM_JOB_NUM_NODES"]} nodes', fix)
    else:
        yield Finding('ok', 'launcher', text)


def _number(text: str) -> str:
    return text if text.isdecimal() else '1'


def check_machine(*, workers: int = 0, ranks: int = 1) -> Iterable[Finding]:
    """Limits of this machine.

    Args:
        workers: worker processes of each rank's loaders.
        ranks: ranks on this machine.
    """
    yield from _descriptors()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    if ranks * max(workers, 1) > cpus:  # a trainer with workers waits for its device
        if workers == 0:
            fix = 'start fewer ranks here, or give the job more processors'
        else:
            most = cpus // ranks
            fix = f'`num_workers: {most}` at most, unless `headrace bench` finds that more are faster'
        yield Finding(
            'note',
            'processors',
            f'{cpus} for {count_text(ranks, "rank")} with {count_text(workers, "worker")} each',
            fix,
        )
    else:
        yield Finding('ok', 'processors', f'{cpus}')
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free < LITTLE_SHARED_MEMORY:
            fix = 'in Docker: --shm-size=8g, or --ipc=host'
            yield Finding('note', 'shared memory', f'{human_size(free)} free; NCCL and gloo may need more', fix)
        else:
            yield Finding('ok', 'shared memory', f'{human_size(free)} free')


def _descriptors() -> Iterable[Finding]:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEW_DESCRIPTORS:
        most = 'unlimited' if hard == resource.RLIM_INFINITY else hard
        fix = f'ulimit -n {most}, in the job script'
        yield Finding('note', 'open files', f'{soft} may be open, {FEW_DESCRIPTORS} are enough for any run', fix)
    else:
        yield Finding('ok', 'open files', 'unlimited' if soft == resource.RLIM_INFINITY else str(soft))
