"""Folders without an index, and the likely reason."""

from __future__ import annotations

import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.errors import EmptyDatasetError, ObjectNotFoundError


def folder_of(tmp_path, kind):
    folder = tmp_path / 'data'
    if kind != 'absent':
        folder.mkdir()
    for name in {'images': ['b.jpg', 'a.jpg', 'c.jpg', 'd.png'], 'shards': ['shard.00000.mds']}.get(kind, []):
        (folder / name).touch()
    if kind == 'link':
        folder.rmdir()
        folder.symlink_to('unmounted')
    if kind == 'split':
        for name in ('train', 'val'):
            with MDSWriter(out=str(folder / name), columns={'x': 'int'}) as writer:
                writer.write({'x': 1})
    return folder


IN_ITS_PLACE = {
    'absent': r'There is no folder .*data. Of its path, .* is there',
    'empty': 'The folder is empty',
    'link': 'data is a link to unmounted, which is not there. Mount its disk',
    'images': r'It holds a.jpg, b.jpg, c.jpg and 1 more, and no shards. `headrace convert` .* with an `MDSWriter`',
    'shards': 'its writer has not finished. Call `finish`',
    'split': "Its sub-folders train, val have one: set `split='train'`",
}


@pytest.mark.parametrize(('kind', 'message'), IN_ITS_PLACE.items(), ids=IN_ITS_PLACE.keys())
def test_a_folder_without_an_index(tmp_path, kind, message):
    folder = str(folder_of(tmp_path, kind))
    with pytest.raises(EmptyDatasetError, match=f'No `remote` provided, but local file .*{message}'):
        StreamingDataset(local=folder)
    with pytest.raises(ObjectNotFoundError, match=f'No such file or directory: .*{message}'):
        StreamingDataset(remote=folder, local=folder)
    with pytest.raises(ObjectNotFoundError, match=f'No such file or directory: .*{message}'):
        StreamingDataset(remote=folder, local=str(tmp_path / 'cache'))


def test_a_folder_that_is_being_written(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'x': 'int'}) as writer:
        writer.write({'x': 1})
        with pytest.raises(EmptyDatasetError, match='its writer has not finished'):
            StreamingDataset(local=str(tmp_path))
    assert StreamingDataset(local=str(tmp_path)).size == 1
