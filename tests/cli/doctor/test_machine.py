"""The launcher's variables, and the limits of the machine."""

from __future__ import annotations

from importlib import metadata

import pytest

from headrace.cli.doctor import check_launcher, check_machine, check_versions, machine
from tests.support.datasets.answers import levels


class TestLauncher:
    @pytest.mark.parametrize(
        ('environ', 'level', 'text'),
        [
            ({}, 'ok', 'rank 0 of 1 on 1 node'),
            ({'RANK': '3', 'WORLD_SIZE': '8', 'LOCAL_WORLD_SIZE': '4'}, 'ok', 'rank 3 of 8 on 2 nodes'),
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

    def test_a_processor_for_each_worker_is_enough(self, monkeypatch):
        monkeypatch.setattr('os.sched_getaffinity', lambda _: set(range(8)))
        for workers, ranks, level in ((8, 1, 'ok'), (4, 2, 'ok'), (0, 8, 'ok'), (9, 1, 'note'), (3, 4, 'note')):
            (finding,) = [one for one in check_machine(workers=workers, ranks=ranks) if one.what == 'processors']
            assert finding.level == level
            if level == 'note':
                assert f'`num_workers: {8 // ranks}` at most' in finding.fix
                assert 'headrace bench' in finding.fix

    def test_the_fix_for_few_processors_names_workers_only_if_there_are_some(self):
        fixes = [
            [finding.fix for finding in check_machine(workers=workers, ranks=10_000) if finding.what == 'processors']
            for workers in (0, 2)
        ]
        assert [['num_workers' in str(fix) for fix in of_run] for of_run in fixes] == [[False], [True]]

    def test_little_shared_memory_is_noted(self, monkeypatch, tmp_path):
        monkeypatch.setattr(machine, 'SHARED_MEMORY', tmp_path)
        monkeypatch.setattr(machine, 'LITTLE_SHARED_MEMORY', 1 << 60)
        assert levels(check_machine(), 'shared memory') == ['note']
        monkeypatch.setattr(machine, 'SHARED_MEMORY', tmp_path / 'absent')
        assert levels(check_machine(), 'shared memory') == []


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
