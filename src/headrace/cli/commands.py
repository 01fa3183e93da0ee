"""The commands of ``headrace`` by name: their lines in ``--help``, and the functions that declare and run them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

GROUPS: Final = {
    'begin': {
        'init': 'ask five questions, and write a first configuration and a training script that runs',
        'demo': 'train, kill -9, resume on other ranks, and prove that no sample was lost or repeated',
    },
    'make data': {
        'convert': 'convert folders of images, Parquet, WebDataset, litdata, JSONL or CSV to a dataset of MDS shards',
        'tokenize': 'make token shards of texts once; again, it does only the parts of the source that have changed',
        'reshard': 'write a dataset again with other shard sizes, compression, columns or order; bytes of images stay',
        'merge': 'write one index for a dataset that was written in parts, each with its own index; moves no data',
        'rollback': 'list the indexes that a merge or an append replaced, or bring one back; moves no data',
        'cp': 'copy a dataset to another folder or store, verified; again after a kill, it copies what is missing',
        'erase': 'erase samples by their ids, from shards, kept indexes and caches; every other sample keeps its place',
    },
    'look at data': {
        'inspect': 'show the columns, sizes and first samples of a dataset; reads its index, and little of one shard',
        'verify': 'check sizes, checksums, offsets and every sample of a dataset',
        'measure': 'measure the lengths of samples for `bucket` and `balance` before a run, and show their spread',
    },
    'prepare a run': {
        'config': 'check a configuration, show it as it is read, or print the JSON Schema for editors',
        'doctor': 'find what will go wrong in a run: versions, launcher, limits, stores, clocks, cache folders',
        'bench': 'measure samples, bytes, waits and processor time of your data on this machine, and their limit',
        'simulate': 'foresee throughput, waits, cache and egress cost of a run, without data or GPUs',
        'tune': 'propose workers, prefetch, cache and blocks of the shuffle under which a run waits little for data',
        'warm': "fill this node's cache before a run: all that an epoch reads, or the shards of the first batches",
        'cache': 'show what a cache folder holds, or remove its shards: headrace cache clear DIR',
    },
    'watch and explain a run': {
        'watch': 'show the waits, the mix and the caches of a run while it trains, on a local page or in the terminal',
        'explain': 'say which samples or packed documents make up a batch or a step, or when a sample is seen',
        'skip': "show the samples of a trainer's step, and print or write the configuration that skips it",
    },
    'come from elsewhere': {
        'run': 'run a program for MosaicML Streaming unchanged: its `import streaming` gives headrace',
        'convert-config': "print the loaders of LLM Foundry's YAML as YAML of headrace, with the same batches",
    },
    'complete in a shell': {
        'completion': 'print a script with which bash, zsh or fish completes commands, options and files',
    },
}
"""Lines of the commands in ``--help``, by what they are for, as docs/command_line.md groups them."""

Run: TypeAlias = Callable[[argparse.Namespace], int]


class Command(NamedTuple):
    """A command. Importing its module must be cheap; `run` imports what the work needs."""

    help: str  # one line, for ``headrace --help``
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Run  # returns the exit status
    json: str | None = None  # the help of its `--json`; None: `add_arguments` declares that


COMMANDS: dict[str, Command] = {}
"""Those of the modules that are imported."""


def command(
    name: str, add_arguments: Callable[[argparse.ArgumentParser], None], *, json: str | None = 'print JSON'
) -> Callable[[Run], Run]:
    """Declare the decorated function as the command of a name."""

    def declare(run: Run) -> Run:
        (text,) = (commands[name] for commands in GROUPS.values() if name in commands)
        COMMANDS[name] = Command(text, add_arguments, run, json)
        return run

    return declare
