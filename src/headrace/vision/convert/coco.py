"""The converter of COCO: its description, and ``python -m headrace.vision.convert.coco``."""

from headrace.originals.table import COCO as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
