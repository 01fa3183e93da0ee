"""MosaicML Streaming's orders, sample by sample."""
