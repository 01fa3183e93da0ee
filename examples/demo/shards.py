"""Where the demo's shards are, and how they get there."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from examples.demo.corpora import CORPORA, columns, corpus_rows, samples
from examples.demo.progress import Bar
from examples.demo.settings import Settings
from headrace import MDSWriter
from headrace.errors import MissingDependencyError

__all__ = ['opened_store', 'write_shards']


@contextmanager
def opened_store(store: str, out: Path) -> Generator[str]:
    """A place for shards by its URL: a folder under ``out``, or a bucket of a server that lives as long as the block.

    Raises:
        MissingDependencyError: If the packages for an S3 server and its client are not installed.
    """
    if store == 'local':
        yield str(out / 'shards')
        return
    for package in ('boto3', 'moto'):
        if find_spec(package) is None:
            raise MissingDependencyError(f"--store s3 needs {package}: pip install 'headrace[s3]' 'moto[server]'")
    from tests.support.servers.s3 import have_rgw, moto_server, rgw_server

    with rgw_server() if have_rgw() and os.geteuid() == 0 else moto_server() as server:
        print(f'S3 server: {server.name} at {server.endpoint_url}', flush=True)
        # By the environment, as on a cluster: this process writes the shards, the rank programs inherit it and read.
        before = dict(os.environ)
        os.environ.update(server.environment())
        try:
            yield f's3://{server.new_bucket()}'
        finally:
            os.environ.clear()
            os.environ.update(before)


def write_shards(url: str, settings: Settings) -> None:
    """Cut both corpora into rows and write them as MDS shards below ``url``."""
    for corpus in CORPORA:
        rows = corpus_rows(corpus, rows=settings.rows, row_bytes=settings.row_bytes)
        with (
            Bar(f'{corpus:<9}', total=len(rows), unit='rows') as bar,
            MDSWriter(
                out=f'{url}/{corpus}',
                columns=columns(settings.row_bytes),
                compression='zstd',
                hashes=['xxh64'],
                size_limit=settings.shard_bytes,
            ) as writer,
        ):
            for number, sample in enumerate(samples(corpus, rows), start=1):
                writer.write(sample)
                bar.show(number)
        print(f'{len(rows):,} rows of {settings.row_bytes} bytes of {corpus} -> {url}/{corpus}', flush=True)
