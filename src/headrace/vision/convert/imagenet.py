"""The converter of ImageNet: its description, and ``python -m headrace.vision.convert.imagenet``."""

from headrace.originals.table import IMAGENET as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
