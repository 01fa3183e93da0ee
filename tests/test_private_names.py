"""Private names of others: docs/appendix/private_names.md lists every use, and a canary for each says what broke."""

from __future__ import annotations

import ast
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.suite.optional_modules import REPOSITORY, SOURCES
from tests.support.trainers.fake_world import fake_world

PAGE_PATH = 'docs/appendix/private_names.md'
PAGE = (REPOSITORY / PAGE_PATH).read_text()
ROWS = re.findall(r'^\| `([\w.]+)` \| `([\w/]+\.py)` \| (.+?) \|$', PAGE, re.MULTILINE)
DOCUMENTED = {'_exit', '_fields', '_asdict', '_replace'}
"""Names with an underscore that Python documents."""


def is_private(name: str) -> bool:
    return name.startswith('_') and not name.startswith('__') and name not in DOCUMENTED


def private_part(dotted: str) -> str:
    return next(part for part in reversed(dotted.split('.')) if is_private(part))


def defined(nodes: list[ast.AST]) -> set[str]:
    """Names that a file defines, of its own classes' attributes too."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
    return found


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {'self', 'cls'}


def foreign_names(nodes: list[ast.AST]) -> set[str]:
    """What a file imports from elsewhere."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith('headrace'):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).partition('.')[0] for alias in node.names}
    return found


def uses(nodes: list[ast.AST], own: set[str], everywhere: set[str]) -> Iterator[str]:
    """Private names of others that a file uses.

    Args:
        nodes: of the file.
        own: what it defines.
        everywhere: what all files define, as attributes of their own objects.
    """
    foreign = foreign_names(nodes)
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = str(node.module) if isinstance(node, ast.ImportFrom) else ''
            if not module.startswith('headrace'):
                for alias in node.names:
                    yield from filter(is_private, [*module.split('.'), *alias.name.split('.')])
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_theirs = isinstance(node.value, ast.Name) and node.value.id in foreign
            if is_theirs or node.attr not in own | everywhere:
                yield node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {'getattr', 'hasattr', 'setattr'}
        ):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value) and name.value not in own:
                yield name.value
        elif (
            match := re.fullmatch(r"vars\(.*\)\['(\w+)'\]", ast.unparse(node))
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call)
            else None
        ):
            yield from filter(is_private, [match[1]])


SHARED_WORDS = {'_session', '_value', '_computed', '_checkpoint_io', '_http', '_endpoint', '_hparams'}
"""Names of others that headrace also gives attributes of its own, elsewhere."""


def all_uses() -> set[tuple[str, str]]:
    files = {path: list(ast.walk(ast.parse(path.read_text()))) for path in sorted(SOURCES.rglob('*.py'))}
    own = {path: defined(nodes) for path, nodes in files.items()}
    everywhere = set[str]().union(*own.values()) - SHARED_WORDS
    return {
        (name, str(path.relative_to(SOURCES)))
        for path, nodes in files.items()
        for name in uses(nodes, own[path], everywhere)
    }


def test_every_use_is_on_the_page() -> None:
    missing = all_uses() - {(private_part(name), where) for name, where, _ in ROWS}
    assert not missing, f'Add a row to {PAGE_PATH} and a canary here: {sorted(missing)}'


@pytest.mark.parametrize(('name', 'where'), [row[:2] for row in ROWS])
def test_every_row_of_the_page_is_a_use(name: str, where: str) -> None:
    assert re.search(rf'\b{private_part(name)}\b', (SOURCES / where).read_text()), 'Remove the row.'


CANARIES: dict[str, Any] = {}


def canary(*names: str, marks: Any = ()) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    """Register a check of private names, run where the marks allow."""

    def add(check: Callable[[], bool]) -> Callable[[], bool]:
        for name in names:
            CANARIES[name] = pytest.param(name, check, marks=marks, id=name)
        return check

    return add


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@canary('threading._shutdown')
def check_threading() -> bool:
    import threading

    return parameters(vars(threading)['_shutdown']) == []


@canary('atexit._run_exitfuncs')
def check_atexit() -> bool:
    import atexit

    return callable(atexit._run_exitfuncs)


@canary('ForkingPickler._extra_reducers')
def check_reducers() -> bool:
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing
    from torch.multiprocessing.reductions import reduce_tensor

    torch.multiprocessing.reductions.init_reductions()
    return ForkingPickler._extra_reducers[torch.Tensor] is reduce_tensor


@canary('ForkProcess._Popen', 'BaseProcess._bootstrap')
def check_fork() -> bool:
    from multiprocessing.context import ForkProcess

    made = ForkProcess()
    return isinstance(vars(ForkProcess)['_Popen'], staticmethod) and parameters(made._bootstrap)[:1] == [
        'parent_sentinel'
    ]


