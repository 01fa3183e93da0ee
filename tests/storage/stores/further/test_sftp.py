import io
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import ClassVar

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, TransferError
from headrace.storage import Retry, StoreOptions, Transfer, download, open_store
from headrace.storage.stores.further.sftp import SftpStore
from headrace.testing.store_faults import DATA, ProxiedStore, StoreFaultContract
from headrace.testing.stores import StoreContract, put_bytes, read_bytes
from tests.support.programs.waiting import until
from tests.support.servers.paramiko_server import paramiko_server
from tests.support.servers.process import quietly
from tests.support.servers.sftp import have_sshd, sftp_server
from tests.support.servers.tcp_proxy import TcpFault, TcpProxy

pytestmark = pytest.mark.cloud

VARIABLES = (
    'COMPOSER_SFTP_KEY_FILE',
    'COMPOSER_SFTP_KNOWN_HOSTS_FILE',
    'HEADRACE_SFTP_PASSWORD',
    'SSH_AUTH_SOCK',
)


@pytest.fixture(scope='session')
def installed():
    if not have_sshd():
        pytest.skip('needs: apt-get install --no-install-recommends openssh-server openssh-client')
    account = next((entry for entry in pwd.getpwall() if entry.pw_uid == os.geteuid()), None)
    if account is None or account.pw_shell.endswith(('/nologin', '/false')):
        pytest.skip('sshd logs only users in who have an account with a shell')


@pytest.fixture(scope='session')
def sshd(installed):
    with sftp_server() as server:
        yield server


@pytest.fixture(scope='session')
def plain_sshd(installed):
    """Has nothing that is not in the protocol itself."""
    with sftp_server('-P posix-rename,fsync,limits') as server:
        yield server


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing of the user's own configuration."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / 'home'
    (folder / '.ssh').mkdir(parents=True)
    monkeypatch.setenv('HOME', str(folder))
    return folder


@pytest.fixture
def proxy(sshd):
    with TcpProxy(sshd.port) as proxy:
        sshd.known_at(proxy.port)
        yield proxy


class TestSftpStore(StoreContract):
    ROW = '`sftp://`: OpenSSH'

    @pytest.fixture
    def store(self, sshd):
        return sshd.store(sshd.new_folder())


class TestSftpStoreWhoseRootIsNotThereYet(StoreContract):
    ROW = '`sftp://`: OpenSSH'

    @pytest.fixture
    def store(self, sshd):
        return sshd.store(sshd.new_folder() / 'some/folder')


class TestPlainSftpStore(StoreContract):
    ROW = '`sftp://`: OpenSSH without its extensions'

    @pytest.fixture
    def store(self, plain_sshd):
        return plain_sshd.store(plain_sshd.new_folder())

    # It cannot replace a file at once.
    def test_put_replaces(self, store):
        put_bytes(store, 'x', b'a long first version')
        with pytest.raises(StorageError, match=r'lacks posix-rename@openssh.com.*Delete the object first'):
            put_bytes(store, 'x', b'second')
        assert read_bytes(store, 'x') == b'a long first version'
        assert [info.key for info in store.list('')] == ['x']
        store.delete('x')
        put_bytes(store, 'x', b'second')
        assert read_bytes(store, 'x') == b'second'

    def test_an_etag_names_a_version(self, store):
        put_bytes(store, 'x', b'one')
        etag = store.head('x').etag
        assert store.get('x', io.BytesIO()) == etag
        assert read_bytes(store, 'x', etag=etag) == b'one'
        store.delete('x')
        put_bytes(store, 'x', b'another')
        with pytest.raises(TransferError, match='changed'):
            read_bytes(store, 'x', offset=1, etag=etag)


