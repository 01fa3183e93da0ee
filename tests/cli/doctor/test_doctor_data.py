"""Stores and cache folders."""

from __future__ import annotations

import json
import shutil
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest

from headrace.cli.doctor import Place, check_data, places_of
from headrace.cli.doctor import data as doctor_data
from headrace.inspect.content import open_content
from headrace.mixing import load_config
from headrace.storage import StoreOptions
from tests.support.datasets.answers import levels


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

    @pytest.mark.parametrize(
        ('stream', 'count'),
        [
            ({'split': 'train'}, 1),
            ({'format': 'jsonl', 'split': 'test'}, 2),
            ({'format': 'csv', 'format_options': {'delimiter': ';', 'header': False}}, 4),
            ({}, 0),
        ],
    )
    def test_data_are_read_as_the_stream_reads_them(self, tmp_path, stream, count):
        (tmp_path / 'data').mkdir()
        for name, text in (('train.jsonl', '{"a": 1}\n'), ('test.jsonl', '{"a": 1}\n' * 2), ('all.csv', '1;2\n' * 4)):
            (tmp_path / 'data' / name).write_text(text)
        if stream == {'split': 'train'}:
            (tmp_path / 'data' / 'all.csv').unlink()
        config = tmp_path / 'x.yaml'
        train = {'remote': str(tmp_path / 'data'), 'local': str(tmp_path / 'cache'), **stream}
        config.write_text(json.dumps({'global_batch_size': 1, 'train': train}))
        found = list(check_data(places_of(load_config(config))))
        assert (f', {count} sample' in found[0].text) if count else (found[0].level == 'problem')

    def test_this_node_among_those_that_share_their_caches(self, remote, tmp_path, monkeypatch):
        config = tmp_path / 'x.yaml'
        train = {'remote': remote, 'local': str(tmp_path / 'cache'), 'peers': {'hosts': ['127.0.0.1', '127.0.0.2']}}
        config.write_text(json.dumps({'global_batch_size': 1, 'train': train}))
        loaded = load_config(config).train
        monkeypatch.setenv('HEADRACE_PEERS_TOKEN', 'x' * 16)
        found = list(check_data([], train=loaded))
        assert [(one.level, one.text) for one in found] == [('ok', 'this node would serve on 127.0.0.1:7207 to 1 peer')]
        monkeypatch.delenv('HEADRACE_PEERS_TOKEN')
        (finding,) = check_data([], train=loaded)
        assert finding.level == 'problem'
        assert 'in the environment variable HEADRACE_PEERS_TOKEN' in finding.text
        monkeypatch.setenv('HEADRACE_PEERS_TOKEN', 'x' * 16)
        with monkeypatch.context() as patch:
            patch.setattr(doctor_data.socket, 'create_connection', Mock(side_effect=[Mock(), TimeoutError]))
            (finding,) = check_data([], train=loaded)
        assert (finding.level, finding.text) == ('problem', 'this node cannot connect to 127.0.0.2:7207')
        train['peers'] = {'interface': '127.0.0.2'}
        config.write_text(json.dumps({'global_batch_size': 1, 'train': train}))
        (finding,) = check_data([], train=load_config(config).train)
        assert finding.text == 'this node would serve on 127.0.0.2:7207 to those of the process group'
        train['peers']['token_env'] = 'RUN'
        config.write_text(json.dumps({'global_batch_size': 1, 'train': train}))
        (finding,) = check_data([], train=load_config(config).train)
        assert 'in the environment variable RUN' in finding.text

    @pytest.mark.parametrize('hosts', [['127.0.0.1', 'no-such-node.invalid'], ['no-such-node.invalid']])
    def test_a_host_without_an_address(self, remote, tmp_path, monkeypatch, hosts):
        monkeypatch.setenv('HEADRACE_PEERS_TOKEN', 'x' * 16)
        train = {'remote': remote, 'local': str(tmp_path / 'cache'), 'peers': {'hosts': hosts}}
        config = load_config({'global_batch_size': 1, 'train': train}).train
        (finding,) = check_data([], train=config)
        assert finding.level == 'problem'
        if len(hosts) > 1:
            assert finding.text == 'no name server knows an address of no-such-node.invalid'
            assert finding.fix

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
        found = list(check_data([place]))
        assert levels(found) == ['ok', 'ok', 'ok']
        assert found[1].text.endswith(', and needs no more room')
        for shard in [*(tmp_path / 'cache').glob('shard*')][1:]:
            shard.unlink()
        monkeypatch.setattr(doctor_data.shutil, 'disk_usage', lambda _: type('Usage', (), {'free': 1 << 20}))
        assert ' more of 1 MiB that are free' in list(check_data([place]))[1].text

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
