"""Unchanged programs in processes of their own, and the same program on MosaicML Streaming itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace

PACKAGE = """
from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory


class Doubled(StreamingDataset):
    def __getitem__(self, at):
        return {'id': 2 * super().__getitem__(at)['id']}


def start():
    clean_stale_shared_memory()
"""

SCRIPT = """
import json
import subprocess
import sys

import installed
from streaming import StreamingDataLoader
from torch.utils.data import DataLoader

if __name__ == '__main__':
    installed.start()
    folder = sys.argv[1]
    found = {'argv': sys.argv, 'file': __file__, 'class': installed.StreamingDataset.__module__}
    for kind, start in (DataLoader, 'spawn'), (StreamingDataLoader, 'fork'):
        dataset = installed.Doubled(local=folder, batch_size=4)
        loader = kind(dataset, batch_size=4, num_workers=1, multiprocessing_context=start)
        found[kind.__name__] = [batch['id'].tolist() for batch in loader]
    other = [sys.executable, '-c', 'import streaming; print(streaming.StreamingDataset.__module__)']
    found['child'] = subprocess.run(other, capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps(found))
    sys.exit(7)
"""

# The same text runs on both packages.
ORDERS = """
import json, sys
from streaming import Stream, StreamingDataset
from torch.utils.data import DataLoader

folder, found = sys.argv[1], {}
for name, arguments in {
    'py1e': dict(shuffle=True, shuffle_algo='py1e'),
    'py2s': dict(shuffle=True, shuffle_algo='py2s', num_canonical_nodes=2, shuffle_seed=17),
    'weights': dict(shuffle=True, shuffle_algo='py1br', shuffle_block_size=50, epoch_size=60),
}.items():
    streams = [Stream(local=f'{folder}/{part}', **({'proportion': share} if name == 'weights' else {}))
               for part, share in (('a', 0.3), ('b', 0.7))]
    dataset = StreamingDataset(streams=streams, batch_size=4, **{'num_canonical_nodes': 1, **arguments})
    loader = DataLoader(dataset, batch_size=4)
    found[name] = [[batch['id'].tolist() for batch in loader] for _ in range(2)]
    found[f'{name} sizes'] = [dataset.size, len(dataset), dataset.epoch_size, dataset.num_shards, dataset.length,
        dataset.samples_per_shard.tolist(), dataset.sample_offset_per_shard.tolist(), dataset.stream_per_shard.tolist(),
        dataset.samples_per_stream.tolist(), dataset.shards_per_stream.tolist(), dataset.next_epoch,
        [int(s.choose) for s in dataset.streams], [list(map(int, dataset.spanner[i])) for i in (0, 30, 71)],
        [array.tolist() for array in dataset.resample_streams(1)]]
print(json.dumps(found))
"""

# A job, and what takes it over: without a state it trains five batches first.
TAKEOVER = """
import json, sys
from streaming import StreamingDataLoader, StreamingDataset

state = json.loads(sys.argv[2])
dataset = StreamingDataset(local=f'{sys.argv[1]}/b', batch_size=4, shuffle=True)
loader = StreamingDataLoader(dataset, batch_size=4)
if state is not None:
    loader.load_state_dict(state)
batches = iter(loader)
if state is None:
    begun = [next(batches) for _ in range(5)]
    state = loader.state_dict()
print(json.dumps([state, [batch['id'].tolist() for batch in batches], [batch['id'].tolist() for batch in loader]]))
"""

# Public names of MosaicML Streaming: of its modules, and of the classes that programs use.
NAMES = """
import importlib, inspect, json, pkgutil, sys, typing, warnings
import streaming

warnings.simplefilter('ignore')
modules, members = {}, {}
for module in ['streaming'] + [m.name for m in pkgutil.walk_packages(streaming.__path__, 'streaming.')]:
    if '.convert.' in f'{module}.':
        continue
    found = importlib.import_module(module)
    own = [n for n, o in vars(found).items() if getattr(o, '__module__', None) == module and callable(o)]
    names = {*getattr(found, '__all__', []), *own} - {n for n in own if isinstance(getattr(found, n), typing.TypeVar)}
    modules[module] = sorted(n for n in names if not n.startswith('_') and not inspect.ismodule(getattr(found, n)))
for name in ('StreamingDataset', 'StreamingDataLoader', 'Stream', 'LocalDataset', 'MDSWriter'):
    cls = getattr(streaming, name)
    members[name] = sorted({n for base in cls.__mro__ if base.__module__.startswith('streaming')
                            for n in vars(base) if not n.startswith('_')})
