"""The converter of WebVid whose videos move out of the shards: its description, and its program."""

from headrace.originals.table import WEBVID_OUTSIDE as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
