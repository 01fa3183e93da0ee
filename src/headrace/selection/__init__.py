"""Which of its stored samples a stream offers; no torch.

1. `selection` reads `subset`, `fraction` and `where`, in Python or from a file, into values that say what they select.
2. `predicate` evaluates a `where` on the columns of a shard.
3. `bitmap_file` keeps the result, once per machine, and `costs` the cost of each sample: each as a `kept_file`.
4. `order.sample_map`, one layer below, finds the stored rows of the selected samples.
"""

from __future__ import annotations

from headrace.selection.predicate import Conditions, Mistake, Predicate, Where
from headrace.selection.selection import Fraction, Selection, Shards, Subset

__all__ = ['Conditions', 'Fraction', 'Mistake', 'Predicate', 'Selection', 'Shards', 'Subset', 'Where']
