"""The converter of WebVid: its description, and ``python -m headrace.multimodal.convert.webvid.crawl_webvid``."""

from headrace.originals.table import WEBVID as ORIGINAL

main = ORIGINAL.main

if __name__ == '__main__':
    raise SystemExit(main())
