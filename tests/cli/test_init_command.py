"""``headrace init``: the questions, and that what it writes runs as it is."""

from __future__ import annotations

import importlib.util
import io
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from headrace import MDSWriter
from headrace.cli import main
from headrace.mixing import load_config
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore


def write_tokens(folder: Path) -> Path:
    with MDSWriter(out=str(folder), columns={'tokens': 'ndarray:uint16:16', 'id': 'int'}) as writer:
        for row in range(60):
            writer.write({'tokens': (np.arange(16) + row).astype(np.uint16) % 97, 'id': row})
    return folder


def write_images(folder: Path) -> Path:
    image = pytest.importorskip('PIL.Image')
    for number in range(24):
        kind = folder / ('dark', 'light')[number % 2]
        kind.mkdir(parents=True, exist_ok=True)
        image.new('RGB', (40 + number, 48), (number % 2 * 200 + 20,) * 3).save(kind / f'{number}.jpg')
    return folder


def write_rows(folder: Path) -> Path:
    with MDSWriter(out=str(folder), columns={'text': 'str', 'x': 'ndarray:float32:3'}) as writer:
        for row in range(40):
            writer.write({'text': f'row {row}', 'x': np.zeros(3, np.float32)})
    return folder


def init(data: Path | str, out: Path, *more: str) -> int:
    return main(['init', '--data', str(data), '--out', str(out), '--batch-size', '4', '--yes', *more])


def last_line(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(out / 'train.py'), run_name='__main__')
    return capsys.readouterr().out.splitlines()[-1]


quiet = pytest.mark.filterwarnings('ignore:.*(num_workers|does not have many workers|GPU|last).*')


@pytest.fixture(params=['pytorch', 'lightning'])
def framework(request: pytest.FixtureRequest) -> str:
    pytest.importorskip('torch' if request.param == 'pytorch' else request.param)
    return request.param


def shorten(out: Path) -> None:
    """Have the script train for 4 steps: so that tests take less time, and a second start has a rest to train."""
    script = out / 'train.py'
    text = script.read_text()
    assert '\nSTEPS = 100\n' in text
    script.write_text(text.replace('\nSTEPS = 100\n', '\nSTEPS = 4\n'))


def test_a_language_model_in_plain_pytorch_learns_and_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'out'
    assert init(write_tokens(tmp_path / 'data'), out) == 0
    shown = capsys.readouterr().out
    assert shown.startswith('Found mds with the columns id: int64, tokens: uint16 array of shape (16,).\n')
    assert shown.endswith(f'Next:\n  python {out / "train.py"}\n')
    runpy.run_path(str(out / 'train.py'), run_name='__main__')
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[-1]) for line in lines[:-1]]
    assert len(losses) == 10  # 100 steps over 15 batches: seven epochs
    assert losses[-1] < 0.5 * losses[0]
    assert lines[-1].startswith('Step 100 of 100 is done.')
    script = out / 'train.py'
    script.write_text(script.read_text().replace('STEPS = 100', 'STEPS = 110'))
    runpy.run_path(str(script), run_name='__main__')
    assert len(capsys.readouterr().out.splitlines()) == 2  # step 110, and the end


