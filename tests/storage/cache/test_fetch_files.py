"""Names of the files in `.headrace`: others stay."""

from __future__ import annotations

from tests.support.stores.control_files import LOCK, PART
from tests.support.stores.shards import SIZE, cache_of, make_remote, names


def test_names_that_headrace_does_not_make_stay(tmp_path):
    remote = make_remote(tmp_path / 'remote')
    state = tmp_path / 'cache/.headrace'
    state.mkdir(parents=True)
    foreign = [
        'thesis.tex',
        'ab.lock',
        'ab.0.raw',
        f'{"ab" * 16}.0.raw',
        f'{"AB" * 16}.lock',
        f'{"ab" * 16}.mds',
        'x.y',
    ]
    for name in [*foreign, LOCK, PART]:
        (state / name).write_text('x')
    cache_of(remote, tmp_path / 'cache', limit=2 * SIZE).fetch(remote.entries[0])
    assert names(state) == sorted(foreign)
