"""A demo from real text through shards and two trainers to an elastic resume after a kill, with a proof.

1. ``corpora`` cuts text that every Python carries into byte rows and writes them as MDS shards.
2. ``run`` writes the mix as YAML, asks a plain loader for the order that it promises, and starts the rank programs.
3. ``train_lightning`` and ``train_composer`` are those programs; both train ``model`` and write ``records``.
4. ``processes`` starts each of them in its own process group, watches it, and kills it with SIGKILL.
5. ``proof`` compares the records with the promised order; ``report`` prints the table and draws the loss curves.
"""

from __future__ import annotations
