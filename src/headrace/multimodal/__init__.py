"""Known datasets of several media: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""
