"""Files of an unfinished conversion, with which a restart continues."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import ConfigError, ConversionError
from tests.support.sources.converted import KILL, convert
from tests.support.sources.sources_to_convert import make_images, rows_of


def fail_once(number: int) -> dict[str, int]:
    if number == KILL.get('fail'):
        raise ValueError('not now')
    return {'n': number}


@pytest.mark.parametrize('kind', ['function', 'iterable'])
def test_what_was_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def run() -> object:
        samples = map(fail_once, range(300))
        if kind == 'iterable':
            return convert(samples, tmp_path / 'out', size_limit=400)
        return convert(range(300), tmp_path / 'out', function=fail_once)

    monkeypatch.setitem(KILL, 'fail', 250)
    with pytest.raises(ConversionError, match=r'ValueError: not now'):
        run()
    assert not (tmp_path / 'out' / 'index.json').exists()
    monkeypatch.delitem(KILL, 'fail')
    report = run()

    assert report.tasks_done_before > 4
    assert [row['n'] for row in rows_of(tmp_path / 'out')] == list(range(300))


def test_other_settings_or_inputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path / 'data', {'a': 4, 'b': 5})
    bad = tmp_path / 'data' / 'b' / 'zz.jpg'
    bad.write_bytes(b'')
    run = partial(convert, tmp_path / 'data', tmp_path / 'out', size_limit=1500)
    with pytest.raises(ConversionError, match=r'b/zz\.jpg cannot be converted'):
        run()
    with pytest.raises(ConfigError, match=r'with size_limit 1500, and got 2000'):
        run(size_limit=2000)
    with pytest.raises(ConfigError, match=r'with compression null, and got "zstd"'):
        run(compression='zstd')
    with pytest.raises(ConfigError, match=r'with columns .*"label".* and got \{\}'):
        run(columns=['image'])
    bad.unlink()
    with pytest.raises(ConfigError, match=r'with inputs .*data"\}, and got .*other'):
        shutil.copytree(tmp_path / 'data', tmp_path / 'other')
        convert(tmp_path / 'other', tmp_path / 'out', size_limit=1500)
    assert convert(tmp_path / 'other', tmp_path / 'out', exist_ok=True, on_error='skip').rows == 9
