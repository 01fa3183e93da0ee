"""The marker in a cache folder, which names its remote."""

from __future__ import annotations

import os

from tests.support.stores.shards import fetch_index, make_remote


def test_the_marker_is_read_through_no_link(tmp_path, elsewhere):
    remote = make_remote(tmp_path / 'remote')
    (remote.folder / 'index.json').write_text('{}')
    for planted in ('link', 'pipe'):
        folder = tmp_path / planted
        folder.mkdir()
        (folder / 'index.json').write_text('{}')
        if planted == 'link':
            (folder / '.headrace-remote').symlink_to(elsewhere / 'thesis.tex')
        else:
            os.mkfifo(folder / '.headrace-remote')
        fetch_index(folder, remote.store)  # and the text of the thesis is in no message
