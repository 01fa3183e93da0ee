"""Single files from and to stores: `streaming.base.storage`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from headrace.errors import ConfigError
from headrace.storage import Retry, Store, StoreOptions, download, local_path, open_store, split_url
from headrace.storage.stores.local import LocalStore
from headrace.storage.whole_file import whole_file

__all__ = ['CloudDownloader', 'CloudUploader', 'download_file']


class CloudDownloader:
    """Downloads files of any store that headrace knows."""

    @classmethod
    def get(cls, remote_dir: str | None = None) -> CloudDownloader:
        """A downloader; one serves all stores. ValueError: no store has the URL's scheme."""
        if remote_dir is not None:
            open_store(remote_dir)
        return cls()

    @classmethod
    def direct_download(cls, remote: str | None, local: str, timeout: float = 60.0) -> None:
        cls().download(remote, local, timeout)

    def download(self, remote: str | None, local: str, timeout: float = 60.0) -> None:
        """Download a file. One that is there stays as it is; a broken download leaves none.

        `timeout`: seconds without a byte after which a connection counts as stalled. Raises FileNotFoundError,
        ValueError or OSError.
        """
        target = Path(local)
        if target.exists():
            return
        if not remote:
            raise ConfigError(f'A download needs the URL of a file, but `remote` is {remote!r}, and {local} is absent.')
        root, slash, name = remote.rpartition('/')
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f'{target.name}.{os.getpid()}.tmp')
        with whole_file(target, part) as out:
            store = open_store(root or slash or '.', StoreOptions(read_timeout=timeout))
            download(store, name, out, Retry())

    def clean_up(self) -> None:
        """Nothing is left open."""


def download_file(remote: str | None, local: str, timeout: float) -> None:
    CloudDownloader().download(remote, local, timeout)


def _pair(out: Any) -> tuple[str, str]:
    places = cast('list[Any]', list(out)) if isinstance(out, tuple | list) else []
    if len(places) != 2 or not all(isinstance(place, str) and place for place in places):
        raise ConfigError(
            f'Invalid `out` argument: it is a folder, a URL, or a pair (folder, URL) of texts, but got {out!r}. '
            f'Without a URL pass the folder alone.'
        )
    return places[0], places[1]


class CloudUploader:
    """Uploads files of a folder to a store.

    Attributes:
        local: the folder, temporary if only a URL was given.
        remote: URL that it is uploaded to; None if nothing is uploaded.

    Args:
        out: a folder, a URL, or both as `(folder, URL)`.
        keep_local: whether uploaded files stay in the folder.
        progress_bar: whether to show a progress bar.
        retry: attempts after the first.
        exist_ok: whether the folder may hold something.

    Raises:
        ConfigError: `out` is something else.
        FileExistsError: the folder holds something, and `exist_ok` is False.
    """

    def __init__(
        self,
        out: str | tuple[str, str],
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> None:
        if isinstance(out, str):
            is_folder = split_url(out)[0] in {'', 'file'}
            folder = local_path(out) if is_folder else tempfile.mkdtemp()
            self.remote = None if is_folder else out
        else:
            folder, self.remote = _pair(out)
        self.local = str(folder)
        self.keep_local, self.retry = keep_local, retry
        self._store: Store | None = None if self.remote is None else open_store(self.remote)
        self._progress = tqdm(desc='upload', unit='file', disable=not progress_bar or self._store is None)
        if not exist_ok and Path(self.local).exists() and any(Path(self.local).iterdir()):
            raise FileExistsError(f'Directory is not empty: {self.local}. Empty it, or pass exist_ok=True.')
        Path(self.local).mkdir(parents=True, exist_ok=True)

    @classmethod
    def get(
        cls,
        out: str | tuple[str, str],
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> CloudUploader:
        return cls(out, keep_local, progress_bar, retry, exist_ok)

    def upload_file(self, filename: str) -> None:
        """Upload a file of the folder under the same name, and remove it here unless `keep_local`."""
        if self._store is None:
            return
        path, store = Path(self.local, filename), self._store

        def attempt() -> None:
            with path.open('rb') as source:
                store.put(filename, source, size=path.stat().st_size)

        Retry(attempts=1 + self.retry).call(f'Uploading {store.url.rstrip("/")}/{filename}', attempt)
        self._progress.update()
        self.clear_local(str(path))

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """The files of the store, names below the bucket; those of the folder, paths, without a store. Sorted."""
        if self._store is None or local_path(self._store.url) is not None:
            return [f'{self.local}/{info.key}' for info in LocalStore(self.local).list(prefix or '')]
        _, place = split_url(self._store.url)
        folder = place.partition('/')[2].strip('/')
        return [f'{folder}/{info.key}'.lstrip('/') for info in self._store.list(prefix or '')]

    def clear_local(self, local: str) -> None:
        if not self.keep_local:
            Path(local).unlink(missing_ok=True)