class TestSftpFaults(StoreFaultContract):
    ROW = '`sftp://`: OpenSSH'

    FAULTS: ClassVar = {
        'no connection': (lambda: TcpFault(drop=True), TransferError),
        'no first byte': (lambda: TcpFault(latency=60.0), TransferError),
        'reset at once': (lambda: TcpFault(reset_after=0), TransferError),
        'reset in the handshake': (lambda: TcpFault(reset_after=1000), TransferError),
        'closed in the handshake': (lambda: TcpFault(close_after=1000), TransferError),
        'silent in the handshake': (lambda: TcpFault(stall_after=1000), TransferError),
        'closed at the first request': (lambda: TcpFault(close_after=TestSftpFaults.opened), TransferError),
        'reset at the first request': (lambda: TcpFault(reset_after=TestSftpFaults.opened), TransferError),
        'silent at the first request': (lambda: TcpFault(stall_after=TestSftpFaults.opened), TransferError),
    }
    BROKEN_BODIES: ClassVar = {
        'reset': lambda after: TcpFault(reset_after=after, times=1),
        'truncated': lambda after: TcpFault(close_after=after, times=1),
        'stalled': lambda after: TcpFault(stall_after=after, times=1),
    }
    SILENT = StoreFaultContract.SILENT | {'silent in the handshake', 'silent at the first request'}
    opened = 0
    """Bytes that the server sends until the first request can be made."""

    # Statuses and headers of HTTP.
    test_404_is_told = None
    test_retry_after_is_heard = None

    def slow(self):
        return TcpFault(rate=2_000_000)

    @pytest.fixture
    def direct(self, sshd):
        return sshd.store(sshd.new_folder())

    @pytest.fixture
    def proxied(self, sshd, proxy, direct, read_timeout):
        # A handshake computes; on a busy machine half a second is short.
        store = sshd.store(direct.root, port=proxy.port, connect_timeout=2 * read_timeout, read_timeout=read_timeout)
        if not TestSftpFaults.opened:
            with sshd.store(direct.root, port=proxy.port)._files('Measuring', ''):
                TestSftpFaults.opened = proxy.requests.pop().received
        return ProxiedStore(store, proxy)

    @pytest.mark.parametrize('read_timeout', [0.5])
    @pytest.mark.parametrize('missing', [1, 30, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000])
    def test_a_server_may_fall_silent_at_any_moment(self, proxied, missing):
        proxied.proxy.faults = [TcpFault(stall_after=self.opened - missing)]
        begin = time.monotonic()
        with pytest.raises(TransferError):
            proxied.store.head('x')
        assert time.monotonic() - begin < self.SLOWEST


