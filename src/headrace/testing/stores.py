"""The contract of stores, as tests to inherit; and stores that count or fail.

A backend's test class inherits `StoreContract` and gives it a fixture ``store``: an empty store, writable.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, TransferError
from headrace.storage.protocol import ObjectInfo, Store
from headrace.storage.transfer.retry import BrokenTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ['CountingStore', 'FaultyStore', 'StoreContract', 'put_bytes', 'read_bytes']


def put_bytes(store: Store, key: str, data: bytes) -> None:
    """Store ``data`` under ``key``."""
    store.put(key, io.BytesIO(data), size=len(data))


def read_bytes(store: Store, key: str, **how: Any) -> bytes:
    """The bytes that ``store.get`` delivers."""
    out = io.BytesIO()
    store.get(key, out, **how)
    return out.getvalue()


class StoreContract:
    """Tests of the `Store` protocol."""

    ROW: ClassVar[str] = ''
    """Store and server, for the tables of results."""

    BAD_KEYS = ('', '/etc/passwd', '..', '../x', 'a/../../x', 'a/..', './x', 'a//b', 'a/', 'a\\b', '..\\x', 'a\0b')

    def test_is_a_store_with_a_url(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert store.url

    @pytest.mark.parametrize('size', [0, 1, (1 << 20) - 1, 1 << 20, (5 << 20) + 7])
    def test_what_is_put_is_what_is_got(self, store: Store, size: int) -> None:
        data = os.urandom(size)
        put_bytes(store, 'x', data)
        assert read_bytes(store, 'x') == data
        assert store.head('x').size == size

    @pytest.mark.parametrize(
        'key',
        ['a/b/c/shard.00000.mds', 'with space', 'percent%20', 'plus+', 'übung/文', '.hidden', 'glob[1]*?/a[b]*?.csv'],
    )
    def test_keys_are_plain_text(self, store: Store, key: str) -> None:
        put_bytes(store, key, b'1')
        assert read_bytes(store, key) == b'1'
        assert [info.key for info in store.list('')] == [info.key for info in store.list(key[:-1])] == [key]

    def test_get_appends_to_the_file(self, store: Store) -> None:
        put_bytes(store, 'x', b'world')
        out = io.BytesIO(b'hello ')
        out.seek(6)
        store.get('x', out)
        assert out.getvalue() == b'hello world'

    @pytest.mark.parametrize(
        ('offset', 'size', 'expected'),
        [(0, 3, b'abc'), (2, 3, b'cde'), (5, None, b'fghij'), (0, 10, b'abcdefghij'), (9, 1, b'j'), (3, 0, b'')],
    )
    def test_ranges(self, store: Store, offset: int, size: int | None, expected: bytes) -> None:
        put_bytes(store, 'x', b'abcdefghij')
        assert read_bytes(store, 'x', offset=offset, size=size) == expected

    def test_a_range_from_the_end_is_empty(self, store: Store) -> None:
        put_bytes(store, 'x', b'abc')
        assert read_bytes(store, 'x', offset=3) == b''

    def test_a_range_beyond_the_end_is_an_error(self, store: Store) -> None:
        put_bytes(store, 'x', b'abc')
        with pytest.raises(ConfigError, match='range lies inside'):
            read_bytes(store, 'x', offset=1, size=3)

    def test_an_etag_names_a_version(self, store: Store) -> None:
        put_bytes(store, 'x', b'one')
        etag = store.head('x').etag
        assert store.get('x', io.BytesIO()) == store.get('x', io.BytesIO(), offset=1, size=1) == etag
        assert read_bytes(store, 'x', etag=etag or None) == b'one'
        put_bytes(store, 'x', b'another')
        if etag:
            assert store.head('x').etag != etag
            with pytest.raises(TransferError, match='changed'):
                read_bytes(store, 'x', offset=1, etag=etag)

    def test_put_replaces(self, store: Store) -> None:
        put_bytes(store, 'x', b'a long first version')
        put_bytes(store, 'x', b'second')
        assert read_bytes(store, 'x') == b'second'

    def test_put_takes_size_bytes_from_where_the_source_stands(self, store: Store) -> None:
        source = io.BytesIO(b'0123456789')
        source.seek(2)
        store.put('x', source, size=5)
        assert read_bytes(store, 'x') == b'23456'

    def test_a_source_that_ends_early_is_an_error_and_stores_nothing(self, store: Store) -> None:
        with pytest.raises(ConfigError, match='ended 2 bytes early'):
            store.put('x', io.BytesIO(b'abc'), size=5)
        assert list(store.list('')) == []

    def test_list_is_sorted_and_filtered_by_plain_prefix(self, store: Store) -> None:
        keys = ['a/1', 'a/2', 'ab', 'b/c/d', 'z']
        for key in reversed(keys):
            put_bytes(store, key, key.encode())
        assert [info.key for info in store.list('')] == keys
        assert [info.key for info in store.list('a')] == ['a/1', 'a/2', 'ab']
        assert [info.key for info in store.list('a/')] == ['a/1', 'a/2']
        assert [info.key for info in store.list('b/c')] == ['b/c/d']
        assert list(store.list('nothing')) == []
        assert {info.size for info in store.list('a/')} == {3}
        assert next(iter(store.list('z'))) == store.head('z')

    def test_delete_may_be_repeated(self, store: Store) -> None:
        put_bytes(store, 'x', b'1')
        store.delete('x')
        store.delete('x')
        with pytest.raises(ObjectNotFoundError):
            store.head('x')

    def test_an_absent_object_is_named(self, store: Store) -> None:
        put_bytes(store, 'there', b'1')
        for call in (lambda: read_bytes(store, 'not/there'), lambda: store.head('not/there')):
            with pytest.raises(FileNotFoundError, match=r'No such file or directory.*not/there') as caught:
                call()
            assert isinstance(caught.value, ObjectNotFoundError)
            assert store.url in str(caught.value)

    @pytest.mark.parametrize('key', BAD_KEYS)
    def test_a_key_that_leaves_the_root_is_refused(self, store: Store, key: str) -> None:
        for call in (
            lambda: read_bytes(store, key),
            lambda: put_bytes(store, key, b'1'),
            lambda: store.head(key),
            lambda: store.delete(key),
        ):
            with pytest.raises(ConfigError, match='relative to its root'):
                call()

    @pytest.mark.parametrize('prefix', ['../', '..', '/', 'a/../../', 'a//'])
    def test_a_prefix_that_leaves_the_root_is_refused(self, store: Store, prefix: str) -> None:
        with pytest.raises(ConfigError, match='relative to its root'):
            list(store.list(prefix))

    def test_many_threads_may_use_it(self, store: Store) -> None:
        data = {f'k{i}': os.urandom(100_000 + i) for i in range(16)}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda item: put_bytes(store, *item), data.items()))
            assert dict(zip(data, pool.map(lambda key: read_bytes(store, key), data), strict=True)) == data

    def test_it_pickles(self, store: Store) -> None:
        put_bytes(store, 'x', b'1')
        assert read_bytes(pickle.loads(pickle.dumps(store)), 'x') == b'1'  # noqa: S301 - our own bytes

    def test_it_works_in_a_forked_child(self, store: Store) -> None:
        put_bytes(store, 'x', b'1')
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os._exit(0 if read_bytes(store, 'x') == b'1' else 2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert read_bytes(store, 'x') == b'1'


class CountingStore:
    """Forwards calls and counts them; with ``log``, in a file that several processes may share."""

    def __init__(self, store: Store, *, log: Path | None = None, delay: float = 0.0) -> None:
        self.store = store
        self.log = log
        self.delay = delay
        """Extra seconds of each `get`."""
        self.calls: Counter[tuple[str, str]] = Counter()

    @property
    def url(self) -> str:
        """The same of the store below."""
        return self.store.url

    def _count(self, verb: str, key: str) -> None:
        self.calls[verb, key] += 1
        if self.log is not None:
            handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(handle, f'{verb} {key}\n'.encode())
            os.close(handle)

    def logged(self) -> Counter[str]:
        """The counts of calls of all processes, by ``'get x'``."""
        return Counter(self.log.read_text().splitlines()) if self.log is not None and self.log.exists() else Counter()

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`."""
        self._count('get', key)
        if self.delay:
            time.sleep(self.delay)
        return self.store.get(key, out, offset=offset, size=size, etag=etag)

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`."""
        self._count('put', key)
        self.store.put(key, source, size=size)

    def head(self, key: str) -> ObjectInfo:
        """See `Store.head`."""
        self._count('head', key)
        return self.store.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        self._count('list', prefix)
        return self.store.list(prefix)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._count('delete', key)
        self.store.delete(key)


class FaultyStore(CountingStore):
    """Fails on purpose: each `get` has the next of ``faults``; after the last one all calls work.

    * ``'broken'``: a TransferError after half of the bytes
    * ``'busy'``: a TransferError before any byte
    * ``'denied'``: an AccessDeniedError
    * ``'short'``: half of the bytes, without an error
    * ``'flipped'``: one wrong bit
    * ``'long'``: a byte too many
    * ``'empty'``: no bytes
    * a callable, which gets the bytes and the file to write to
    """

    def __init__(
        self, store: Store, faults: list[str | Callable[[bytes, BinaryIO], None] | None], *, etag: str | None = 'v1'
    ) -> None:
        super().__init__(store)
        self.faults = list(faults)
        self._etag = etag
        self._lock = threading.Lock()

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`."""
        del etag  # it names this wrapper's versions, which are all equal
        self._count('get', key)
        with self._lock:
            fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            self.store.get(key, out, offset=offset, size=size)
            return self._etag or ''
        data = read_bytes(self.store, key, offset=offset, size=size)
        if callable(fault):
            fault(data, out)
            return self._etag or ''
        if fault == 'busy':
            raise BrokenTransferError.at(f'{self.url}/{key}: 503.')
        if fault == 'denied':
            raise AccessDeniedError(f'{self.url}/{key}: 403.')
        middle = len(data) // 2
        out.write(
            {
                'broken': data[:middle],
                'short': data[:middle],
                'flipped': data[:middle] + bytes(byte ^ 1 for byte in data[middle : middle + 1]) + data[middle + 1 :],
                'long': data + b'x',
                'empty': b'',
            }[fault]
        )
        if fault == 'broken':
            raise BrokenTransferError.at(f'{self.url}/{key}: reset.', etag=self._etag)
        return self._etag or ''