@canary('importlib._bootstrap', '_bootstrap._module_locks')
def check_imports() -> bool:
    import importlib._bootstrap as imports

    with imports._ModuleLockManager('a module that a thread imports'):
        lock = imports._module_locks['a module that a thread imports']()
        return lock.owner == threading.get_ident()


@canary('HTTPResponse._method', 'HTTPResponse._close_conn')
def check_http() -> bool:
    import http.client
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        response = http.client.HTTPResponse(ours, method='HEAD')
        response._close_conn()
        return response._method == 'HEAD' and response.isclosed()


@canary('torch.utils.data._utils')
def check_collate() -> bool:
    import torch
    from torch.utils.data import default_collate
    from torch.utils.data._utils import collate, pin_memory

    collated = default_collate([torch.zeros(2), torch.ones(2)])
    is_used = collate.default_collate_fn_map[torch.Tensor] is collate.collate_tensor_fn
    return is_used and collated.shape == (2, 2) and parameters(pin_memory.pin_memory)[:1] == ['data']


@canary(
    '_MultiProcessingDataLoaderIter._shutdown_workers',
    'torch.utils.data.dataloader._MultiProcessingDataLoaderIter',
    '_MultiProcessingDataLoaderIter._worker_result_queue',
    '_MultiProcessingDataLoaderIter._index_queues',
    '_MultiProcessingDataLoaderIter._workers',
    '_MultiProcessingDataLoaderIter._pin_memory_thread_done_event',
    'DataLoader._get_iterator',
)
def check_loader() -> bool:
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    source = inspect.getsource(_MultiProcessingDataLoaderIter.__init__)
    attributes = ['_worker_result_queue', '_index_queues', '_workers', '_pin_memory_thread_done_event']
    is_used = all(f'self.{name} = ' in source for name in attributes)
    methods = DataLoader._get_iterator, _MultiProcessingDataLoaderIter._shutdown_workers
    return is_used and all(parameters(method) == ['self'] for method in methods)


@canary('_MultiProcessingDataLoaderIter._reset')
def check_reset() -> bool:
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    source = inspect.getsource(_MultiProcessingDataLoaderIter._reset)
    return parameters(_MultiProcessingDataLoaderIter._reset)[:2] == ['self', 'loader'] and '_ResumeIteration' in source


@canary('_MultiProcessingDataLoaderIter._next_data')
def check_next_data() -> bool:
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    return parameters(_MultiProcessingDataLoaderIter._next_data) == ['self']


@canary('profiler._is_profiler_enabled')
def check_profiler() -> bool:
    from torch.autograd import profiler

    with profiler.profile():
        is_on = profiler._is_profiler_enabled
    return is_on and not profiler._is_profiler_enabled


@canary('distributed_c10d._get_default_store')
def check_store() -> bool:
    import torch.distributed as dist

    with fake_world(0, 2):
        return isinstance(dist.distributed_c10d._get_default_store(), dist.Store)


@canary('Metric._computed', marks=pytest.mark.lightning)
def check_torchmetrics() -> bool:
    torchmetrics = pytest.importorskip('torchmetrics')
    metric = torchmetrics.MeanMetric()
    metric.update(1.0)
    first = metric.compute()
    remembered = metric._computed is first
    metric._computed = None
    return remembered and metric.compute() is not first


@canary('Trainer._accelerator_connector', marks=pytest.mark.lightning)
@canary('_TrainingEpochLoop._batches_that_stepped', marks=pytest.mark.lightning)
@canary('_FitLoop._combined_loader', '_FitLoop._data_fetcher', '_FitLoop._data_source', marks=pytest.mark.lightning)
def check_trainer() -> bool:
    from lightning.pytorch import Trainer
    from lightning.pytorch.utilities.combined_loader import CombinedLoader

    trainer: Any = Trainer(accelerator='cpu', devices=1, logger=False, barebones=True)
    loop = trainer.fit_loop
    limits = CombinedLoader({'a': [1]})
    limits.limits = 3
    return (
        hasattr(trainer._accelerator_connector, 'cluster_environment')
        and loop.epoch_loop._batches_that_stepped == 0
        and loop._combined_loader is None
        and loop._data_fetcher is None
        and loop._data_source.instance is None
        and limits.limits == [3]
    )


@canary('_HandlersCompose', marks=pytest.mark.lightning)
def check_signals() -> bool:
    from lightning.pytorch.trainer.connectors.signal_connector import _HandlersCompose

    seen: list[int] = []
    _HandlersCompose([lambda number, _: seen.append(number)] * 2)(3, None)
    return seen == [3, 3]


@canary('Fabric._launched', marks=pytest.mark.lightning)
def check_fabric() -> bool:
    from lightning.fabric import Fabric

    return Fabric(accelerator='cpu', devices=1)._launched is False


