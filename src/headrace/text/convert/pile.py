"""The converter of the Pile: its description, and ``python -m headrace.text.convert.pile``."""

from headrace.originals.table import PILE as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
