"""Known datasets: how the original of each becomes shards, by one call or one command, and the classes that read these.

1. `table`: the datasets, an `Original` (`original`) each: its splits, its options, and the function that lists its
   records. A description and its command line load no numpy, so that a help is quick.
2. `images`, `imagenet`, `cifar10`, `texts`, `enwiki`, `laion`, `webvid`: how the original of each is laid out and read.
   `members` reads files in folders and tars, and `downloads` those of other hosts.
3. `splits`: converts the splits of one, each into a folder of its own; keeps those that an earlier call has finished.
4. `image_datasets`, `text_datasets`, `media_datasets`: classes with MosaicML Streaming's names.

The public names are in `headrace.vision`, `headrace.text` and `headrace.multimodal`.
"""