class TestConnections:
    def test_a_broken_connection_is_replaced_at_the_next_call(self, sshd, proxy):
        store = sshd.store(sshd.new_folder(), port=proxy.port)
        put_bytes(store, 'x', b'1')
        assert read_bytes(store, 'x') == b'1'
        assert len(proxy.requests) == 1
        proxy.reset_all()
        until(
            lambda: not any(session.files.is_usable for session in store._connection.get().idle)
        )  # paramiko has seen it
        assert read_bytes(store, 'x') == b'1'
        assert len(proxy.requests) == 2

    def test_threads_have_connections_of_their_own_up_to_a_number(self, sshd, proxy):
        folder = sshd.new_folder()
        put_bytes(sshd.store(folder), 'x', DATA)
        store = sshd.store(folder, port=proxy.port, extra={'max_connections': 3})
        proxy.faults = [TcpFault(rate=10_000_000)]
        threads = [threading.Thread(target=read_bytes, args=(store, 'x')) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(proxy.requests) == 3

    def test_one_of_them_is_for_what_somebody_waits_for(self, sshd, proxy, tmp_path):
        folder = sshd.new_folder()
        put_bytes(sshd.store(folder), 'x', DATA)
        put_bytes(sshd.store(folder), 'y', b'1')
        store = sshd.store(folder, port=proxy.port, extra={'max_connections': 3})
        slow = TcpFault(rate=100_000)
        proxy.faults = [slow]

        def fetch(key, size, **how):
            with open(tmp_path / threading.current_thread().name, 'w+b', buffering=0) as out:
                assert download(store, key, out, Retry(), size=size, how=Transfer(**how)) == size

        threads = [threading.Thread(target=fetch, args=('x', len(DATA))) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(proxy.requests) >= 2)
        fetch('y', 1, urgent=True)
        assert all(thread.is_alive() for thread in threads)
        assert len(proxy.requests) == 3
        slow.rate = None
        for thread in threads:
            thread.join()
        assert len(proxy.requests) == 3

    def test_a_file_that_cannot_be_written_is_the_callers_error(self, sshd):
        store = sshd.store(sshd.new_folder())
        put_bytes(store, 'x', DATA)
        with pytest.raises(OSError, match='No space left') as caught, open('/dev/full', 'wb', buffering=0) as out:
            store.get('x', out)
        assert not isinstance(caught.value, StorageError)
        assert read_bytes(store, 'x') == DATA

    def test_an_upload_to_a_server_that_takes_nothing_more_is_given_up(self, sshd, proxy):
        folder = sshd.new_folder()
        put_bytes(sshd.store(folder, port=proxy.port), 'x', b'1')
        proxy.faults = [TcpFault(stall_after=proxy.requests[0].received)]
        store = sshd.store(folder, port=proxy.port, read_timeout=0.5)
        begin = time.monotonic()
        with pytest.raises(TransferError):
            put_bytes(store, 'y', os.urandom(32 << 20))
        assert time.monotonic() - begin < 60
        proxy.faults = []
        listed = Retry(attempts=5).call('list', lambda: list(store.list('')))  # the time-out is short for an answer
        assert [info.key for info in listed] == ['x']

    def test_errors_leave_the_connection_as_it_is(self, sshd, proxy):
        store = sshd.store(sshd.new_folder(), port=proxy.port)
        put_bytes(store, 'f/x', b'abc')
        for _ in range(3):
            for key in ('absent', 'no/folder', 'f'):
                with pytest.raises(ObjectNotFoundError):
                    read_bytes(store, key)
            with pytest.raises(ConfigError):
                read_bytes(store, 'f/x', offset=4)
            with pytest.raises(ConfigError):
                store.put('y', io.BytesIO(b''), size=1)
            with pytest.raises(StorageError, match='Failure'):
                store.delete('f')
        assert len(proxy.requests) == 1

    def test_a_forked_child_leaves_its_parents_connection_alone(self, sshd, proxy):
        store = sshd.store(sshd.new_folder(), port=proxy.port)
        put_bytes(store, 'x', DATA)
        for code in ('', 'import gc; gc.collect()'):
            child = os.fork()
            if not child:
                status = 1
                try:
                    exec(code)
                    status = 0 if read_bytes(store, 'x') == DATA else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert read_bytes(store, 'x') == DATA
        assert len(proxy.requests) == 3

    def test_the_process_ends_with_connections_open(self, sshd):
        folder = sshd.new_folder()
        put_bytes(sshd.store(folder), 'x', b'1')
        code = (
            'import os, sys, io\n'
            'from headrace.storage import StoreOptions, open_store\n'
            'url, key, known = sys.argv[1:]\n'
            'store = open_store(url, StoreOptions(extra={"key_file": key, "known_hosts": known}))\n'
            'store.get("x", io.BytesIO())\n'
            'child = os.fork()\n'
            'if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n'
            'store.get("x", io.BytesIO())\n'
        )
        arguments = [sshd.url(folder), str(sshd.key_file), str(sshd.known_hosts)]
        done = subprocess.run([sys.executable, '-c', code, *arguments], timeout=60, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, '')

    def test_a_failure_prints_nothing(self, sshd, proxy):
        code = (
            'import sys, io\n'
            'from headrace.storage import StoreOptions, open_store\n'
            'url, key, known = sys.argv[1:]\n'
            'store = open_store(url, StoreOptions(extra={"key_file": key, "known_hosts": known}))\n'
            'try: store.get("x", io.BytesIO())\n'
            'except OSError as error: print(error)\n'
        )
        proxy.faults = [TcpFault(close_after=0)]
        arguments = [sshd.url('/', port=proxy.port), str(sshd.key_file), str(sshd.known_hosts)]
        done = subprocess.run([sys.executable, '-c', code, *arguments], timeout=60, capture_output=True, text=True)
        assert 'no SSH session' in done.stdout
        assert done.stderr == ''

    def test_a_download_continues_where_it_broke(self, sshd, proxy, tmp_path):
        folder = sshd.new_folder()
        put_bytes(sshd.store(folder), 'x', DATA)
        store = sshd.store(folder, port=proxy.port)
        # Slow enough for the client to have read what came: what it has not is lost with the connection.
        proxy.faults = [TcpFault(close_after=2_000_000, rate=8_000_000, times=1)]
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            download(store, 'x', out, Retry(attempts=2, first_delay=0.01))
        assert (tmp_path / 'out').read_bytes() == DATA
        assert proxy.requests[1].received < len(DATA) - 1_500_000

    def test_an_object_replaced_in_between_is_read_anew(self, sshd, proxy, tmp_path):
        store = sshd.store(sshd.new_folder(), port=proxy.port)
        put_bytes(store, 'x', DATA)
        proxy.reset_all()
        proxy.faults = [TcpFault(close_after=2_000_000, times=1)]
        new = os.urandom(len(DATA) + 1)
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            download(store, 'x', out, Retry(attempts=3, sleep=lambda _: put_bytes(store, 'x', new)))
        assert (tmp_path / 'out').read_bytes() == new

    def test_no_one_listens(self, sshd):
        with pytest.raises(TransferError, match=r'127.0.0.1:9 broke: no connection'):
            read_bytes(sshd.store('/', port=9), 'x')


class TestHostKeys:
    def test_an_unknown_server_is_refused_with_the_command_that_adds_it(self, sshd, home):
        folder = sshd.new_folder()
        put_bytes(sshd.store(folder), 'x', b'1')
        store = open_store(sshd.url(folder), StoreOptions(extra={'key_file': str(sshd.key_file)}))
        with pytest.raises(AccessDeniedError, match=r'ssh-ed25519 SHA256:.* ssh-keyscan -p ') as caught:
            read_bytes(store, 'x')
        command = str(caught.value)[str(caught.value).index('ssh-keyscan') :]
        assert str(home) in command
        subprocess.run(command, shell=True, check=True, capture_output=True)
        assert read_bytes(store, 'x') == b'1'

    def test_another_key_than_the_known_one_is_refused(self, sshd, tmp_path):
        quietly('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', str(tmp_path / 'other'))
        kind, key = (tmp_path / 'other.pub').read_text().split()[:2]
        known = tmp_path / 'known'
        known.write_text(f'[127.0.0.1]:{sshd.port} {kind} {key}\n')
        with pytest.raises(AccessDeniedError, match=r'another host key .* ssh-keygen -R \[127.0.0.1\]:'):
            read_bytes(sshd.store('/', extra={'known_hosts': str(known)}), 'x')

    def test_a_file_of_known_hosts_that_does_not_exist_is_a_configuration_error(self, sshd):
        with pytest.raises(ConfigError, match='known_hosts.*COMPOSER_SFTP_KNOWN_HOSTS_FILE'):
            read_bytes(sshd.store('/', extra={'known_hosts': '/nonexistent'}), 'x')


class TestCredentials:
    @pytest.fixture
    def folder(self, sshd):
        folder = sshd.new_folder()
        put_bytes(sshd.store(folder), 'x', b'1')
        return folder

    @pytest.fixture
    def wrong_key(self, tmp_path):
        quietly('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', str(tmp_path / 'wrong'))
        return tmp_path / 'wrong'

    @pytest.fixture
    def known(self, sshd, monkeypatch):
        monkeypatch.setenv('COMPOSER_SFTP_KNOWN_HOSTS_FILE', str(sshd.known_hosts))

    def test_a_wrong_key_is_named(self, sshd, folder, wrong_key):
        store = sshd.store(folder, extra={'key_file': str(wrong_key)})
        for call in (lambda: read_bytes(store, 'x'), lambda: store.head('x'), lambda: put_bytes(store, 'x', b'')):
            with pytest.raises(AccessDeniedError, match=rf'127.0.0.1:{sshd.port} refused user .*{wrong_key}'):
                call()

    def test_no_key_at_all(self, sshd, folder, known):
        with pytest.raises(AccessDeniedError, match=r'no ssh-agent \(SSH_AUTH_SOCK is not set\)'):
            read_bytes(open_store(sshd.url(folder)), 'x')

    def test_a_key_that_does_not_exist_is_a_configuration_error(self, sshd, folder, known):
        with pytest.raises(ConfigError, match='key_file.*COMPOSER_SFTP_KEY_FILE'):
            read_bytes(sshd.store(folder, extra={'key_file': '/nonexistent'}), 'x')

    def test_mosaicml_streamings_variables(self, sshd, folder, known, monkeypatch):
        monkeypatch.setenv('COMPOSER_SFTP_KEY_FILE', str(sshd.key_file))
        assert read_bytes(open_store(sshd.url(folder)), 'x') == b'1'

    def test_the_default_key(self, sshd, folder, known, home):
        shutil.copy(sshd.key_file, home / '.ssh/id_ed25519')
        assert read_bytes(open_store(sshd.url(folder)), 'x') == b'1'

    def test_the_agents_key(self, sshd, folder, known, monkeypatch, tmp_path):
        agent = str(tmp_path / 'agent')
        monkeypatch.setenv('SSH_AUTH_SOCK', agent)
        process = subprocess.Popen(['ssh-agent', '-D', '-a', agent], stdout=subprocess.DEVNULL)
        try:
            with socket.socket(socket.AF_UNIX) as client:  # its file is there before it listens
                until(lambda: client.connect_ex(agent) == 0)
            with pytest.raises(AccessDeniedError, match='the keys of the ssh-agent'):
                read_bytes(open_store(sshd.url(folder)), 'x')
            quietly('ssh-add', str(sshd.key_file))
            assert read_bytes(open_store(sshd.url(folder)), 'x') == b'1'
        finally:
            process.kill()
            process.wait()

    def test_a_key_with_a_passphrase_has_to_be_in_the_agent(self, sshd, folder, tmp_path):
        locked = tmp_path / 'locked'
        shutil.copy(sshd.key_file, locked)
        locked.chmod(0o600)
        quietly('ssh-keygen', '-q', '-p', '-P', '', '-N', 'secret', '-f', str(locked))
        with pytest.raises(AccessDeniedError, match='passphrase has to be in the ssh-agent'):
            read_bytes(sshd.store(folder, extra={'key_file': str(locked)}), 'x')

    def test_an_alias_of_the_configuration(self, sshd, folder, home):
        (home / '.ssh/config').write_text(
            f'Host store\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {sshd.user}\n'
            f'  IdentityFile {sshd.key_file}\n  IdentitiesOnly yes\n  UserKnownHostsFile {sshd.known_hosts}\n'
        )
        store = open_store(f'sftp://store{folder}')
        assert read_bytes(store, 'x') == b'1'
        assert store.url == f'sftp://store{folder}'

    def test_a_proxy_of_the_configuration_is_refused(self, home):
        (home / '.ssh/config').write_text('Host store\n  ProxyJump gate\n')
        with pytest.raises(ConfigError, match=r"proxyjump for 'store': 'gate'.*ssh -N -L"):
            read_bytes(open_store('sftp://store/x'), 'x')

    def test_a_configuration_that_cannot_be_read(self, home):
        (home / '.ssh/config').write_text('nonsense\n')
        with pytest.raises(ConfigError, match='~/.ssh/config'):
            read_bytes(open_store('sftp://store/x'), 'x')

    def test_a_password(self, monkeypatch, tmp_path):
        """Against a server of paramiko that only authenticates: sshd would need an account with a password."""
        paramiko = pytest.importorskip('paramiko')

        class Server(paramiko.ServerInterface):
            def check_auth_password(self, username, password):
                right = (username, password) == ('someone', 'secret')
                return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED

        with paramiko_server(tmp_path, Server) as (port, known):
            store = open_store(f'sftp://someone@127.0.0.1:{port}/x', StoreOptions(extra={'known_hosts': str(known)}))
            monkeypatch.setenv('HEADRACE_SFTP_PASSWORD', 'wrong-secret')
            with pytest.raises(AccessDeniedError, match='the password of HEADRACE_SFTP_PASSWORD') as caught:
                read_bytes(store, 'x')
            assert 'wrong-secret' not in str(caught.value)
            monkeypatch.setenv('HEADRACE_SFTP_PASSWORD', 'secret')
            with pytest.raises(StorageError, match='has no SFTP for this user'):
                read_bytes(store, 'x')


class TestErrors:
    def test_a_missing_key_says_whether_the_folder_exists(self, sshd):
        store = sshd.store(sshd.new_folder())
        for call in (store.head, lambda key: read_bytes(store, key)):
            with pytest.raises(ObjectNotFoundError, match=f'{store.url}/x: its folder exists'):
                call('x')
        store = sshd.store(f'{sshd.new_folder()}/a/b')
        with pytest.raises(ObjectNotFoundError, match=r'the folder /.*/a does not exist at 127'):
            store.head('x')

    def test_a_server_that_may_only_be_read(self, installed):
        with sftp_server('-R') as server:
            store = server.store(server.new_folder())
            with pytest.raises(AccessDeniedError, match=r'Permission denied.*made with user .* and the key file'):
                put_bytes(store, 'x', b'1')
            assert list(store.list('')) == []

    def test_a_server_that_sends_something_else_than_sftp(self, installed):
        with (
            sftp_server('\nForceCommand echo Welcome to this machine') as server,
            pytest.raises(TransferError, match='do the start-up files of the account'),
        ):
            read_bytes(server.store('/'), 'x')


class TestServerWithLimits:
    """A server that sends less than it is asked for, and whose disk is full after 100,000 bytes of a file."""

    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / 'files'
        folder.mkdir()
        return folder

    @pytest.fixture
    def store(self, folder, tmp_path, monkeypatch):
        paramiko = pytest.importorskip('paramiko')

        class Server(paramiko.ServerInterface):
            def check_auth_password(self, username, password):
                return paramiko.AUTH_SUCCESSFUL

            def check_channel_request(self, kind, chanid):
                return paramiko.OPEN_SUCCEEDED

        class Handle(paramiko.SFTPHandle):
            def __init__(self, file):
                super().__init__()
                self.file = file

            def stat(self):
                return paramiko.SFTPAttributes.from_stat(os.fstat(self.file))

            def read(self, offset, length):
                return os.pread(self.file, min(length, 10_000), offset)

            def write(self, offset, data):
                if offset + len(data) > 100_000:
                    return paramiko.SFTP_FAILURE
                os.pwrite(self.file, data, offset)
                return paramiko.SFTP_OK

            def close(self):
                os.close(self.file)

        class Files(paramiko.SFTPServerInterface):
            def open(self, path, flags, attr):
                return Handle(os.open(path, flags, 0o600))

            def remove(self, path):
                os.remove(path)
                return paramiko.SFTP_OK

        monkeypatch.setenv('HEADRACE_SFTP_PASSWORD', 'any')
        with paramiko_server(tmp_path, Server, sftp=(paramiko.SFTPServer, Files)) as (port, known):
            options = StoreOptions(extra={'known_hosts': str(known)})
            yield open_store(f'sftp://someone@127.0.0.1:{port}{folder}', options)

    def test_short_answers_are_completed(self, folder, store):
        (folder / 'x').write_bytes(DATA)
        assert read_bytes(store, 'x') == DATA
        assert read_bytes(store, 'x', offset=5_000, size=70_001) == DATA[5_000:75_001]

    def test_a_refused_write_fails_the_upload(self, folder, store):
        for size in (100_001, 140_000):
            with pytest.raises(StorageError, match='Failure'):
                put_bytes(store, 'x', DATA[:size])
        assert list(folder.iterdir()) == []


class TestListing:
    def test_more_names_than_one_answer_holds(self, sshd):
        folder = sshd.new_folder()
        keys = sorted(f'{i % 7}/k{i:04d}' for i in range(2500))
        for key in keys:
            (folder / key).parent.mkdir(exist_ok=True)
            (folder / key).write_bytes(b'1')
        assert [info.key for info in sshd.store(folder).list('')] == keys

    def test_links_to_files_are_followed_and_what_is_no_file_is_left_out(self, sshd, caplog):
        folder = sshd.new_folder()
        store = sshd.store(folder)
        put_bytes(store, 'a/x', b'12345')
        (folder / 'link').symlink_to(folder / 'a/x')
        (folder / 'dangling').symlink_to(folder / 'nothing')
        (folder / 'loop').symlink_to(folder)
        os.mkfifo(folder / 'pipe')
        (folder / '.headrace-put-left').write_bytes(b'1')
        assert [(info.key, info.size) for info in store.list('')] == [('a/x', 5), ('link', 5)]
        assert all(f'/{name} is a link to no file' in caplog.text for name in ('dangling', 'loop'))
        assert store.head('link') == next(iter(store.list('link')))
        assert read_bytes(store, 'link') == b'12345'

    def test_a_listing_that_does_not_end_is_refused(self, sshd, monkeypatch):
        paramiko = pytest.importorskip('paramiko')
        told = paramiko.SFTPAttributes()
        told.filename, told.st_mode, told.st_size, told.st_mtime = 'x', 0o100644, 1, 1
        monkeypatch.setattr(paramiko.SFTPClient, 'listdir_iter', lambda client, path: itertools.repeat(told))
        with pytest.raises(StorageError, match="sent 'x' twice.*does not end"):
            list(sshd.store(sshd.new_folder()).list(''))

    def test_nothing_is_left_of_uploads(self, sshd):
        folder = sshd.new_folder()
        store = sshd.store(folder)
        put_bytes(store, 'x', b'1')
        with pytest.raises(ConfigError, match='ended'):
            store.put('x', io.BytesIO(os.urandom(5 << 20)), size=(5 << 20) + 1)
        assert [path.name for path in folder.iterdir()] == ['x']

    def test_uploads_of_killed_processes_are_removed_from_named_folders(self, sshd):
        folder = sshd.new_folder()
        store = sshd.store(folder)
        put_bytes(store, 'a/b/x', b'1')
        for place in ('', 'a', 'a/b'):
            (folder / place / '.headrace-put-left').write_bytes(b'1')
        store.remove_unfinished(['', 'a/b', 'gone'])
        assert [path.relative_to(folder).as_posix() for path in folder.rglob('.*')] == ['a/.headrace-put-left']


class TestUrls:
    @pytest.mark.parametrize(
        ('url', 'expected'),
        [
            ('sftp://host/a/b', ('host', None, None, '/a/b')),
            ('sftp://me@host:2222/a/b/', ('host', 2222, 'me', '/a/b')),
            ('SFTP://me@host/', ('host', None, 'me', '/')),
            ('sftp://me@corp@host/a b?#%20', ('host', None, 'me@corp', '/a b?#%20')),
            ('sftp://[::1]:22/a', ('::1', 22, None, '/a')),
            ('sftp://[::1]/a', ('::1', None, None, '/a')),
        ],
    )
    def test_forms(self, url, expected):
        store = open_store(url)
        assert (store.host, store.port, store.user, store.root) == expected
        assert open_store(store.url).url == store.url

    @pytest.mark.parametrize(
        'url', ['sftp://', 'sftp:///a', 'sftp://host', 'sftp://h:x/a', 'sftp://h:0/a', 'sftp://h:/a']
    )
    def test_bad_ones_are_refused(self, url):
        with pytest.raises(ConfigError, match='names a host and an absolute path'):
            open_store(url)

    def test_a_password_is_refused_and_not_repeated(self):
        with pytest.raises(ConfigError, match='HEADRACE_SFTP_PASSWORD') as caught:
            open_store('sftp://me:secret@host/a')
        assert 'secret' not in str(caught.value)

    @pytest.mark.parametrize(('extra', 'match'), [({'key': 'x'}, 'key_file'), ({'max_connections': 0}, 'from 1')])
    def test_bad_extra_options_are_refused(self, extra, match):
        with pytest.raises(ConfigError, match=match):
            open_store('sftp://h/a', StoreOptions(extra=extra))

    def test_repr(self):
        assert repr(SftpStore('h', '/p/')) == "SftpStore('sftp://h/p')"
