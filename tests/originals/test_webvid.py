"""WebVid: its table with videos becomes shards, with the videos inside or outside, and gives frames."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader
from headrace.cli import main
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError
from headrace.multimodal import (
    StreamingInsideWebVid,
    StreamingOutsideDTWebVid,
    StreamingOutsideGIWebVid,
    decode_frames,
)
from headrace.multimodal.convert.webvid.crawl_webvid import ORIGINAL as WEBVID
from headrace.multimodal.convert.webvid.extract_webvid_videos import main as extract
from tests.support.originals.originals_contract import check_workers_and_kills, visible
from tests.support.programs.killed_children import in_a_child
from tests.support.programs.waiting import until
from tests.support.sources.sources_to_convert import digests, rows_of

pytest.importorskip('av')
from tests.support.originals.webvid_originals import make_webvid, video


@pytest.fixture(scope='module')
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[str]]:
    root = tmp_path_factory.mktemp('webvid')
    rows, names = make_webvid(root)
    return root / 'results_2M_train.csv', rows, names


@pytest.fixture(scope='module')
def inside(original: tuple[Path, int, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('inside')
    WEBVID.convert(original[0], out / 'mds', size_limit=1 << 12, progress_bar=False)
    return out / 'mds'


@pytest.fixture(scope='module')
def outside(original: tuple[Path, int, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('outside')
    WEBVID.convert(original[0], out / 'mds', inside=False, out_mp4=str(out / 'mp4'), progress_bar=False)
    return out


def test_good_videos_are_kept_and_broken_ones_are_named(original: tuple[Path, int, list[str]], inside: Path) -> None:
    _, count, names = original
    rows = rows_of(inside)
    errors = [json.loads(line) for line in (inside / 'errors.jsonl').read_text().splitlines()]

    assert len(rows) == count
    assert sorted(error['input'] for error in errors) == names
    assert rows[3] == {
        'videoid': '1003',
        'name': 'A "calm" river, number 3',
        'page_idx': '',
        'page_dir': '000000_000001',
        'duration': 63,
        'contentUrl': 'https://example.org/1003.mp4',
        'content': video(0),
    }
    assert main(['verify', str(inside)]) == 0


@pytest.mark.parametrize('is_inside', [True, False])
def test_any_number_of_workers_gives_the_same_files_and_a_killed_conversion_continues(
    original: tuple[Path, int, list[str]], tmp_path: Path, is_inside: bool
) -> None:
    def convert(out: Path, **more: Any) -> Any:
        settings = {'inside': is_inside, 'out_mp4': str(out / 'mp4'), 'size_limit': 1 << 12}
        return WEBVID.convert(original[0], out / 'mds', progress_bar=False, **settings, **more)

    def files(out: Path) -> dict[str, str]:
        # Each has a target of its own for the videos.
        return {name: digest for name, digest in visible(out).items() if 'original.json' not in name}

    check_workers_and_kills(convert, tmp_path, files=files, kills=[1 / 2])


def test_videos_can_go_below_the_shards(original: tuple[Path, int, list[str]], tmp_path: Path) -> None:
    out = tmp_path / 'out'
    settings = {'inside': False, 'out_mp4': str(out / 'mp4'), 'progress_bar': False}
    status, _ = in_a_child(lambda: WEBVID.convert(original[0], out, **settings), 20, str(tmp_path))
    assert status == 9
    assert not (out / 'index.json').exists()
    for exist_ok in (False, True):
        (report,) = WEBVID.convert(original[0], out, exist_ok=exist_ok, **settings).values()
        assert report.rows == original[1] == len(list((out / 'mp4').rglob('*.mp4')))


def test_videos_can_stay_where_they_are(original: tuple[Path, int, list[str]], tmp_path: Path) -> None:
    table, count, _ = original
    arguments = ['--inside', '0', '--limit', str(count)]
    assert main(['convert', 'webvid', str(table), str(tmp_path / 'out'), *arguments]) == 0
    rows = rows_of(tmp_path / 'out')
    assert rows[11]['content_path'] == '000002_000003/1011.mp4'
    found = StreamingOutsideGIWebVid(local=str(tmp_path / 'out'), extra_local=str(table.parent / 'videos'))[11]
    assert found['content'] == video(11 % 3)


def test_mosaicmls_program_moves_videos_out_of_shards(inside: Path, tmp_path: Path) -> None:
    out = ['--out_mds', str(tmp_path / 'mds'), '--out_mp4', str(tmp_path / 'mp4'), '--progress_bar', '0']
    assert extract(['--in', str(inside), *out]) == 0
    rows = rows_of(tmp_path / 'mds')
    assert [row['content_path'] for row in rows] == [f'000/{number:03}.mp4' for number in range(12)]
    assert (tmp_path / 'mp4' / '000' / '004.mp4').read_bytes() == video(1)


def test_a_changed_dataset_is_read_anew(tmp_path: Path) -> None:
    columns = {'videoid': 'str', 'duration': 'int', 'content': 'bytes'}
    for number in range(2):
        with MDSWriter(out=str(tmp_path / 'in'), columns=columns, exist_ok=True) as writer:
            writer.write({'videoid': f'{number}' * (1 + number), 'duration': 1, 'content': video(number)})
        # The time of a change may be coarse.
        os.utime(tmp_path / 'in' / 'index.json', (1 + number, 1 + number))
        out = ['--out_mds', str(tmp_path / f'out{number}'), '--out_mp4', str(tmp_path / f'mp4{number}')]
        assert extract(['--in', str(tmp_path / 'in'), *out, '--progress_bar', '0']) == 0
        assert [row['videoid'] for row in rows_of(tmp_path / f'out{number}')] == [f'{number}' * (1 + number)]


def test_frames_are_spread_over_the_video(inside: Path) -> None:
    frames = decode_frames(video(5), 3)
    assert (frames.shape, frames.dtype) == ((3, 16, 32, 3), np.uint8)
    # The middles of three parts of six frames.
    np.testing.assert_allclose(frames.mean((1, 2, 3)), [25, 65, 105], atol=4)
    assert decode_frames(video(5), 9, size=(8, 8)).shape == (9, 8, 8, 3)
    with pytest.raises(FormatError, match='A video must be whole'):
        decode_frames(video(5)[:-200], 3)

    dataset = StreamingInsideWebVid(local=str(inside), batch_size=4, frames=2, frame_size=(8, 12))
    batch = next(iter(StreamingDataLoader(dataset, batch_size=4)))
    assert tuple(batch['frames'].shape) == (4, 2, 8, 12, 3)
    assert 'content' not in batch
    for numbers in ({'frames': 0}, {'frame_size': (8, 8)}, {'frames': 2, 'frame_size': (8,)}):
        with pytest.raises(ConfigError, match='`frames` is 1 or more'):
            StreamingInsideWebVid(local=str(inside), batch_size=4, **numbers)


@pytest.mark.parametrize('workers', [0, 2])
def test_videos_outside_are_fetched_once_and_stay(outside: Path, tmp_path: Path, workers: int) -> None:
    dataset = StreamingOutsideDTWebVid(
        local=str(outside / 'mds'),
        batch_size=3,
        extra_local=str(tmp_path / 'videos'),
        extra_remote=f'file://{outside}/mp4',
    )
    loader = StreamingDataLoader(dataset, batch_size=3, num_workers=workers)
    for _ in range(2):
        found = {
            row: content for batch in loader for row, content in zip(batch['videoid'], batch['content'], strict=True)
        }
        assert found == {f'{1000 + number}': video(number % 3) for number in range(12)}
    assert digests(tmp_path / 'videos') == digests(outside / 'mp4')
    # They are read from where they stay.
    (next(iter((tmp_path / 'videos').rglob('*.mp4')))).write_bytes(b'other')
    assert b'other' in {sample['content'] for sample in dataset[:]}  # type: ignore[union-attr]


def test_the_next_batch_is_fetched_before_it_is_read(outside: Path, tmp_path: Path) -> None:
    arguments = {'local': str(outside / 'mds'), 'batch_size': 3, 'extra_remote': str(outside / 'mp4')}
    ahead = StreamingOutsideDTWebVid(**arguments, extra_local=str(tmp_path / 'ahead'))
    batches = iter(StreamingDataLoader(ahead, batch_size=3))
    next(batches)
    until(lambda: len(list((tmp_path / 'ahead').rglob('*.mp4'))) == 6)
    when_read = StreamingOutsideGIWebVid(**arguments, extra_local=str(tmp_path / 'when_read'))
    batches = iter(StreamingDataLoader(when_read, batch_size=3))
    next(batches)
    assert len(list((tmp_path / 'when_read').rglob('*.mp4'))) == 3


def test_a_missing_video_is_an_error_of_its_sample(outside: Path, tmp_path: Path) -> None:
    arguments = {'local': str(outside / 'mds'), 'batch_size': 3}
    for kind in (StreamingOutsideGIWebVid, StreamingOutsideDTWebVid):
        dataset = kind(**arguments, extra_local=str(tmp_path), extra_remote=str(tmp_path / 'nothing'))
        with pytest.raises(ObjectNotFoundError):
            next(iter(StreamingDataLoader(dataset, batch_size=3)))
    # Without a place for them there are no videos.
    assert 'content' not in StreamingOutsideGIWebVid(**arguments)[0]


def test_tables_that_cannot_be_right_are_refused(original: tuple[Path, int, list[str]], tmp_path: Path) -> None:
    (tmp_path / 'table.csv').write_text('videoid,url\n1,2\n')
    (tmp_path / 'videos').mkdir()
    with pytest.raises(FormatError, match="WebVid's table has the columns"):
        WEBVID.convert(tmp_path / 'table.csv', tmp_path / 'out')
    with pytest.raises(ObjectNotFoundError, match='Give its path'):
        WEBVID.convert(tmp_path / 'videos', tmp_path / 'out')
    with pytest.raises(ObjectNotFoundError, match='Pass `videos`'):
        WEBVID.convert(original[0], tmp_path / 'out', videos=str(tmp_path / 'none'))
    assert not (tmp_path / 'out').exists()
