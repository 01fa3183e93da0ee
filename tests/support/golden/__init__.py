"""Reference vectors of MosaicML Streaming, and the program that compares headrace with them."""
