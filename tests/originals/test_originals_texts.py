"""The converters of C4, the Pile and English Wikipedia, on originals with their owners' layout."""

from __future__ import annotations

import bz2
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.originals.original import Original
from headrace.text.convert.c4 import ORIGINAL as C4
from headrace.text.convert.c4 import main as main_c4
from headrace.text.convert.enwiki import ORIGINAL as ENWIKI
from headrace.text.convert.pile import ORIGINAL as PILE
from tests.support.originals.originals_contract import (
    check_reports,
    check_stops_at_a_broken_member,
    check_workers_and_kills,
)
from tests.support.originals.text_originals import Made, make_c4, make_enwiki, make_pile, page_xml
from tests.support.sources.sources_to_convert import digests, rows_of

NAMES = ['c4', 'enwiki', 'pile']


ORIGINALS: dict[str, tuple[Original, Callable[..., Made]]] = {
    'c4': (C4, make_c4),
    'enwiki': (ENWIKI, make_enwiki),
    'pile': (PILE, make_pile),
}


@pytest.fixture(scope='module', params=NAMES)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Original, Path, Made]:
    if request.param == 'enwiki':
        pytest.importorskip('mwparserfromhell')
    described, make = ORIGINALS[request.param]
    root = tmp_path_factory.mktemp(request.param) / 'in'
    return described, root, make(root)


def test_all_good_records_are_converted_and_broken_ones_are_listed(
    original: tuple[Original, Path, Made], tmp_path: Path
) -> None:
    described, root, made = original
    reports = described.convert(root, tmp_path, size_limit=1 << 13, progress_bar=False)
    check_reports(tmp_path, reports, {split: len(rows) for split, rows in made.rows.items()}, made.broken)
    for split, rows in made.rows.items():
        assert rows_of(tmp_path / split) == rows


def test_any_number_of_workers_writes_the_same_and_a_killed_run_continues(
    original: tuple[Original, Path, Made], tmp_path: Path
) -> None:
    described, root, _ = original
    check_workers_and_kills(partial(described.convert, root, size_limit=1 << 12, progress_bar=False), tmp_path)


def test_a_broken_member_stops_a_conversion_that_is_told_to(
    original: tuple[Original, Path, Made], tmp_path: Path
) -> None:
    described, root, _ = original
    check_stops_at_a_broken_member(described, root, tmp_path / 'out')


def test_the_command_and_mosaicmls_arguments_do_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    made = make_c4(tmp_path / 'in', broken=False)
    (tmp_path / 'in' / 'en' / 'c4-train.00001-of-00003.json.gz').unlink()
    with caplog.at_level(logging.WARNING):
        assert main(['convert', 'c4', str(tmp_path / 'in'), str(tmp_path / 'a'), '--compression', 'zstd:7']) == 0
    assert 'has 3 files' in caplog.text
    assert 'train: Wrote 40 rows' in capsys.readouterr().out
    # MosaicML's script downloads C4; ours takes it as `--in_root`.
    arguments = ['--in_root', str(tmp_path / 'in'), '--out_root', str(tmp_path / 'b'), '--compression', 'zstd:7']
    assert main_c4([*arguments, '--progress_bar', '0', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['val']['rows'] == len(made.rows['val'])
    assert digests(tmp_path / 'a') == digests(tmp_path / 'b')


def test_originals_that_are_not_there_or_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / 'in').mkdir()
    for described in (C4, PILE):
        with pytest.raises(ObjectNotFoundError, match='holds no file'):
            described.convert(tmp_path / 'in', tmp_path / 'out')
    make_pile(tmp_path / 'in', broken=False)
    (tmp_path / 'in' / 'train' / '00.jsonl').write_text('{"text": "a", "meta": {"pile_set_name": "b"}}\n')
    with pytest.raises(ConfigError, match='packed or not'):
        PILE.convert(tmp_path / 'in', tmp_path / 'out', splits=['train'])
    made = make_c4(tmp_path / 'c4', broken=False)
    (tmp_path / 'c4' / 'en' / 'c4-validation.00000-of-00001.json').write_text('{}')
    with pytest.raises(ConfigError, match='some of them twice'):
        C4.convert(tmp_path / 'c4', tmp_path / 'out', splits=['val'])
    assert made.rows['val']
    assert not (tmp_path / 'out').exists()


@pytest.mark.usefixtures('parser')
@pytest.mark.parametrize('ending', ['.xml', '.xml.bz2', '.xml.gz'])
def test_a_dump_of_one_stream_is_read_as_a_whole(tmp_path: Path, ending: str) -> None:
    import gzip

    xml = '<mediawiki>\n' + ''.join(page_xml(i, f'Title {i}', f'Text {i}') for i in range(1, 30)) + '</mediawiki>\n'
    name = f'enwiki-20240101-pages-articles{ending}'
    # A parallel bzip2 cuts streams at any byte.
    streams = [bz2.compress(xml[i : i + 1500].encode()) for i in range(0, len(xml), 1500)]
    data = {'.xml': xml.encode(), '.xml.bz2': b''.join(streams), '.xml.gz': gzip.compress(xml.encode())}[ending]
    (tmp_path / name).write_bytes(data)
    (tmp_path / 'neighbour.txt').write_text('no dump')
    ENWIKI.convert(tmp_path / name, tmp_path.parent / f'out{ending}', progress_bar=False)
    rows = rows_of(tmp_path.parent / f'out{ending}')
    assert [(row['id'], row['title'], row['text']) for row in rows] == [
        (i, f'Title {i}', f'Text {i}') for i in range(1, 30)
    ]
