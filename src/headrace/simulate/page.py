"""Pages of a simulated run: a file of figures and plots, and a server whose form changes the run's values.

The server is of the standard library, for one person. It listens on 127.0.0.1 and answers to that name only, so no
other page in the browser reaches it. A framework for such pages would bring thirty packages for one form.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import multiprocessing
import resource
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from multiprocessing.connection import Connection
from pathlib import Path
from string import Template
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import override

from headrace.config.build import build_dataset
from headrace.errors import ConfigError, HeadraceError
from headrace.errors.display import html_table, human_size, printable
from headrace.errors.redaction import redact
from headrace.format import bytes_to_int
from headrace.inspect.local_page import PageHandler, PageServer
from headrace.mixing import LoaderConfig
from headrace.simulate.result import Conditions, SimulatedRun, SimulatedStep
from headrace.simulate.run import simulate
from headrace.simulate.tune import OF_THE_ORDER, SETTINGS, replace_settings, settings_in_use


def read_prices(path: Path | None = None) -> dict[str, float]:
    """US dollars per GB by provider, of a YAML mapping; by default headrace's list prices."""
    text = (
        resources.files('headrace.simulate').joinpath('prices.yaml').read_text() if path is None else path.read_text()
    )
    try:
        given: Any = OmegaConf.to_container(OmegaConf.create(text))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f'{path} must be YAML from providers to dollars per GB: {error}') from error
    if not isinstance(given, dict):
        raise ConfigError(f'{path} must be a mapping from providers to dollars per GB.')
    prices = cast('dict[Any, Any]', given)
    wrong = [name for name, price in prices.items() if isinstance(price, bool) or not isinstance(price, int | float)]
    if wrong:
        raise ConfigError(f'A price is a number of dollars per GB, but {path} has {prices[wrong[0]]!r} for {wrong[0]}.')
    return {str(name): float(price) for name, price in prices.items()}


def costs(size: int, prices: dict[str, float]) -> dict[str, float]:
    return {provider: round(price * size / 1e9, 2) for provider, price in prices.items()}


_WIDTH, _HEIGHT, _POINTS = 720, 180, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 10, 12, 22

STYLE: Final = (
    'body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#1f2937}'
    'h1{font-size:1.5em}h2{font-size:1.05em;margin:1.4em 0 .3em}'
    'table{border-collapse:collapse;width:100%}td,th{padding:.25em 1em .25em 0;border-bottom:1px solid #e5e7eb;'
    'vertical-align:top;text-align:left}svg{width:100%;height:auto}polyline{fill:none;stroke:#2563eb;stroke-width:1.8}'
    'polyline.before{stroke:#9ca3af}text{font-size:11px;fill:#6b7280}line{stroke:#e5e7eb}'
)
"""CSS of the plots and tables."""


def page(run: SimulatedRun, cost: Mapping[str, float], *, title: str) -> str:
    conditions = html_table([(name.replace('_', ' '), str(value)) for name, value in vars(run.conditions).items()])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<style>{STYLE}</style><h1>Simulated run of {html.escape(title)}</h1>{content(run, cost)}'
        f'<h2>Conditions</h2>{conditions}</html>'
    )


def content(run: SimulatedRun, cost: Mapping[str, float], before: SimulatedRun | None = None) -> str:
    """Figures, plots and cost of a run as a part of a page; those of `before` stand beside."""
    if before is None:
        figures = html_table(run.rows())
    else:
        both = zip(run.rows(), before.rows(), strict=True)
        figures = html_table([(*now, then) for now, (_, then) in both], header=('', 'now', 'as configured'))
    runs = [run] if before is None else [run, before]  # the later ones are drawn beneath
    dollars = html_table([(provider, f'${price:,.2f}') for provider, price in cost.items()])
    plots = (
        (
            'Seconds of each step, waiting included',
            _plot(runs, lambda run, step: step.wait + run.conditions.step_seconds, lambda value: f'{value:.3g} s'),
        ),
        ('Bytes that a node has fetched', _plot(runs, lambda _, step: step.fetched, human_size)),
        ('Bytes in the cache of a node', _plot(runs, lambda _, step: step.cached, human_size)),
    )
    drawn = ''.join(f'<h2>{html.escape(name)}</h2>{plot}' for name, plot in plots)
    notes = ''.join(f'<p>Note: {html.escape(note)}</p>' for note in run.notes())
    return f'{figures}{notes}{drawn}<h2>Egress of an epoch, all nodes</h2>{dollars}'


