"""Every file in configs/ loads, and builds on small local data in the place of its remotes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.mixing import Config, LoaderConfig, build_loader, load_config, to_yaml
from headrace.order import Topology

FOLDER = Path(__file__).parents[2] / 'configs'
FILES = sorted(FOLDER.glob('*.yaml'))


def sections(config: Config) -> dict[str, LoaderConfig]:
    """The loaders of a configuration, by the keys that they stand at."""
    found = {} if config.train is None else {'train': config.train}
    for section in ('eval', 'test', 'predict'):
        loaders: tuple[LoaderConfig, ...] = getattr(config, section)
        for loader in loaders:
            found[section if loader.name == section else f'{section}.{loader.name}'] = loader
    return found


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('HEADRACE_CACHE', 'HEADRACE_DEMO', 'HEADRACE_DEMO_WORKERS', 'PAPERS_ENDPOINT', 'RANK', 'WORLD_SIZE'):
        monkeypatch.delenv(name, raising=False)


def test_there_are_examples() -> None:
    names = {path.name for path in FILES}
    assert {
        'curriculum.yaml',
        'local.yaml',
        'mix.yaml',
        'eval.yaml',
        'demo.yaml',
        'base.yaml',
        'finetune.yaml',
    } <= names


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_an_example_loads_and_reads_back(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert sections(config)
    copy = tmp_path / 'copy.yaml'
    copy.write_text(to_yaml(config))
    assert load_config(copy) == config


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_an_example_is_explained(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith('# ')
    assert sum(line.lstrip().startswith('#') for line in lines) >= 4


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_an_example_builds_and_gives_batches(path: Path, tmp_path: Path, write_shards: Any) -> None:
    overrides: dict[str, Any] = {}
    for key, loader in sections(load_config(path)).items():
        places = [(key, loader)]
        if loader.streams:
            raw_list = key == 'eval.code'
            places = [
                (f'{key}.streams.{index if raw_list else stream.name}', stream)
                for index, stream in enumerate(loader.streams)
            ]
        for place, stream in places:
            folder = tmp_path / 'remote' / place
            write_shards(folder / (stream.split or ''), samples=40, hashes=['xxh64'])
            overrides[f'{place}.remote' if stream.remote else f'{place}.local'] = folder
            if stream.remote:
                overrides[f'{place}.local'] = tmp_path / 'local' / place
            if getattr(stream, 'choose', None):
                overrides[f'{place}.choose'] = 10
        if loader.epoch_size is not None:
            overrides[f'{key}.epoch_size'] = 1024
        # One process: the workers are the loader's business, and this machine may have no page-locked memory.
        overrides |= {f'{key}.loader.num_workers': 0, f'{key}.loader.pin_memory': False}

    for loader in sections(load_config(path, overrides=overrides)).values():
        built = build_loader(loader, topology=Topology(rank=0, world_size=2))
        assert built.dataset.num_samples == 40 * max(1, len(loader.streams))
        batch = next(iter(built), None)
        size = loader.device_batch_size or (loader.global_batch_size or 0) // 2
        if len(built):
            assert batch is not None
            assert 0 < len(batch['id']) <= size
