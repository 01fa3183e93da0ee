"""`headrace doctor` finds what a run would stumble over, and says what to change."""

from __future__ import annotations

import json

from headrace.cli import main


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
        assert lines[-1].split(':')[1].startswith(' 1 problem')

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

    def test_a_file_of_data_is_no_configuration(self, tmp_path, capsys):
        (tmp_path / 'a.csv').write_text('a,b\n1,2\n')
        assert main(['doctor', str(tmp_path / 'a.csv'), '--json']) == 0
        found = json.loads(capsys.readouterr().out)
        assert [each['text'][:14] for each in found if each['what'] == 'data'] == ['csv, 1 sample ']
        assert main(['bench', str(tmp_path / 'a.csv'), '--batch-size', '1', '--seconds', '0.1', '--workers', '0']) == 0