def _plot(
    runs: Sequence[SimulatedRun], value: Callable[[SimulatedRun, SimulatedStep], float], text: Callable[[float], str]
) -> str:
    """A value over the runs' seconds; of many steps the largest value of each part is drawn."""
    end = max(run.steps[-1].end for run in runs) or 1.0
    top = max(value(run, step) for run in runs for step in run.steps) or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def line(run: SimulatedRun, kind: str) -> str:
        size = max(1, -(-len(run.steps) // _POINTS))
        parts = [run.steps[begin : begin + size] for begin in range(0, len(run.steps), size)]
        points = ' '.join(
            f'{_LEFT + width * part[-1].end / end:.1f},'
            f'{_TOP + height * (1 - max(value(run, step) for step in part) / top):.1f}'
            for part in parts
        )
        return f'<polyline class="{kind}" points="{points}"/>'

    ticks = ''.join(
        f'<line x1="{_LEFT}" y1="{y:.0f}" x2="{_WIDTH - _RIGHT}" y2="{y:.0f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{html.escape(name)}</text>'
        for y, name in ((_TOP, text(top)), (_TOP + height / 2, text(top / 2)), (_TOP + height, '0'))
    )
    times = ''.join(
        f'<text x="{_LEFT + width * part:.0f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{end * part:,.1f} s</text>'
        for part, anchor in ((0.0, 'start'), (0.5, 'middle'), (1.0, 'end'))
    )
    lines = ''.join(line(run, 'before' if number else 'now') for number, run in reversed([*enumerate(runs)]))
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{ticks}{times}{lines}</svg>'


_LABELS: Final = {
    'ranks': 'ranks, of all nodes',
    'nodes': 'nodes',
    'step_seconds': 'seconds of a step',
    'bandwidth': 'bandwidth of a node, per second',
    'latency': 'latency, in seconds',
    'read_seconds': 'seconds to make a batch',
    'receive_seconds': 'seconds to take a batch of a worker',
    'batches': 'simulated steps of an epoch',
    'epochs': 'simulated epochs',
    'num_workers': 'workers of a rank',
    'predownload': 'predownload, in samples',
    'cache_limit': 'cache limit',
    'shuffle_block_size': 'shuffle block size',
    'num_canonical_nodes': 'canonical nodes',
}
_CONDITIONS: Final = tuple(name for name in _LABELS if name not in SETTINGS)
_SIZES: Final = frozenset({'bandwidth', 'cache_limit'})
MOST_SECONDS: Final = 60.0  # real time of a run on the page, after which it is ended; others wait meanwhile
MOST_MEMORY: Final = 4 << 30  # bytes of a run on the page
# Not a fork of the server, whose threads may hold locks. The process that forks loads this module once.
_CONTEXT: Final = multiprocessing.get_context('forkserver')
_UNITS: Final = (('tb', 1 << 40), ('gb', 1 << 30), ('mb', 1 << 20), ('kb', 1 << 10))


@dataclass(frozen=True)
class _Simulations:
    config: LoaderConfig
    conditions: Conditions
    prices: dict[str, float]
    title: str
    before: SimulatedRun
    in_use: Mapping[str, int | None]

    def form(self) -> str:
        """The fields of all values; an empty one stands for the default that it shows."""
        conditions = ''.join(_field(name, getattr(self.conditions, name), None) for name in _CONDITIONS)
        settings = ''.join(
            _field(name, self.config.loader.num_workers if name == 'num_workers' else getattr(self.config, name), used)
            for name, used in self.in_use.items()
        )
        return (
            f'<fieldset><legend>Machines, network, model</legend>{conditions}</fieldset>'
            f'<fieldset><legend>Settings of the loader</legend>{settings}</fieldset>'
        )

    def answer(self, given: Mapping[str, str]) -> str:
        conditions = {name: _number(name, text) for name, text in given.items() if name in _CONDITIONS and text}
        settings = {name: _number(name, text) if text else None for name, text in given.items() if name in SETTINGS}
        run = simulate(
            replace_settings(self.config, cast('dict[str, int | None]', settings)),
            dataclasses.replace(self.conditions, **conditions),  # pyright: ignore[reportArgumentType]
        )
        cost = costs(run.epoch_store_bytes, self.prices)
        return content(run, cost, self.before)

    def answer_in_time(self, given: Mapping[str, str]) -> str:
        """As `answer`, in a process of its own: a number may be too large for the time and the memory."""
        received, sent = multiprocessing.Pipe(duplex=False)
        _CONTEXT.set_forkserver_preload([__name__])
        process = _CONTEXT.Process(target=self._send_answer, args=(given, sent, MOST_MEMORY), daemon=True)
        process.start()
        sent.close()
        fix = f'Give fewer {_LABELS["batches"]}, ranks, workers or epochs.'
        try:
            if not received.poll(MOST_SECONDS):
                raise ConfigError(f'the simulation was not done after {MOST_SECONDS:.0f} s. {fix}')
            answer: str | Exception = received.recv()
        except EOFError:
            raise ConfigError(f'the simulation needs more than {MOST_MEMORY >> 30} GiB. {fix}') from None
        finally:
            process.kill()
            process.join()
            received.close()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _send_answer(self, given: Mapping[str, str], sent: Connection, memory: int) -> None:
        with contextlib.suppress(OSError, ValueError):  # where the system has no such limit, or a lower one
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        try:
            sent.send(self.answer(given))
        except MemoryError:
            return
        except (HeadraceError, OSError, ArithmeticError, ValueError) as error:
            sent.send(error)


class SimulationServer(PageServer):
    def __init__(
        self, config: LoaderConfig, conditions: Conditions, prices: dict[str, float], *, title: str, port: int = 0
    ) -> None:
        before = simulate(config, conditions)
        topology = conditions.topology(config)
        in_use = settings_in_use(config, build_dataset(config, topology=topology))
        self.simulations = _Simulations(config, conditions, prices, title, before, in_use)
        self.one_at_a_time = threading.Lock()
        super().__init__(port, _Handler)


class _Handler(PageHandler):
    server: SimulationServer  # pyright: ignore[reportIncompatibleVariableOverride] - no other makes it

    @override
    def answer_path(self) -> None:
        url = urlsplit(self.path)
        if url.path == '/':
            self._answer_page(self.server.simulations)
        elif url.path == '/run':
            status, answer = self._run(dict(parse_qsl(url.query, keep_blank_values=True)))
            self.answer(status, 'application/json', json.dumps(answer))
        else:
            self.answer(404, 'text/plain', 'There is no such page.')

    def _answer_page(self, simulations: _Simulations) -> None:
        nonce = secrets.token_urlsafe()
        template = Template(resources.files('headrace.simulate').joinpath('ui.html').read_text(encoding='utf-8'))
        page = template.substitute(
            title=html.escape(simulations.title), style=STYLE, nonce=nonce, form=simulations.form()
        )
        policy = (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "frame-ancestors 'none'"
        )
        self.answer(200, 'text/html', page, {'Content-Security-Policy': policy})

    def _run(self, given: Mapping[str, str]) -> tuple[int, dict[str, str]]:
        try:
            with self.server.one_at_a_time:
                return 200, {'html': self.server.simulations.answer_in_time(given)}
        except (HeadraceError, OSError) as error:
            return 400, {'error': printable(redact(str(error)))}
        except (ArithmeticError, ValueError) as error:
            return 400, {'error': f'a value is too small or too large: {error}'}


def _field(name: str, value: float | None, default: float | None) -> str:
    shown = '' if value is None else _text(name, value)
    hint = 'no limit' if name == 'cache_limit' else 'none' if default is None else _text(name, default)
    note = '<small>another order</small>' if name in OF_THE_ORDER else ''
    attributes = f'name="{name}" value="{html.escape(shown)}" placeholder="{html.escape(hint)}" autocomplete="off"'
    return f'<label>{html.escape(_LABELS[name])} {note}<input {attributes}></label>'


def _text(name: str, value: float) -> str:
    if name in _SIZES:
        for unit, factor in _UNITS:
            if value >= factor and not value % factor:
                return f'{value / factor:.0f}{unit}'
    return f'{value:.12g}'


def _number(name: str, text: str) -> float:
    if name in _SIZES:
        return bytes_to_int(text)
    try:
        return float(text) if name.endswith('seconds') or name == 'latency' else int(text.replace(',', ''))
    except ValueError:
        kind = 'a number' if name.endswith('seconds') or name == 'latency' else 'a whole number'
        raise ConfigError(f'{_LABELS[name]}: must be {kind}, got {text[:60]!r}.') from None
