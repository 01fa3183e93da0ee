"""LAION-400M from Parquet files with URLs, and its class."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headrace import StreamingDataLoader
from headrace.cli import main
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError, TransferError
from headrace.multimodal import StreamingLAION
from headrace.multimodal.convert.laion400m import ORIGINAL
from tests.support.originals.laion_originals import make_laion, of_laion, write
from tests.support.originals.originals_contract import check_workers_and_kills
from tests.support.servers.image_server import ImageServer, image_server, jpeg
from tests.support.sources.sources_to_convert import rows_of

pytest.importorskip('aiohttp')
pytest.importorskip('pyarrow')


SETTINGS: dict[str, Any] = {
    'user_agent': 'headrace-tests/1', 'private_hosts': True, 'per_host': 8, 'seconds': 60.0, 'progress_bar': False,
}  # fmt: skip


@pytest.fixture(scope='module')
def server() -> Iterator[ImageServer]:
    with image_server() as server:
        yield server


@pytest.fixture(scope='module')
def originals(server: ImageServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Two files, and the rows whose images can be had."""
    root = tmp_path_factory.mktemp('laion') / 'in'
    return root, make_laion(root, server, 100)


def test_images_are_downloaded_and_broken_links_are_listed(
    originals: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    root, good = originals
    report = ORIGINAL.convert(root, tmp_path / 'out', **SETTINGS)['']
    assert (report.rows, report.num_errors) == (94, 6)
    found = rows_of(tmp_path / 'out')
    assert [row['caption'] for row in found] == [row['TEXT'] for row in good]
    for row, source in zip(found, good, strict=True):
        assert row['jpg'] == jpeg(int(source['SAMPLE_ID']))
        assert (row['width'], row['height'], row['original_width'], row['status']) == (12, 9, 12, 'success')
        assert (row['url'], row['similarity'], row['nsfw']) == (
            source['URL'],
            source['similarity'],
            source['NSFW'] or '',
        )
    assert len({row['key'] for row in found}) == 94
    errors = {(error.input, error.error) for error in report.errors}
    for words in (
        'answered 404',
        'is no image',
        'redirected at most',
        'X-Robots-Tag',
        'ClientPayloadError',
        'The md5 of',
    ):
        assert sum(words in error for _, error in errors) == 1, errors
    assert any('part-00001' in place and 'row 39 (http' in place for place, _ in errors)
    assert main(['verify', str(tmp_path / 'out')]) == 0


def test_workers_and_restarts_write_the_same(
    originals: tuple[Path, list[dict[str, Any]]], tmp_path: Path, server: ImageServer
) -> None:
    asked: list[int] = []

    def convert(out: Path, **more: Any) -> Any:
        before = server.asked.total()
        reports = ORIGINAL.convert(originals[0], out, **SETTINGS, size_limit=5000, limit=2, **more)
        asked.append(server.asked.total() - before)
        return reports

    reports = check_workers_and_kills(convert, tmp_path, kills=[3 / 4])
    assert reports[''].tasks_done_before >= 1
    assert asked[-1] < asked[0]  # the first block is not asked for again


def test_images_are_made_smaller_if_asked(server: ImageServer, tmp_path: Path) -> None:
    write(tmp_path / 'in' / 'a.parquet', [of_laion(server, i) for i in range(3)])
    ORIGINAL.convert(tmp_path / 'in' / 'a.parquet', tmp_path / 'out', resize=4, **SETTINGS)
    row = rows_of(tmp_path / 'out')[0]
    assert (row['width'], row['height'], row['original_width'], row['original_height']) == (5, 4, 12, 9)
    assert Image.open(io.BytesIO(row['jpg'])).size == (5, 4)


def test_files_of_img2dataset_need_no_download(tmp_path: Path) -> None:
    rows = [
        {'url': f'http://a.org/{i}', 'caption': f'{i}', 'key': f'{i:09}', 'status': 'success', 'error_message': None,
         'jpg': jpeg(i), 'width': 12, 'height': 9, 'original_width': 120, 'original_height': 90, 'exif': '{"A": "b"}',
         'similarity': None, 'NSFW': None, 'LICENSE': None, 'md5': 'of the original'}
        for i in range(4)
    ]  # fmt: skip
    rows[2] |= {'jpg': None, 'status': 'failed_to_download', 'error_message': 'HTTP Error 404: Not Found'}
    write(tmp_path / 'in' / '00000.parquet', rows)
    report = ORIGINAL.convert(tmp_path / 'in', tmp_path / 'out', progress_bar=False)['']
    assert [error.error for error in report.errors] == ['DownloadError: HTTP Error 404: Not Found']
    found = rows_of(tmp_path / 'out')
    assert [(row['key'], row['original_width'], row['exif']) for row in found] == [
        (f'{i:09}', 120, '{"A": "b"}') for i in (0, 1, 3)
    ]
    assert np.isnan(found[0]['similarity'])


def test_a_network_that_is_down_stops_the_conversion(tmp_path: Path) -> None:
    rows = [{'URL': f'http://127.0.0.1:1/{i}', 'TEXT': ''} for i in range(70)]
    write(tmp_path / 'in' / 'a.parquet', rows, group=70)
    settings = {**SETTINGS, 'per_host': 70, 'connections': 70}
    with pytest.raises(TransferError, match='None of 70 requests in a row had an answer'):
        ORIGINAL.convert(tmp_path / 'in', tmp_path / 'out', **settings)
    assert not (tmp_path / 'out' / 'index.json').exists()


def test_what_is_not_laion_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'in').mkdir()
    with pytest.raises(ObjectNotFoundError, match='holds no Parquet file'):
        ORIGINAL.convert(tmp_path / 'in', tmp_path / 'out', **SETTINGS)
    write(tmp_path / 'in' / 'a.parquet', [{'URL': 'http://example.org'}])
    with pytest.raises(FormatError, match='has the columns URL and TEXT'):
        ORIGINAL.convert(tmp_path / 'in', tmp_path / 'out', **SETTINGS)
    write(tmp_path / 'in' / 'a.parquet', [{'URL': 'http://example.org', 'TEXT': ''}])
    with pytest.raises(ConfigError, match='`resize` is pixels'):
        ORIGINAL.convert(tmp_path / 'in', tmp_path / 'out', resize=0, **SETTINGS)
    assert main(['convert', 'laion400m', str(tmp_path / 'in'), str(tmp_path / 'out')]) == 1
    assert 'Give `--user-agent`' in capsys.readouterr().err
    (tmp_path / 'in' / 'b.parquet').write_bytes(b'PAR1')
    with pytest.raises(FormatError, match='is no Parquet file'):
        ORIGINAL.convert(tmp_path / 'in', tmp_path / 'out', **SETTINGS)


