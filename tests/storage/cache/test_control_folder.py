"""A cache folder that others can write to leads nowhere else, and only headrace's own files in it are touched."""

from __future__ import annotations

import errno
import gc
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import CacheError, HeadraceError
from headrace.storage.cache.control_folder import ControlFolder, claim_private_folder
from tests.support.programs.processes import end_well
from tests.support.programs.together import FORK
from tests.support.stores.control_files import LOCK, PART
from tests.support.stores.shards import SIZE, cache_of, make_remote, names

NOBODY, OTHER = 65534, 65533


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize('limit', [None, 2 * SIZE])
def test_a_link_in_place_of_the_folder_is_refused_and_nothing_behind_it_touched(tmp_path, elsewhere, limit):
    remote = make_remote(tmp_path / 'remote')
    before = content(elsewhere)
    (tmp_path / 'cache').mkdir()
    (tmp_path / 'cache/.headrace').symlink_to(elsewhere)
    cache = cache_of(remote, tmp_path / 'cache', limit=limit)
    for work in (cache.fetch, cache.acquire):
        with pytest.raises(CacheError, match=r'cache/\.headrace, but that is a symbolic link.* Remove it'):
            work(remote.entries[0])
    assert content(elsewhere) == before
    (tmp_path / 'cache/.headrace').unlink()
    cache.acquire(remote.entries[0]).release()


def test_a_link_that_comes_while_a_shard_is_fetched(tmp_path, elsewhere):
    remote = make_remote(tmp_path / 'remote', packed=True)
    before = content(elsewhere)
    state = tmp_path / 'cache/.headrace'

    class Swapped(type(remote.store)):
        def get(self, key, out, **how):
            state.rename(tmp_path / 'old')
            state.symlink_to(elsewhere)
            return super().get(key, out, **how)

    cache = cache_of(remote, tmp_path / 'cache', store=Swapped(remote.folder))
    with pytest.raises((HeadraceError, OSError)):
        cache.fetch(remote.entries[0])
    assert content(elsewhere) == before


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    remote = make_remote(tmp_path / 'remote')
    (tmp_path / 'cache').mkdir()
    (tmp_path / 'cache/.headrace').write_text('mine')
    with pytest.raises(CacheError, match=r'\.headrace, but that is no folder'):
        cache_of(remote, tmp_path / 'cache').fetch(remote.entries[0])
    assert (tmp_path / 'cache/.headrace').read_text() == 'mine'


@pytest.mark.parametrize('kind', ['link', 'second name', 'pipe', 'folder'])
@pytest.mark.parametrize('name', [LOCK, 'ledger'])
def test_what_is_planted_in_the_folder_is_not_written_through(tmp_path, elsewhere, monkeypatch, kind, name):
    monkeypatch.setattr('headrace.storage.cache.limit.CHEAP', -1.0)  # so that a ledger is written
    remote = make_remote(tmp_path / 'remote')
    before = content(elsewhere)
    state = tmp_path / 'cache/.headrace'
    state.mkdir(parents=True)
    planted, target = state / name, elsewhere / 'thesis.tex'
    make: dict[str, Callable[[], object]] = {
        'link': lambda: planted.symlink_to(target),
        'second name': lambda: planted.hardlink_to(target),
        'pipe': lambda: os.mkfifo(planted),
        'folder': planted.mkdir,
    }
    make[kind]()
    cache = cache_of(remote, tmp_path / 'cache', limit=2 * SIZE)
    try:
        cache.fetch(remote.entries[0])
    except CacheError as error:
        assert str(planted) in str(error)  # noqa: PT017 - some of these can be got round
    assert content(elsewhere) == before


@pytest.mark.parametrize('limit', [None, 2 * SIZE])
def test_a_shard_behind_a_linked_folder_is_not_deleted(tmp_path, elsewhere, limit):
    remote = make_remote(tmp_path / 'remote', prefix='a/')
    (tmp_path / 'cache').mkdir()
    (tmp_path / 'cache/a').symlink_to(elsewhere)
    cache = cache_of(remote, tmp_path / 'cache', limit=limit, verify_present=True)
    for data in (b'mine', bytes(SIZE)):
        (elsewhere / 'shard.00000.mds').write_bytes(data)
        os.utime(elsewhere / 'shard.00000.mds', (0, 0))
        for work in [cache.fetch, cache.acquire] + [cache.evict] * (len(data) == SIZE):
            with pytest.raises(CacheError, match='may lead out of it'):
                work(remote.entries[0])
        assert (elsewhere / 'shard.00000.mds').read_bytes() == data


def test_files_below_a_folder_of_a_group_belong_to_the_group(tmp_path):
    remote = make_remote(tmp_path / 'remote')
    folder = tmp_path / 'cache'
    folder.mkdir()
    group = folder.stat().st_gid if os.geteuid() else OTHER
    os.chown(folder, -1, group)
    folder.chmod(0o2770)
    seen: list[os.stat_result] = []

    class Looking(type(remote.store)):
        def get(self, key, out, **how):
            state = folder / '.headrace'
            seen.extend(path.stat() for path in (state, *state.iterdir()))
            return super().get(key, out, **how)

    cache_of(remote, folder, store=Looking(remote.folder)).fetch(remote.entries[0])
    assert stat.S_IMODE(seen[0].st_mode) == 0o2770
    assert len(seen) > 1
    assert {info.st_gid for info in (*seen, (folder / 'shard.00000.mds').stat())} == {group}


