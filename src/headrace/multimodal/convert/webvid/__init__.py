"""WebVid: `crawl_webvid` converts its table and videos; `extract_webvid_videos` moves the videos out of the shards."""