@canary('_WrappingCheckpointIO', '_WrappingCheckpointIO._checkpoint_io', marks=pytest.mark.lightning)
def check_checkpoint_io() -> bool:
    from lightning.fabric.plugins import TorchCheckpointIO
    from lightning.pytorch.plugins import AsyncCheckpointIO
    from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO

    inner = TorchCheckpointIO()
    outer = AsyncCheckpointIO()
    outer._checkpoint_io = inner
    return isinstance(outer, _WrappingCheckpointIO) and outer.checkpoint_io is inner


@canary(
    'LightningDataModule._set_hparams',
    'LightningDataModule._hparams',
    'LightningDataModule._hparams_initial',
    'LightningDataModule._log_hyperparams',
    marks=pytest.mark.lightning,
)
def check_hparams() -> bool:
    from lightning.pytorch import LightningDataModule

    module = LightningDataModule()
    is_off = module._log_hyperparams is False
    module._set_hparams({'a': 1})
    module._hparams_initial = dict(module._hparams)
    return is_off and module.hparams_initial == {'a': 1}


@canary('Node._dereference_node', 'Node._value', 'Node._get_parent', 'Node._get_root')
def check_omegaconf() -> bool:
    from omegaconf import AnyNode, OmegaConf

    whole = OmegaConf.create({'a': {'b': 1}, 'c': 2})
    node = AnyNode('${c}', key='x', parent=whole)._dereference_node()
    return node._value() == 2 and whole._get_parent() is None and whole.a._get_root() is whole


@canary('Encoding._mergeable_ranks', 'Encoding._pat_str')
def check_tiktoken() -> bool:
    tiktoken = pytest.importorskip('tiktoken')
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding('bytes', pat_str='.', mergeable_ranks=ranks, special_tokens={})
    return encoding._mergeable_ranks == ranks and encoding._pat_str == '.'


@canary('BaseClient._endpoint', 'URLLib3Session._get_connection_manager', 'Session._session', marks=pytest.mark.s3)
def check_boto() -> bool:
    boto3 = pytest.importorskip('boto3')
    session = boto3.session.Session(aws_access_key_id='x', aws_secret_access_key='x', region_name='us-east-1')
    http_session = session.client('s3')._endpoint.http_session
    found = parameters(http_session._get_connection_manager)
    return found == ['url', 'proxy_url'] and isinstance(session._session.get_scoped_config(), dict)


@canary('Client._http', marks=pytest.mark.cloud)
def check_google() -> bool:
    storage = pytest.importorskip('google.cloud.storage')
    from google.auth.credentials import AnonymousCredentials

    return bool(storage.Client('p', AnonymousCredentials())._http.adapters)


@canary('ChainedTokenCredential._successful_credential', marks=pytest.mark.cloud)
def check_azure() -> bool:
    identity = pytest.importorskip('azure.identity')

    class Working:
        def get_token(self, *scopes: str, **options: Any) -> object:
            return object()

    working = Working()
    chain = identity.ChainedTokenCredential(working)
    chain.get_token('x')
    return chain._successful_credential is working


@canary('SFTPClient._async_request', 'SFTPClient._read_response', 'SFTPClient._convert_status', marks=pytest.mark.cloud)
def check_paramiko() -> bool:
    client = pytest.importorskip('paramiko').SFTPClient
    return (
        parameters(client._async_request) == ['self', 'fileobj', 't', 'args']
        and parameters(client._read_response) == ['self', 'waitfor']
        and parameters(client._convert_status) == ['self', 'msg']
    )


@canary(
    'AbstractBufferedFile._fetch_range',
    'AbstractFileSystem._get_kwargs_from_urls',
    'AbstractFileSystem._strip_protocol',
    marks=pytest.mark.cloud,
)
def check_fsspec() -> bool:
    spec = pytest.importorskip('fsspec.spec')
    files = spec.AbstractFileSystem
    return (
        parameters(spec.AbstractBufferedFile._fetch_range) == ['self', 'start', 'end']
        and files._strip_protocol('/a/') == '/a'
        and files._get_kwargs_from_urls('/a') == {}
    )


@pytest.mark.parametrize(('name', 'check'), CANARIES.values())
def test_a_canary_says_what_an_upgrade_broke(name: str, check: Callable[[], bool]) -> None:
    breaks = '; '.join(f'{where}: {broken}' for row, where, broken in ROWS if row == name)
    try:
        is_as_expected = check()
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
        raise AssertionError(f'{name} has changed ({error!r}). {breaks}. See {PAGE_PATH}.') from error
    assert is_as_expected, f'{name} works in another way. {breaks}. See {PAGE_PATH}.'


def test_every_row_has_a_canary() -> None:
    assert {name for name, *_ in ROWS} == set(CANARIES)
