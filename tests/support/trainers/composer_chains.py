"""Chains of legs, as `chains` has them: `python composer_chains.py CHAINS.json OUTCOMES.jsonl`.

Ranks are forked with the environment that Composer's launcher gives them.
"""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path
from typing import Any

import composer.algorithms  # noqa: F401 - trainers import both at their first use; ranks should not have to, each
import torch
from transformers import PreTrainedModel  # noqa: F401

from tests.support.trainers import composer_machine  # noqa: F401
from tests.support.trainers.chains import fork_ranks, serve
from tests.support.trainers.composer_legs import Crash, Leg, run

SECONDS = 60
"""That a leg may take, which is some 30 times what it does."""


def do(fields: dict[str, Any]) -> None:
    """Do a leg."""
    leg = Leg(**fields)
    fork_ranks(
        functools.partial(_work, leg),
        ranks=leg.ranks,
        nodes=leg.nodes,
        log=lambda rank: Path(leg.out, f'{leg.name}.rank{rank}.log'),
        launcher={},
        node_variable='NODE_RANK',
        seconds=SECONDS,
        may_die=leg.is_to_die,
    )


def _work(leg: Leg) -> None:
    try:
        run(leg)
    except Crash:
        if leg.crash_after is None:
            raise


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    logging.disable(logging.WARNING)
    serve(do, lambda fields: sorted(Path(fields['out']).glob(f'{fields["name"]}.rank*.log')))


if __name__ == '__main__':
    main()