print(json.dumps([modules, members]))
"""


def run(*command: str, folder: Path, path: str = '') -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, [path, str(source())]))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


def source() -> Path:
    return Path(headrace.__file__).parents[1]


@pytest.fixture
def two_streams(tmp_path: Path, make_dataset_in: Any) -> Path:
    make_dataset_in(tmp_path / 'data', 'a', 25)
    make_dataset_in(tmp_path / 'data', 'b', 47, first=100)
    return tmp_path / 'data'


def test_a_script_and_an_installed_package_run_unchanged(two_streams: Path, tmp_path: Path) -> None:
    (tmp_path / 'site').mkdir()
    (tmp_path / 'site' / 'installed.py').write_text(PACKAGE)
    (tmp_path / 'job').mkdir()
    (tmp_path / 'job' / 'train.py').write_text(SCRIPT)
    script = str(tmp_path / 'job' / 'train.py')
    arguments = [str(two_streams / 'a'), '--lr', '0.1', '-m', '--help']

    done = run(
        sys.executable, '-m', 'headrace.compat', script, *arguments, folder=tmp_path, path=str(tmp_path / 'site')
    )

    assert done.returncode == 7, done.stderr
    found = json.loads(done.stdout)
    assert found['argv'] == [script, *arguments]
    assert found['file'] == script
    assert found['class'] == found['child'] == 'headrace.dataset.dataset'
    assert sum(found['DataLoader'], []) == sum(found['StreamingDataLoader'], []) == list(range(0, 50, 2))


def test_a_module_runs_and_errors_show_its_line(tmp_path: Path) -> None:
    (tmp_path / 'job.py').write_text('import sys\nfrom streaming import Stream\nprint(sys.argv[1:])\nStream()\n')

    done = run(sys.executable, '-m', 'headrace.cli', 'run', '-m', 'job', '--x', folder=tmp_path)

    assert done.returncode == 1
    assert done.stdout == "['--x']\n"
    assert 'job.py", line 4' in done.stderr
    assert 'StreamError: A stream needs' in done.stderr


def test_the_command_of_an_installed_package_runs(tmp_path: Path) -> None:
    (tmp_path / 'train-all').mkdir()  # as in a checkout of LLM Foundry, whose package has its command's name
    text = 'import sys, streaming\ndef main():\n    print(streaming.__doc__, sys.argv[1:])\n    return 3\n'
    (tmp_path / 'trainer.py').write_text(text)
    (tmp_path / 'trainer-1.0.dist-info').mkdir()
    (tmp_path / 'trainer-1.0.dist-info' / 'METADATA').write_text('Metadata-Version: 2.1\nName: trainer\nVersion: 1.0\n')
    (tmp_path / 'trainer-1.0.dist-info' / 'entry_points.txt').write_text(
        '[console_scripts]\ntrain-all = trainer:main\n'
    )
    command = [sys.executable, '-m', 'headrace.cli', 'run']

    done = run(*command, 'train-all', 'job.yaml', '--lr', '1', folder=tmp_path, path=str(tmp_path))
    other = run(*command, 'train-some', folder=tmp_path, path=str(tmp_path))

    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith('headrace in the place of `streaming`')
    assert done.stdout.endswith("['job.yaml', '--lr', '1']\n")
    assert other.returncode != 0
    assert "but got 'train-some'" in other.stderr


def test_orders_takeover_and_names_are_those_of_mosaicml_streaming(
    two_streams: Path,
    tmp_path: Path,
    mosaicml_streaming_lock: None,
    alias: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / 'both.py').write_text(ORDERS + TAKEOVER + NAMES)
    done = subprocess.run(
        [sys.executable, tmp_path / 'both.py', two_streams, 'null'], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    order, job, names = done.stdout.splitlines()

    monkeypatch.setattr(sys, 'argv', ['both.py', str(two_streams)])
    exec(ORDERS, {})
    assert json.loads(capsys.readouterr().out) == json.loads(order)

    state, *rest = json.loads(job)
    monkeypatch.setattr(sys, 'argv', ['both.py', str(two_streams), json.dumps(state)])
    exec(TAKEOVER, {})
    assert json.loads(capsys.readouterr().out)[1:] == rest
    assert [len(batches) for batches in rest] == [7, 12]

    from headrace.compat.tables import MEMBERS, TABLES

    modules, members = json.loads(names)
    assert {module: sorted(set(found) - set(TABLES.get(module, {}))) for module, found in modules.items()} == {
        module: [] for module in modules
    }
    assert {cls: sorted(set(found) - set(MEMBERS[cls])) for cls, found in members.items()} == {c: [] for c in members}
