"""`headrace doctor` finds what a run would stumble over, and says what to change."""

from __future__ import annotations

import json
import shutil
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.doctor import Place, check_data, check_launcher, check_machine, check_versions, machine
from headrace.doctor import data as doctor_data
from headrace.inspect.content import open_content
from headrace.storage import StoreOptions, register_store
from headrace.storage.stores.local import LocalStore


def levels(findings, what=None):
    return [finding.level for finding in findings if what in (None, finding.what)]


class TestVersions:
    def test_what_the_tests_run_with_is_right(self):
        findings = list(check_versions())
        assert {'python', 'torch', 'numpy'} <= {finding.what for finding in findings}
        assert set(levels(findings)) == {'ok'}

    @pytest.mark.parametrize(
        ('installed', 'level', 'text'),
        [
            ({'torch': '2.5.1'}, 'problem', '2.5.1 is installed, headrace wants >=2.6'),
            ({'torch': '2.13.0+cpu'}, 'ok', '2.13.0+cpu'),
            ({'torch': '2.13.0', 'mosaicml': '0.32.1'}, 'problem', '2.13.0 is installed, headrace wants <2.7.1,>=2.6'),
            ({}, 'problem', 'is not installed'),
        ],
    )
    def test_a_range_holds_where_its_extra_is_used(self, monkeypatch, installed, level, text):
        def version(name):
            if name not in installed:
                raise metadata.PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(metadata, 'version', version)
        (torch,) = [finding for finding in check_versions() if finding.what == 'torch']
        assert (torch.level, torch.text) == (level, text)


class TestLauncher:
    @pytest.mark.parametrize(
        ('environ', 'level', 'text'),
        [
            ({}, 'ok', 'rank 0 of 1 on 1 node(s)'),
            ({'RANK': '3', 'WORLD_SIZE': '8', 'LOCAL_WORLD_SIZE': '4'}, 'ok', 'rank 3 of 8 on 2 node(s)'),
            ({'RANK': '3'}, 'problem', 'RANK is set and WORLD_SIZE is not'),
            ({'RANK': '3', 'WORLD_SIZE': 'many'}, 'problem', 'WORLD_SIZE must hold a whole number'),
            ({'SLURM_JOB_NUM_NODES': '4'}, 'note', 'in a SLURM job of 4 nodes'),
        ],
    )
    def test_variables(self, environ, level, text):
        (finding,) = check_launcher(environ)
        assert finding.level == level
        assert text in finding.text


class TestMachine:
    def test_few_descriptors_are_noted(self, monkeypatch):
        import resource

        monkeypatch.setattr(resource, 'getrlimit', lambda _: (1024, 524288))
        (finding,) = [finding for finding in check_machine() if finding.what == 'open files']
        assert (finding.level, finding.fix) == ('note', 'ulimit -n 524288, in the job script')

    def test_more_processes_than_processors_are_noted(self):
        assert levels(check_machine(workers=1000, ranks=8), 'processors') == ['note']
        assert levels(check_machine(), 'processors') == ['ok']

    def test_little_shared_memory_is_noted(self, monkeypatch, tmp_path):
        monkeypatch.setattr(machine, 'SHARED_MEMORY', tmp_path)
        monkeypatch.setattr(machine, 'LITTLE_SHARED_MEMORY', 1 << 60)
        assert levels(check_machine(), 'shared memory') == ['note']
        monkeypatch.setattr(machine, 'SHARED_MEMORY', tmp_path / 'absent')
        assert levels(check_machine(), 'shared memory') == []


@pytest.fixture
def remote(make_dataset, own_stores) -> str:
    """A dataset in a store that is no folder."""
    register_store('far', lambda url, _options: LocalStore(url.removeprefix('far://')))
    return f'far://{make_dataset()}'


