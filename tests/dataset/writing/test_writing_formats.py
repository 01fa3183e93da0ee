"""Writers of each format: their configuration, and what MosaicML Streaming reads of them."""

from __future__ import annotations

import json

from headrace import CSVWriter, JSONWriter, MDSWriter, XSVWriter
from tests.support.datasets.written import COLUMNS


def test_get_config(tmp_path):
    mds = MDSWriter(out=str(tmp_path / 'a'), columns={'b': 'int', 'a': 'str'}, size_limit='1kb')
    assert mds.get_config() == {
        'version': 2, 'format': 'mds', 'compression': None, 'hashes': [], 'size_limit': 1024,
        'column_names': ['a', 'b'], 'column_encodings': ['str', 'int'], 'column_sizes': [None, 8],
    }  # fmt: skip
    json_writer = JSONWriter(out=str(tmp_path / 'b'), columns=COLUMNS)
    assert json_writer.get_config()['columns'] == COLUMNS
    assert 'separator' not in CSVWriter(out=str(tmp_path / 'c'), columns=COLUMNS).get_config()
    assert XSVWriter(out=str(tmp_path / 'd'), columns=COLUMNS, separator='|').get_config()['separator'] == '|'


def test_what_we_write_mosaicml_streaming_reads(tmp_path, mosaicml_streaming):
    streaming = mosaicml_streaming
    columns = {'id': 'int', 'text': 'str', 'x': 'float32', 'v': 'ndarray', 'raw': 'bytes', 'j': 'json'}
    import numpy as np

    for compression in (None, 'zstd', 'gz', 'br', 'bz2', 'snappy'):
        folder = tmp_path / str(compression)
        with MDSWriter(
            out=str(folder), columns=columns, compression=compression, hashes=['sha1', 'xxh64'], size_limit=2000
        ) as writer:
            for i in range(40):
                writer.write({'id': i, 'text': 'ä' * i, 'x': np.float32(i), 'v': np.arange(i + 1), 'raw': b'\0' * i,
                              'j': {'i': i}})  # fmt: skip
        theirs = streaming.LocalDataset(local=str(folder)) if compression is None else streaming.StreamingDataset(
            remote=str(folder), local=str(tmp_path / f'{compression}-cache'), validate_hash='sha1', batch_size=1
        )  # fmt: skip
        for i in range(40):
            sample = theirs[i]
            assert (sample['id'], sample['text'], sample['x'], sample['raw'], sample['j']) == (
                i, 'ä' * i, i, b'\0' * i, {'i': i})  # fmt: skip
            assert np.array_equal(sample['v'], np.arange(i + 1))
    assert json.loads((tmp_path / 'zstd' / 'index.json').read_text())['version'] == 2
