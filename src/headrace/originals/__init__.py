"""Known datasets in the layout of their owners' distribution: how each becomes shards, by one call or one command.

1. `original`: an `Original` describes a dataset: its splits, its options, and the module that lists its records. Its
   command lines have headrace's arguments, and MosaicML Streaming's.
2. `splits`: converts the splits of one, each into a folder of its own; keeps those that an earlier call has finished.

The descriptions are in `headrace.vision.convert`, `headrace.text.convert` and `headrace.multimodal.convert`. A
description and its command line load no numpy, so that a help is quick.
"""

from headrace.originals.original import Option, Original, add_arguments, flag, run

__all__ = ['Option', 'Original', 'add_arguments', 'flag', 'run']
