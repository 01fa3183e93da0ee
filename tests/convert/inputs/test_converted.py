"""An append takes the files of a source that are new, and notes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.convert import erase, kept_indexes, rollback
from headrace.errors import ConfigError
from tests.support.programs.killed_children import in_a_child
from tests.support.sources.converted import convert
from tests.support.sources.sources_to_convert import digests, make_images, rows_of


def lines(path: Path, ids: range) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(''.join(f'{{"n": {i}}}\n' for i in ids))
    return path


def numbers(out: Path) -> list[int]:
    return [row['n'] for row in rows_of(out)]


@pytest.mark.parametrize('workers', [1, 2])
def test_an_append_takes_the_files_that_are_new(tmp_path: Path, workers: int) -> None:
    source, out = tmp_path / 'in', tmp_path / 'out'
    for night in range(3):
        lines(source / f'{night}.jsonl', range(night * 10, night * 10 + 10))
        report = convert(source, out, append=True, workers=workers)
        assert (report.rows, report.inputs_there) == (10, night)
    assert numbers(out) == list(range(30))
    before = digests(out)
    report = convert(source, out, append=True)
    assert (report.rows, report.inputs_there, report.rows_before) == (0, 3, 30)
    assert digests(out) == before
    lines(source / '00.jsonl', range(100, 105))  # sorted before files that are there
    convert(source, out, append=True)
    convert(lines(tmp_path / 'other' / '0.jsonl', range(200, 203)), out, append=True)
    assert numbers(out) == [*range(30), *range(100, 105), *range(200, 203)]
    assert convert(source, out, append='all').rows == 35


def test_an_append_of_images_takes_those_that_are_new(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 3, 'b': 2})
    convert(tmp_path / 'data', tmp_path / 'out')
    (tmp_path / 'data/a/0-new.jpg').write_bytes((tmp_path / 'data/a/0-0.jpg').read_bytes())
    report = convert(tmp_path / 'data', tmp_path / 'out', append=True)
    assert (report.rows, report.inputs_there) == (1, 5)
    assert [row['label'] for row in rows_of(tmp_path / 'out')] == [0, 0, 0, 1, 1, 0]


def test_an_append_refuses_files_that_have_changed(tmp_path: Path) -> None:
    source, out = tmp_path / 'in', tmp_path / 'out'
    lines(source / '0.jsonl', range(10))
    convert(source, out)
    lines(source / '0.jsonl', range(15))
    before = digests(out)
    with pytest.raises(ConfigError, match=r"0\.jsonl has changed since .*append='all'` \(--all\)"):
        convert(source, out, append=True)
    assert digests(out) == before
    convert(source, out, append='all')
    assert convert(source, out, append=True).inputs_there == 1
    assert numbers(out) == [*range(10), *range(15)]


def test_an_append_to_a_dataset_that_does_not_say_its_files_is_refused(tmp_path: Path) -> None:
    out = tmp_path / 'out'
    convert([{'n': -1}], out)
    with pytest.raises(ConfigError, match='Give a source that holds the new files only'):
        convert(lines(tmp_path / 'in' / '0.jsonl', range(5)), out, append=True)
    convert(tmp_path / 'in' / '0.jsonl', out, append='all')
    lines(tmp_path / 'in' / '1.jsonl', range(5, 8))
    assert convert(tmp_path / 'in', out, append=True).inputs_there == 1
    assert numbers(out) == [-1, *range(8)]


def test_an_append_takes_files_again_whose_shards_were_removed(tmp_path: Path) -> None:
    source, out = tmp_path / 'in', tmp_path / 'out'
    convert(lines(source / '0.jsonl', range(10)), out)
    there = set(out.iterdir())
    convert(lines(source / '1.jsonl', range(10, 20)), out, append=True)
    rollback(out, kept_indexes(out)[0].name)
    for path in set(out.glob('shard.*')) - there:
        path.unlink()
    convert(lines(source / '2.jsonl', range(20, 25)), out, append=True)  # its shards have the names of those
    assert convert(source, out, append=True).rows == 10
    assert numbers(out) == [*range(10), *range(20, 25), *range(10, 20)]


def test_an_append_after_a_rollback_or_an_erasure(tmp_path: Path) -> None:
    source, out = tmp_path / 'in', tmp_path / 'out'
    for night in range(2):
        lines(source / f'{night}.jsonl', range(night * 10, night * 10 + 10))
        convert(source, out, append=True)
    rollback(out, kept_indexes(out)[0].name)
    assert numbers(out) == list(range(10))
    assert convert(source, out, append=True).inputs_there == 1
    for erased in ([3, 15], [4]):
        assert erase(out, erased, column='n').samples
        assert convert(source, out, append=True).rows == 0
    assert main(['verify', str(out)]) == 0


def test_a_killed_append_of_a_source_that_grows_on(tmp_path: Path) -> None:
    source = tmp_path / 'in'
    lines(source / '0.jsonl', range(10))
    convert(source, tmp_path / 'before')
    lines(source / '1.jsonl', range(10, 20))

    def begun(name: str) -> Path:
        shutil.copytree(tmp_path / 'before', tmp_path / 'outs' / name)
        return tmp_path / 'outs' / name

    whole = begun('whole')
    _, steps = in_a_child(lambda: convert(source, whole, append=True), 0, str(tmp_path / 'outs'))
    for step in range(2, steps + 1, max(1, steps // 10)):
        out, more = begun(str(step)), source / '2.jsonl'
        in_a_child(lambda out=out: convert(source, out, append=True), step, str(tmp_path / 'outs'))
        lines(more, range(20, 25))
        for _ in range(2):  # the first may only remove what the killed one had left
            convert(source, out, append=True)
        assert numbers(out) == list(range(25)), step
        more.unlink()


def test_all_belongs_to_append(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = str(lines(tmp_path / 'in' / '0.jsonl', range(5)).parent), tmp_path / 'out'
    assert main(['convert', source, str(out), '--all']) == 1
    assert 'Pass `--append`, too' in capsys.readouterr().err
    for options in ([], ['--append'], ['--append', '--all']):
        assert main(['convert', source, str(out), *options]) == 0
    assert f'{out} has 1 input of the source already; --all would add' in capsys.readouterr().out
    assert numbers(out) == [*range(5), *range(5)]