@quiet
def test_a_folder_of_images_trains_after_the_conversion_that_is_named(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'out'
    assert init(write_images(tmp_path / 'pictures'), out, '--framework', framework) == 0
    *_, convert, train = capsys.readouterr().out.splitlines()
    assert train == f'  python {out / "train.py"}'
    program, *arguments = convert.split()
    assert program == 'headrace'
    assert main(arguments) == 0
    shorten(out)
    assert last_line(out, capsys).startswith('Step 4 of 4 is done.')


@quiet
def test_other_columns_are_shown_and_the_model_has_a_place(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'out'
    assert init(write_rows(tmp_path / 'data'), out, '--framework', framework) == 0
    assert (out / 'train.py').read_text().count('# YOUR MODEL: ') == 2
    shorten(out)
    capsys.readouterr()
    runpy.run_path(str(out / 'train.py'), run_name='__main__')
    lines = capsys.readouterr().out.splitlines()
    assert lines.count('text: 4 values of type str') == 1
    assert lines.count('x: shape (4, 3), torch.float32') == 1
    assert lines[-1].startswith('Step 4 of 4 is done.')


def write_varying(folder: Path) -> Path:
    folder.mkdir()
    rows = (
        {'ids': [*range(row)], 'text': 'x' * row, 'meta': {'tags': ['a'] * (row % 3), 'n': None}} for row in range(24)
    )
    (folder / 'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    return folder


def write_arrays(folder: Path) -> Path:
    columns = {'tokens': 'ndarray:int32', 'audio': 'ndarray', 'length': 'int'}
    with MDSWriter(out=str(folder), columns=columns) as writer:
        for row in range(24):
            tokens, audio = np.arange(row + 1, dtype=np.int32), np.zeros((row % 3 + 1, row + 1), np.float32)
            writer.write({'tokens': tokens, 'audio': audio, 'length': row})
    return folder


def write_captioned(folder: Path) -> Path:
    image = pytest.importorskip('PIL.Image')
    with MDSWriter(out=str(folder), columns={'image': 'jpeg', 'label': 'int', 'boxes': 'json'}) as writer:
        for row in range(24):
            label = (-1, 40_000)[row % 2]
            writer.write({'image': image.new('L', (30 + row, 40)), 'label': label, 'boxes': [[0.5] * 4] * row})
    return folder


@quiet
@pytest.mark.parametrize('write', [write_varying, write_arrays, write_captioned])
def test_values_of_different_lengths_train(
    write: Any, framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'out'
    assert init(write(tmp_path / 'data'), out, '--framework', framework) == 0
    shorten(out)
    assert last_line(out, capsys).startswith('Step 4 of 4 is done.')


def test_pickled_objects_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'object': 'pkl'}) as writer:
        writer.write({'object': {1}})
    assert init(tmp_path / 'data', tmp_path / 'out') == 1
    assert "has pickled objects in column 'object', which run code" in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


@pytest.mark.slow
@pytest.mark.parametrize('write', [write_tokens, write_rows, write_varying])
def test_composer_trains(write: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('composer')
    out = tmp_path / 'out'
    assert init(write(tmp_path / 'data'), out, '--framework', 'composer') == 0
    shorten(out)
    assert last_line(out, capfd).startswith('Step 4 of 4 is done.')
    assert last_line(out, capfd).startswith('Step 4 of 4 is done.')  # from its checkpoint


def test_parquet_in_a_local_folder_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrow = pytest.importorskip('pyarrow')
    parquet = pytest.importorskip('pyarrow.parquet')
    data, out = tmp_path / 'data', tmp_path / 'out'
    data.mkdir()
    ids = arrow.FixedSizeListArray.from_arrays(np.arange(64, dtype=np.int32) * 5, 8)
    parquet.write_table(arrow.table({'input_ids': ids}), data / 'part.parquet')
    assert init(data, out) == 0
    assert "batch['input_ids']" in (out / 'train.py').read_text()
    shorten(out)
    assert last_line(out, capsys).startswith('Step 4 of 4 is done.')


def test_questions_are_asked_again_after_a_wrong_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / 'data')
    monkeypatch.chdir(tmp_path)
    answers = ['', 'nowhere', 'data', 'jax', 'Lightning', 'none', '8', 'out']
    monkeypatch.setattr('sys.stdin', io.StringIO('\n'.join(answers) + '\n'))
    assert main(['init']) == 0
    shown = capsys.readouterr().out
    assert shown.count('Where is the data') == 3
    assert shown.count('What trains: pytorch, lightning, composer? [pytorch] ') == 2
    assert "The framework is one of pytorch, lightning, composer, but is 'jax'." in shown
    assert shown.count('How many samples') == 2
    assert 'cache' not in shown  # the data are here
    config = yaml.safe_load((tmp_path / 'out' / 'config.yaml').read_text())
    assert config == {'global_batch_size': 8, 'train': {'local': str(tmp_path / 'data'), 'shuffle': True}}
    if importlib.util.find_spec('lightning'):
        assert 'L.LightningModule' in (tmp_path / 'out' / 'train.py').read_text()


def test_remote_data_have_a_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_tokens(tmp_path / 'data')
    register_store('init-command', lambda _url, _options: LocalStore(str(data)))
    monkeypatch.setattr('sys.stdin', io.StringIO('\n\n\n\n'))
    monkeypatch.chdir(tmp_path)
    assert main(['init', '--data', 'init-command://bucket']) == 0
    assert 'In which folder is the cache?' in capsys.readouterr().out
    config = load_config('config.yaml').train
    assert config is not None
    assert (config.remote, config.local) == ('init-command://bucket', str(tmp_path / 'cache'))
    assert config.global_batch_size == 32


@pytest.mark.parametrize('name', ['config.yaml', 'train.py'])
def test_nothing_is_overwritten(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / name).write_text('mine')
    assert init(write_rows(tmp_path / 'data'), tmp_path / 'out') == 1
    assert f'overwrites nothing, but {tmp_path / "out" / name} exists' in capsys.readouterr().err
    assert [path.read_text() for path in (tmp_path / 'out').iterdir()] == ['mine']


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--yes'], 'Add --data PLACE'),
        (['--yes', '--data', 'nowhere'], 'nowhere'),
        (['--yes', '--data', 'data', '--local', 'cache'], '--local is the cache of remote data'),
        ([], 'its input has ended'),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_rows(tmp_path / 'data')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('sys.stdin', io.StringIO(''))
    assert main(['init', *arguments]) == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ['data']


def test_init_as_json(tmp_path: Path, make_dataset: Any, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ['--data', str(make_dataset()), '--out', str(tmp_path / 'first'), '--yes']
    assert main(['init', *arguments, '--json']) == 0
    shown = capfd.readouterr()
    found = json.loads(shown.out)
    assert found['files'] == [str(tmp_path / 'first' / name) for name in ('config.yaml', 'train.py')]
    assert found['next'] == [f'python {tmp_path / "first" / "train.py"}']
    assert 'Found mds' in shown.err


@pytest.mark.parametrize('below', ['', 'sub'])
def test_an_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str) -> None:
    (tmp_path / 'taken').touch()
    assert init(write_rows(tmp_path / 'rows'), tmp_path / 'taken' / below) == 1
    assert f'{tmp_path}/taken is a file. Choose another path' in capsys.readouterr().err
