import io
import os
import stat

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError
from headrace.storage import open_store
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import StoreContract, put_bytes, read_bytes


class TestLocalStore(StoreContract):
    ROW = 'a folder: this machine'

    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / 'root')

    def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(ObjectNotFoundError, match=rf'the folder {tmp_path}/nowhere does not exist'):
            read_bytes(LocalStore(tmp_path / 'nowhere'), 'a')

    def test_a_file_in_the_place_of_a_folder_is_named(self, tmp_path):
        (tmp_path / 'data.csv').touch()
        with pytest.raises(ObjectNotFoundError, match=rf'index.json: {tmp_path}/data.csv is a file, not a folder'):
            read_bytes(LocalStore(tmp_path / 'data.csv'), 'index.json')

    def test_a_folder_is_no_object(self, store):
        put_bytes(store, 'a/b', b'1')
        with pytest.raises(ObjectNotFoundError):
            read_bytes(store, 'a')
        with pytest.raises(ObjectNotFoundError):
            store.head('a')

    def test_a_failed_put_leaves_the_old_object_and_no_temporary(self, store):
        put_bytes(store, 'x', b'old')
        with pytest.raises(ConfigError):
            store.put('x', io.BytesIO(b'new'), size=10)
        assert [path.name for path in store.root.iterdir()] == ['x']
        assert read_bytes(store, 'x') == b'old'

    def test_put_obeys_the_umask(self, store):
        before = os.umask(0o027)
        try:
            put_bytes(store, 'x', b'1')
        finally:
            os.umask(before)
        assert stat.S_IMODE((store.root / 'x').stat().st_mode) == 0o640

    def test_links_inside_a_users_folder_are_followed(self, store, tmp_path):
        put_bytes(store, 'x', b'1')
        (tmp_path / 'elsewhere').write_bytes(b'22')
        (store.root / 'y').symlink_to(tmp_path / 'elsewhere')
        assert read_bytes(store, 'y') == b'22'
        assert [info.size for info in store.list('')] == [1, 2]

    def test_folders_behind_links_are_listed_once_and_under_their_own_names(self, store, tmp_path):
        for key in ('b/1', 'b/c/2'):
            put_bytes(store, key, b'')
        put_bytes(LocalStore(tmp_path / 'elsewhere'), 'd/3', b'')
        for name, target in (('a', 'b'), ('b/c/up', '..'), ('far', tmp_path / 'elsewhere'), ('.far', tmp_path)):
            (store.root / name).symlink_to(target)
        (tmp_path / 'elsewhere' / 'back').symlink_to(store.root)
        assert [info.key for info in store.list('')] == ['b/1', 'b/c/2', 'far/d/3']
        assert [info.key for info in store.list('far/d')] == ['far/d/3']
        assert [info.key for info in store.list('a/')] == ['a/1', 'a/c/2']

    @pytest.mark.parametrize(('target', 'says'), [('/nowhere/x', 'link to /nowhere/x'), ('link', 'leads to itself')])
    def test_a_link_that_leads_nowhere_is_named(self, store, target, says):
        put_bytes(store, 'a/x', b'')
        (store.root / 'a/.#x').symlink_to('a lock of Emacs')
        assert [info.key for info in store.list('')] == ['a/x']
        (store.root / 'a/link').symlink_to(target)
        with pytest.raises(ObjectNotFoundError, match=rf'root/a/link.*{says}'):
            list(store.list(''))

    def test_permission_errors_name_the_user(self, store, monkeypatch):
        def deny(*_args, **_kwargs):
            raise PermissionError(13, 'Permission denied')

        monkeypatch.setattr('builtins.open', deny)
        with pytest.raises(AccessDeniedError, match='uid'):
            read_bytes(store, 'x')


class TestFileUrl:
    def test_a_file_url_is_a_path(self, tmp_path):
        (tmp_path / 'a b').mkdir()
        (tmp_path / 'a b/x').write_bytes(b'1')
        assert read_bytes(open_store(f'file://{tmp_path}/a%20b'), 'x') == b'1'
        assert read_bytes(open_store(f'file://localhost{tmp_path}/a%20b'), 'x') == b'1'

    def test_another_host_is_refused(self):
        with pytest.raises(ConfigError, match='third "/"'):
            open_store('file://data/x')
