"""The converter of LAION-400M: its description, and ``python -m headrace.multimodal.convert.laion400m``."""

from headrace.originals.table import LAION400M as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
