"""The converter of CIFAR-10: its description, and ``python -m headrace.vision.convert.cifar10``."""

from headrace.originals.table import CIFAR10 as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
