"""The converter of ADE20K: its description, and ``python -m headrace.vision.convert.ade20k``."""

from headrace.originals.table import ADE20K as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
