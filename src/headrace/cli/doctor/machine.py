"""The launcher's variables, the limits of this machine, and the versions of packages."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headrace.dataset.topology import detect_topology
from headrace.errors import TopologyError
from headrace.errors.display import count_text, human_size
from headrace.storage.resolve import backends


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    level: Literal['ok', 'note', 'problem']
    """`problem`: a run will fail or be slow. `note`: worth knowing. `ok`: as it should be."""
    what: str
    """The thing that was looked at, such as a package or a stream."""
    text: str
    """The answer, with its numbers."""
    fix: str = ''
    """The change to make."""


FEW_DESCRIPTORS: Final = 4096
"""A loader with workers holds some for each worker, and a mapped file for each shard in use."""
SHARED_MEMORY: Final = Path('/dev/shm')  # noqa: S108 - the system's own
LITTLE_SHARED_MEMORY: Final = 256 << 20  # Bytes of it. headrace's own batches do not use it; pinning, gloo and NCCL do.


def check_launcher(environ: Mapping[str, str] | None = None) -> Iterable[Finding]:
    """Whether this process knows its rank."""
    env = os.environ if environ is None else environ
    try:
        topology = detect_topology(environ=env)
    except TopologyError as error:
        yield Finding('problem', 'launcher', str(error))
        return
    text = f'rank {topology.rank} of {topology.world_size} on {count_text(topology.num_nodes, "node")}'
    slurm_nodes = env.get('SLURM_JOB_NUM_NODES', '1')
    half = [name for name in ('RANK', 'WORLD_SIZE') if name in env]
    if len(half) == 1:
        (missing,) = {'RANK', 'WORLD_SIZE'} - set(half)
        fix = f'set {missing} as well, or unset {half[0]}; torchrun sets both'
        yield Finding('problem', 'launcher', f'{half[0]} is set and {missing} is not, so this is {text}', fix)
    elif topology.world_size == 1 and slurm_nodes.isdecimal() and int(slurm_nodes) > 1:
        fix = 'start it with srun or torchrun, or run `srun headrace doctor` for the view of a rank'
        yield Finding('note', 'launcher', f'{text}, in a SLURM job of {slurm_nodes} nodes', fix)
    else:
        yield Finding('ok', 'launcher', text)


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


_EXTRAS = ('', 'lightning', 'composer', 'arrow', 'vision')
"""The extras whose versions are looked at, beside those of the stores; '' for what headrace always needs."""
_ALWAYS = frozenset({'torch', 'numpy'})
_ONLY_WITH = {'composer': 'mosaicml'}
"""Requirements of these extras hold only where this package is installed: Composer bounds torch."""


def check_versions() -> Iterable[Finding]:
    """A finding for each installed package: in the range that headrace declares, or not."""
    yield Finding('ok', 'python', f'{platform.python_version()} on {platform.system()} {platform.machine()}')
    bounds: dict[str, list[Requirement]] = {}
    extras = {*_EXTRAS, *(backend.module for backend in backends() if backend.example)}
    for text in metadata.requires('headrace') or ():
        requirement = Requirement(text)
        for extra in extras:
            is_asked = requirement.marker is None if not extra else requirement.marker is not None
            if not is_asked or (requirement.marker is not None and not requirement.marker.evaluate({'extra': extra})):
                continue
            if extra not in _ONLY_WITH or _version(_ONLY_WITH[extra]) is not None:
                bounds.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    for name, requirements in bounds.items():
        installed = _version(name)
        if installed is None:
            if name in _ALWAYS:
                yield Finding('problem', name, 'is not installed', f'pip install {name}')
            continue
        broken = [each for each in requirements if not each.specifier.contains(installed, prereleases=True)]
        if broken:
            wanted = ','.join(dict.fromkeys(str(each.specifier) for each in broken))
            yield Finding(
                'problem', name, f'{installed} is installed, headrace wants {wanted}', f"pip install '{name}{wanted}'"
            )
        else:
            yield Finding('ok', name, installed)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
