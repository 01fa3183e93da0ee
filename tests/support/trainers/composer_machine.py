"""Import this, and Composer's trainers ask only once in this process what they note of the machine in checkpoints.

They ask for the processor with a program of 0.4 CPU seconds, in each rank, and for the version of Composer in all that
is installed, with each checkpoint.
"""

from __future__ import annotations

import functools

from composer.utils import collect_env

collect_env.get_cpu_model = lambda: 'CPU'
collect_env.get_composer_commit_hash = functools.cache(collect_env.get_composer_commit_hash)
