"""Known datasets in the layout of their owners' distribution: how each becomes shards, by one call or one command.

1. `original`: an `Original` describes a dataset: its splits, its options, and the module that lists its records.
2. `splits`: converts the splits of one, each into a folder of its own; keeps those that an earlier call has finished.
3. `command`: the command line of one, with headrace's arguments and with MosaicML Streaming's.

The descriptions are in `headrace.vision.convert`, `headrace.text.convert` and `headrace.multimodal.convert`. A
description and its command line load no numpy, so that a help is quick.
"""

from headrace.originals.command import add_arguments, run
from headrace.originals.original import Option, Original, flag

__all__ = ['Option', 'Original', 'add_arguments', 'flag', 'run']