class TestData:
    def test_a_store_and_its_cache(self, remote, tmp_path):
        ticks = iter(range(100))
        found = list(check_data([Place('a', remote, tmp_path / 'cache')], clock=lambda: next(ticks)))
        assert levels(found) == ['ok'] * 3
        assert found[0].text.startswith('mds, 100 samples in 5 shards, ')
        assert found[1].text.startswith(f'the cache {tmp_path / "cache"} takes ')
        assert found[2].text.startswith('answers in 1000 ms, ')
        assert not (tmp_path / 'cache').exists()

    def test_a_store_that_cannot_be_read(self, tmp_path):
        (finding,) = check_data([Place('a', str(tmp_path / 'absent'))])
        assert finding.level == 'problem'
        assert f'{tmp_path / "absent"} cannot be read' in finding.text

    def test_a_full_disk(self, remote, tmp_path, monkeypatch):
        full = type('Usage', (), {'free': 10})
        monkeypatch.setattr(doctor_data.shutil, 'disk_usage', lambda _: full)
        found = list(check_data([Place('a', remote, tmp_path / 'a'), Place('b', remote, tmp_path / 'b', limit=10)]))
        assert levels(found, 'a') == ['ok', 'problem', 'ok']
        assert levels(found, 'b') == ['ok', 'ok', 'ok']

    def test_a_cache_that_is_full_needs_no_room(self, remote, tmp_path, monkeypatch):
        monkeypatch.setattr(doctor_data.shutil, 'disk_usage', lambda _: type('Usage', (), {'free': 0}))
        place = Place('a', remote, tmp_path / 'cache')
        assert levels(check_data([place])) == ['ok', 'problem', 'ok']
        shutil.copytree(remote.removeprefix('far://'), tmp_path / 'cache')
        assert levels(check_data([place])) == ['ok', 'ok', 'ok']

    @pytest.mark.parametrize(('limit', 'level'), [(None, 'problem'), (1000, 'ok')])
    def test_caches_share_a_disk(self, remote, tmp_path, monkeypatch, limit, level):
        total = int(open_content(remote, StoreOptions()).shards.raw_bytes().sum())
        assert total > 1000
        free = total + 1 if limit is None else limit
        monkeypatch.setattr(doctor_data.shutil, 'disk_usage', lambda _: type('Usage', (), {'free': free}))
        places = [Place(name, remote, tmp_path / name, limit=limit) for name in 'ab']
        found = list(check_data(places))
        assert levels(found, 'a') == ['ok', 'ok', 'ok']
        assert levels(found, 'b') == ['ok', level, 'ok']

    def test_a_folder_on_the_network(self, remote, tmp_path, monkeypatch):
        monkeypatch.setattr(doctor_data, 'file_system', lambda _: 'nfs4')
        assert levels(check_data([Place('a', remote, tmp_path)])) == ['ok', 'ok', 'note', 'ok']

    def test_a_folder_that_is_a_file(self, remote, tmp_path):
        (tmp_path / 'file').touch()
        found = list(check_data([Place('a', remote, tmp_path / 'file')]))
        assert levels(found) == ['ok', 'problem', 'ok']

    @pytest.mark.parametrize(('seconds', 'level'), [(0, 'ok'), (300, 'note'), (-86400, 'problem'), (None, None)])
    def test_the_clock_is_compared_with_a_servers(self, remote, seconds, level, monkeypatch):
        monkeypatch.setattr(doctor_data.time, 'time', lambda: 1e9)

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.send_response_only(403)
                if seconds is not None:
                    self.send_header('Date', formatdate(1e9 + seconds, usegmt=True))
                self.end_headers()

            def log_message(self, *_):
                pass

        with ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
            threading.Thread(target=server.serve_forever).start()
            options = StoreOptions(endpoint_url=f'http://127.0.0.1:{server.server_port}')
            found = list(check_data([Place('a', remote, options=options)] * 2))
            server.shutdown()
        assert levels(found, 'clock') == ([] if level is None else [level])

    def test_a_folder_of_the_system(self):
        assert doctor_data.file_system(Path('/proc')) == 'proc'


class TestCommand:
    def test_a_configuration(self, remote, tmp_path, capsys):
        path = tmp_path / 'train.yaml'
        path.write_text(
            f'global_batch_size: 8\ntrain: {{streams: {{x: {{remote: "{remote}", local: {tmp_path}/x}}, '
            f'y: {{local: {tmp_path}/absent}}}}}}\n'
        )
        assert main(['doctor', str(path)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith('ok      x: mds, 100 samples') for line in lines)
        assert any(line.startswith(f'PROBLEM y: {tmp_path}/absent cannot be read') for line in lines)
        assert lines[-1].split(':')[1].startswith(' 1 problem(s)')

    def test_nodes_that_download_the_same_shards(self, remote, tmp_path, capsys):
        path = tmp_path / 'train.yaml'
        path.write_text(f'global_batch_size: 8\ntrain: {{remote: "{remote}", local: {tmp_path}/x, shuffle: true}}\n')
        parts = 'train.num_canonical_nodes=2'
        for more, noted in ([], False), (['--nodes', '2', parts], False), (['--nodes', '2'], True):
            main(['doctor', str(path), *more])
            shown = capsys.readouterr().out
            assert ('2 of 2 nodes download each shard' in shown) == noted
            assert ('-> set `num_canonical_nodes: 2` in a new run' in shown) == noted

    def test_a_dataset_as_json(self, make_dataset, capsys):
        assert main(['doctor', str(make_dataset()), '--json']) == 0
        found = json.loads(capsys.readouterr().out)
        assert [each['text'][:16] for each in found if each['what'] == 'data'] == ['mds, 100 samples']
