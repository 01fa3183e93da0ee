"""The converter of English Wikipedia: its description, and ``python -m headrace.text.convert.enwiki``."""

from headrace.originals.table import ENWIKI as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