def test_the_class_gives_images_with_captions(server: ImageServer, tmp_path: Path) -> None:
    write(tmp_path / 'in' / 'a.parquet', [of_laion(server, i) for i in range(8)])
    ORIGINAL.convert(tmp_path / 'in', tmp_path / 'out', **SETTINGS)
    dataset = StreamingLAION(local=str(tmp_path / 'out'), batch_size=4)
    assert torch.equal(
        dataset[2]['image'], torch.from_numpy(np.asarray(Image.open(io.BytesIO(jpeg(2)))).transpose(2, 0, 1).copy())
    )
    batch = next(iter(StreamingDataLoader(dataset, batch_size=4)))
    assert batch['image'].shape == (4, 3, 9, 12)
    assert batch['caption'] == [f'caption {i}' for i in range(4)]
    assert StreamingLAION(local=str(tmp_path / 'out'), transform=lambda image: image.size)[0]['image'] == (12, 9)


def test_a_row_without_an_image_is_a_bad_sample(tmp_path: Path) -> None:
    from headrace import MDSWriter

    columns = {'jpg': 'bytes', 'url': 'str', 'error_message': 'str'}
    with MDSWriter(out=str(tmp_path), columns=columns) as writer:
        writer.write({'jpg': b'', 'url': 'http://example.org', 'error_message': 'HTTP Error 404'})
    with pytest.raises(
        FormatError, match=r'The image of http://example.org \(0 bytes\) cannot be decoded: HTTP Error 404'
    ):
        StreamingLAION(local=str(tmp_path))[0]
    assert json.loads((tmp_path / 'index.json').read_text())['shards'][0]['samples'] == 1
