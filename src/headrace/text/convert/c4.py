"""The converter of C4: its description, and ``python -m headrace.text.convert.c4``."""

from headrace.originals.table import C4 as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