def test_a_cache_that_is_deleted_while_its_folder_is_made_leaves_no_open_file(tmp_path):
    class Deleted(type(tmp_path)):
        """A folder that is deleted just before its mode is read."""

        def stat(self, **how):
            shutil.rmtree(self)
            return super().stat(**how)

    folder = ControlFolder(Deleted(tmp_path / 'cache'), '.headrace', re.compile('x'))
    gc.collect()  # left by earlier tests
    before = os.listdir('/proc/self/fd')
    with pytest.raises(FileNotFoundError), folder.opened(make=True):
        pass
    assert os.listdir('/proc/self/fd') == before


def test_a_folder_that_others_make_and_remove_at_the_same_time_counts_as_absent(tmp_path):
    class Raced(type(tmp_path)):
        """Another process makes the folder first, and a third one removes it before anybody looks."""

        def mkdir(self, mode=0o777, parents=False, exist_ok=False):
            if self.name == '.headrace' and self.parent.exists():
                raise FileExistsError(errno.EEXIST, 'File exists', str(self))
            super().mkdir(mode, parents, exist_ok)

    folder = ControlFolder(Raced(tmp_path / 'cache'), '.headrace', re.compile('x'))
    with pytest.raises(FileNotFoundError), folder.opened(make=True):
        pass


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's are not."""
    if os.geteuid():
        pytest.skip('only root can become another user')
    folder = Path(tempfile.mkdtemp(prefix='headrace-test-'))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_user(uid: int, work: Callable[[], object]) -> None:
    """Run a function in a process of another user; it must end well."""

    def run() -> None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        work()

    child = FORK.Process(target=run)
    child.start()
    end_well([child], 60)


def test_a_stranger_cannot_have_this_users_files_deleted(shared):
    """In a folder that all may write to, as below that of temporary files."""
    remote = make_remote(shared / 'remote')
    cache, home = shared / 'cache', shared / 'home'
    cache.mkdir()
    cache.chmod(0o777)
    home.mkdir(mode=0o700)
    for name in ('thesis.tex', LOCK, PART):
        (home / name).write_text('mine')
    os.chown(home, NOBODY, NOBODY)
    for path in home.iterdir():
        os.chown(path, NOBODY, NOBODY)
    as_user(OTHER, lambda: (cache / '.headrace').symlink_to(home))

    def work() -> None:
        with pytest.raises(CacheError, match='a symbolic link'):
            cache_of(remote, cache, limit=2 * SIZE).acquire(remote.entries[0])

    as_user(NOBODY, work)
    assert names(home) == sorted(['thesis.tex', LOCK, PART])
    assert {path.read_text() for path in home.iterdir()} == {'mine'}


def test_a_strangers_folder_in_a_cache_that_is_not_shared_is_refused(shared):
    remote = make_remote(shared / 'remote')
    cache = shared / 'cache'
    (cache / '.headrace').mkdir(parents=True)
    (cache / '.headrace' / PART).write_text('x')
    os.chown(cache, NOBODY, NOBODY)
    os.chown(cache / '.headrace', OTHER, OTHER)
    (cache / '.headrace').chmod(0o777)

    def work() -> None:
        with pytest.raises(CacheError, match=f'belongs to the user with uid {OTHER}.*is not shared'):
            cache_of(remote, cache).fetch(remote.entries[0])

    as_user(NOBODY, work)
    assert names(cache / '.headrace') == [PART]


@pytest.mark.parametrize(('owner', 'user'), [(OTHER, NOBODY), (0, NOBODY), (OTHER, 0)])
def test_a_folder_that_is_shared_knowingly_is_used_and_cleared_up_by_all(shared, owner, user):
    remote = make_remote(shared / 'remote')
    cache = shared / 'cache'
    cache.mkdir()
    cache.chmod(0o777)

    def leave() -> None:
        state = cache / '.headrace'
        state.mkdir()
        state.chmod(0o777)
        for name in (LOCK, PART):
            (state / name).touch()
            (state / name).chmod(0o666)

    as_user(owner, leave)
    as_user(user, lambda: cache_of(remote, cache, limit=2 * SIZE).fetch(remote.entries[0]))
    assert names(cache) == ['shard.00000.mds']


def test_the_private_folder_is_no_link_and_open_to_nobody_else(tmp_path, elsewhere):
    private = tmp_path / 'headrace-0'
    claim_private_folder(private)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    private.chmod(0o777)
    with pytest.raises(CacheError, match='others may write to it'):
        claim_private_folder(private)
    private.rmdir()
    private.symlink_to(elsewhere)
    with pytest.raises(CacheError, match='a symbolic link'):
        claim_private_folder(private)
