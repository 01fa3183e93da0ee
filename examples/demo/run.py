"""The demo from end to end: shards, their promised order, the trainings, the proof. It reports each step."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from examples.demo.assignment import newest_checkpoint
from examples.demo.launch import Launcher
from examples.demo.progress import Bar
from examples.demo.proof import Promise, check_mix, prove
from examples.demo.report import Training, draw_curves, table
from examples.demo.settings import Settings
from examples.demo.shards import opened_store, write_shards
from headrace.errors import ConfigError, MissingDependencyError
from headrace.mixing import build_loader, load_config
from headrace.order import Topology

__all__ = ['FRAMEWORKS', 'MIX', 'run_demo']

FRAMEWORKS = ('lightning', 'composer')
MIX = Path(__file__).parents[2] / 'configs' / 'demo.yaml'

_MARK = '.headrace-demo'
"""A file that marks a folder as a demo's output, which the next demo may replace."""


def run_demo(
    out: Path, *, store: str = 'local', frameworks: Sequence[str] = FRAMEWORKS, settings: Settings | None = None
) -> list[Training]:
    """Run the demo and write everything under ``out``; returns the trainings of each framework, with their proof.

    Args:
        out: A new or empty folder, or that of an earlier demo, which is replaced.
        store: 'local' for shards in a folder, 's3' for shards on an S3 server on the loopback.
        frameworks: 'lightning', 'composer', or both.
        settings: The sizes; the defaults fit two cores and four minutes.

    Raises:
        ConfigError: If ``out`` holds anything else.
        MissingDependencyError: If a framework is not installed.
    """
    settings = settings or Settings()
    start = time.monotonic()
    _require(frameworks)
    out = _claim(out)
    with (
        opened_store(store, out) as url,
        # A killed process leaves its temporary files behind.
        tempfile.TemporaryDirectory(prefix='headrace-demo-', ignore_cleanup_errors=True) as temporary,
    ):
        _say('Text to shards')
        write_shards(url, settings)
        demo = _Demo(out=out, url=url, temporary=Path(temporary), settings=settings)
        _say('A mix of them')
        demo.write_mix()
        promise = demo.promise()
        trainings = [demo.train(framework, promise) for framework in frameworks]
    _say('Proof')
    print(table(trainings))
    draw_curves(trainings, out / 'loss.png')
    holds = all(training.proof.holds for training in trainings)
    print(f'\nThe loss curves: {out / "loss.png"}')
    print(f'The proof {"holds" if holds else "FAILED"}, after {time.monotonic() - start:.0f} seconds.')
    return trainings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demo:
    """One demo whose shards are written."""

    out: Path
    url: str
    """Where the shards are."""
    temporary: Path
    settings: Settings

    @property
    def mix(self) -> Path:
        return self.out / 'mix.yaml'

    def write_mix(self) -> None:
        """Copy `configs/demo.yaml` to where the user can look at it and use it again."""
        shutil.copyfile(MIX, self.mix)
        print(f'{self.mix} says what an epoch is made of')

    def promise(self) -> Promise:
        """The order, asked from a plain loader: one process, no trainer, all epochs."""
        overrides = {'variables.shards': self.url, 'variables.cache': str(self.out / 'cache' / 'order')}
        config = load_config(self.mix, overrides=overrides)
        assert config.train is not None
        loader = build_loader(config.train, topology=Topology(rank=0, world_size=1, num_nodes=1))
        promise: list[list[list[int]]] = []
        with Bar('its order', total=self.settings.steps, unit='batches') as bar:
            for _ in range(self.settings.epochs):
                promise.append([])
                for batch in loader:
                    promise[-1].append(batch['id'].tolist())
                    bar.show(sum(map(len, promise)))
        check_mix(promise, rows=self.settings.rows, repeats=self.settings.repeats)
        passes = ' and '.join(f'{repeat:g} x {corpus}' for corpus, repeat in self.settings.repeats.items())
        print(
            f'{self.settings.epochs} epochs of {passes}: {self.settings.epochs * self.settings.samples_per_epoch:,} '
            f'samples in {self.settings.steps} global batches of {self.settings.global_batch_size}',
            flush=True,
        )
        return promise

    def train(self, framework: str, promise: Promise) -> Training:
        """Train without interruption; train, kill and resume on other ranks; compare the two."""
        _say(f'{framework.capitalize()}: uninterrupted, killed with SIGKILL, resumed')
        folder = self.out / framework
        caches = self.out / 'cache' / framework
        launcher = Launcher(
            framework=framework,
            mix=self.mix,
            shards=self.url,
            temporary=self.temporary,
            settings=self.settings,
        )
        uninterrupted = launcher.to_the_end(
            folder / 'uninterrupted', self.settings.uninterrupted, cache=caches / 'uninterrupted'
        )
        killed = launcher.to_the_kill(folder / 'killed', self.settings.killed, cache=caches / 'killed')
        # The resumed run finds the cache as the killed one left it.
        resumed = launcher.to_the_end(
            folder / 'resumed',
            self.settings.resumed,
            cache=caches / 'killed',
            checkpoint=newest_checkpoint(folder / 'killed' / 'checkpoints'),
        )
        proof = prove(
            promise,
            uninterrupted=uninterrupted,
            killed=killed,
            resumed=resumed,
            compared_steps=self.settings.compared_steps,
            loss_tolerance=self.settings.loss_tolerance,
        )
        return Training(framework=framework, uninterrupted=uninterrupted, killed=killed, resumed=resumed, proof=proof)


def _say(title: str) -> None:
    print(f'\n== {title} ==', flush=True)


def _require(frameworks: Sequence[str]) -> None:
    for framework in frameworks:
        if find_spec(framework) is None:
            raise MissingDependencyError(
                f"{framework} is not installed: pip install 'headrace[demo,{framework}]', "
                f'or choose the other with --framework'
            )


def _claim(out: Path) -> Path:
    """Empty the folder, if it is ours to empty."""
    out = out.resolve()
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise ConfigError(f'{out} holds something else than the output of an earlier demo: choose another --out')
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / _MARK).touch()
    return out
