"""Known datasets of text: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""
