"""One index of many parts: MosaicML Streaming's arguments and result, and errors that name parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace import JSONWriter, MDSWriter, StreamingDataset
from headrace.convert import kept_indexes, merge_index
from headrace.errors import ArgumentError, ConfigError, FormatError, ObjectNotFoundError
from headrace.inspect import verify
from headrace.storage import StoreOptions, register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs.killed_children import in_a_child
from tests.support.servers.s3 import S3Server


def write_part(folder, ids, *, columns=None, compression=None):
    columns = columns or {'id': 'int'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=300, compression=compression) as writer:
        for i in ids:
            writer.write({name: i if encoding == 'int' else str(i) for name, encoding in columns.items()})


def make_parts(root, count=3, rows=40):
    for part in range(count):
        write_part(root / f'part-{part:05}', range(part * rows, (part + 1) * rows), compression='zstd')


def ids_of(root, tmp_path, name='cache'):
    dataset = StreamingDataset(remote=str(root), local=str(tmp_path / name), batch_size=1)
    return [int(sample['id']) for sample in dataset]


def index_of(root):
    return json.loads((root / 'index.json').read_text())


def test_a_folder_of_parts_is_read_as_one_dataset(tmp_path: Path) -> None:
    make_parts(tmp_path / 'data')
    merge_index(str(tmp_path / 'data'))

    assert ids_of(tmp_path / 'data', tmp_path) == list(range(120))


def test_parts_behind_links_are_merged_and_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    make_parts(tmp_path / 'disk')
    (tmp_path / 'data').mkdir()
    for number in range(3):
        (tmp_path / 'data' / f'{number}').symlink_to(tmp_path / 'disk' / f'part-{number:05}')
    merge_index(str(tmp_path / 'data'))
    assert ids_of(tmp_path / 'data', tmp_path) == list(range(120))
    assert verify(tmp_path / 'data', fast=True).bad == ()

    (tmp_path / 'data' / '2').unlink()
    (tmp_path / 'data' / '2').symlink_to(tmp_path / 'unmounted')
    with pytest.raises(ObjectNotFoundError, match='data/2: it is a link to'):
        merge_index(str(tmp_path / 'data'))
    assert len(verify(tmp_path / 'data', fast=True, jobs=1).bad) == len(
        index_of(tmp_path / 'disk' / 'part-00002')['shards']
    )


@pytest.mark.parametrize('form', ['root', 'list', 'pairs'])
def test_the_index_is_the_one_of_mosaicml_streaming(tmp_path: Path, form: str) -> None:
    theirs = pytest.importorskip('streaming.base.util').merge_index
    indexes = {}
    for name, merge in {'ours': merge_index, 'theirs': theirs}.items():
        root = tmp_path / name
        make_parts(root)
        files = [str(root / f'part-{part:05}' / 'index.json') for part in (2, 0, 1)]
        if form == 'root':
            merge(str(root), keep_local=True)
        elif form == 'list':
            merge([*files, files[0]], str(root))
        else:
            merge([(file, f's3://none/{file}') for file in files], str(root), True, 60)
        indexes[name] = index_of(root)

    assert indexes['ours'] == indexes['theirs']
    assert list(indexes['ours']) == list(indexes['theirs'])


def test_mosaicml_streaming_reads_shards_with_costs(tmp_path: Path) -> None:
    theirs = pytest.importorskip('streaming.base.format').reader_from_json
    with MDSWriter(out=str(tmp_path), columns={'text': 'str'}, size_limit=300, cost='text') as writer:
        for number in range(40):
            writer.write({'text': 'x' * number})
    shards = [theirs(str(tmp_path), None, entry) for entry in index_of(tmp_path)['shards']]
    found = [shard[number] for shard in shards for number in range(shard.samples)]
    assert found == [{'text': 'x' * number} for number in range(40)]


def test_parts_at_any_depth_and_jsonl_shards(tmp_path: Path) -> None:
    # MosaicML Streaming loses the upper folder of the first, and reads the second's shards as indexes.
    root = tmp_path / 'data'
    for part, folder in enumerate(['a/deep/x', 'a/y', 'b-c', 'b/z']):
        with JSONWriter(out=str(root / folder), columns={'id': 'int'}) as writer:
            for i in range(10):
                writer.write({'id': part * 10 + i})
    merge_index(root)
    merge_index(root)  # the merged index itself is no part

    assert [shard['raw_data']['basename'].rpartition('/')[0] for shard in index_of(root)['shards']] == [
        'a/deep/x', 'a/y', 'b-c', 'b/z',
    ]  # fmt: skip
    assert ids_of(root, tmp_path) == list(range(40))


def test_an_index_that_was_merged_before_counts_once(tmp_path: Path) -> None:
    root = tmp_path / 'data'
    make_parts(root / 'first')
    make_parts(root / 'second', count=1)
    merge_index(root / 'first')
    merge_index(root)

    assert ids_of(root, tmp_path) == [*range(120), *range(40)]


def test_shards_of_the_root_are_a_part(tmp_path: Path) -> None:
    root = tmp_path / 'data'
    write_part(root, range(40))
    first = (root / 'index.json').read_bytes()
    write_part(root / 'day2', range(40, 60))
    merge_index(root)
    merged = (root / 'index.json').read_bytes()
    merge_index(root)  # again: the same
    assert (root / 'index.json').read_bytes() == merged
    assert (root / 'index.00001.json').read_bytes() == first
    assert sorted(path.name for path in root.glob('index.*')) == ['index.00001.json', 'index.json']
    assert ids_of(root, tmp_path, 'two') == list(range(60))

    write_part(root / 'day3', range(60, 70))
    merge_index(root)
    assert (root / 'index.00002.json').read_bytes() == merged
    assert ids_of(root, tmp_path, 'three') == list(range(70))


def test_a_part_that_grew_counts_once(tmp_path: Path) -> None:
    root = tmp_path / 'data'
    write_part(root, range(20))
    write_part(root / 'day2', range(20, 40))
    merge_index(root)
    with MDSWriter(out=str(root / 'day2'), columns={'id': 'int'}, append=True) as writer:
        writer.write({'id': 40})
    merge_index(root)
    assert ids_of(root, tmp_path) == list(range(41))


def test_a_merge_after_an_append_to_the_merged_dataset(tmp_path: Path) -> None:
    root = tmp_path / 'data'
    make_parts(root, count=2)
    merge_index(root)
    with MDSWriter(out=str(root), columns={'id': 'int'}, append=True) as writer:
        writer.write({'id': 1000})
    merge_index(root)
    assert sorted(ids_of(root, tmp_path)) == [*range(80), 1000]


def test_a_list_must_not_leave_out_the_shards_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / 'data'
    write_part(root, range(20))
    write_part(root / 'day2', range(20, 40))
    before = (root / 'index.json').read_bytes()
    with pytest.raises(ConfigError, match=r'leaves out 2 shards with 20 samples.*Name .*data/index\.json as a part'):
        merge_index([root / 'day2' / 'index.json'], root)
    assert (root / 'index.json').read_bytes() == before
    merge_index([root / 'day2' / 'index.json', root / 'index.json'], root)
    assert ids_of(root, tmp_path) == [*range(20, 40), *range(20)]


def test_what_a_merge_leaves_out_is_said(tmp_path: Path) -> None:
    root = tmp_path / 'data'
    make_parts(root)
    merge_index(root)
    shutil.rmtree(root / 'part-00001')
    with pytest.warns(UserWarning, match=r'shards with 40 samples, such as part-00001.*whose files are gone'):
        merge_index(root)
    assert ids_of(root, tmp_path, 'two') == [*range(40), *range(80, 120)]
    with pytest.warns(UserWarning, match='40 samples, such as part-00002.*no part of the list'):
        merge_index([root / 'part-00000' / 'index.json'], root)
    assert ids_of(root, tmp_path, 'one') == list(range(40))
    assert len(list(root.glob('index.*.json'))) == 2


def test_a_part_without_an_index_is_said(tmp_path: Path) -> None:
    root = tmp_path / 'data'
    make_parts(root)
    (root / 'part-00001' / 'index.json').unlink()
    with pytest.warns(UserWarning, match='the shards of 1 folder without an index.json, such as part-00001'):
        merge_index(root)
    assert ids_of(root, tmp_path) == [*range(40), *range(80, 120)]


def test_an_unfinished_dataset_is_not_merged(tmp_path: Path) -> None:
    root = tmp_path / 'data'
    write_part(root, range(20))
    write_part(root / 'day2', range(20))
    writer = MDSWriter(out=str(root), columns={'id': 'int'}, append=True)
    writer.write({'id': 20})
    with pytest.raises(FileExistsError, match='still being written'):
        merge_index(root)
    writer.finish()
    merge_index(root)
    assert ids_of(root, tmp_path) == [*range(21), *range(20)]


def test_shards_of_the_root_must_fit_the_parts(tmp_path: Path) -> None:
    write_part(tmp_path, range(3))
    write_part(tmp_path / 'b', range(3), columns={'other': 'str'})
    before = (tmp_path / 'index.json').read_bytes()
    with pytest.raises(ConfigError, match='column .* is .* in .*index.json'):
        merge_index(tmp_path)
    assert (tmp_path / 'index.json').read_bytes() == before


def test_empty_parts_have_no_shards(tmp_path: Path) -> None:
    make_parts(tmp_path / 'data', count=2)
    write_part(tmp_path / 'data' / 'part-00000-empty', [])
    merge_index(tmp_path / 'data')

    assert ids_of(tmp_path / 'data', tmp_path) == list(range(80))


@pytest.mark.parametrize('name', ['id', 'other'])
def test_columns_must_fit(tmp_path: Path, name: str) -> None:
    write_part(tmp_path / 'a', range(3))
    write_part(tmp_path / 'b', range(3), columns={name: 'str'})

    with pytest.raises(
        ConfigError, match=r"column 'id' is int64 in .*a/index.json and (str|missing) in .*b/index.json"
    ):
        merge_index(tmp_path)
    assert not (tmp_path / 'index.json').exists()


def test_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    files = []
    for parent in ('x', 'y'):
        write_part(tmp_path / parent / 'part', range(3))
        files.append(tmp_path / parent / 'part' / 'index.json')

    with pytest.raises(ConfigError, match=r'both have .part/shard\.00000\.mds'):
        merge_index(files, tmp_path / 'out')


def test_missing_and_damaged_indexes_are_named(tmp_path: Path) -> None:
    make_parts(tmp_path / 'data', count=1)
    with pytest.raises(FileNotFoundError, match=r'absent/index\.json'):
        merge_index([str(tmp_path / 'data/part-00000/index.json'), str(tmp_path / 'absent/index.json')], str(tmp_path))
    with pytest.raises(ObjectNotFoundError, match='no index.json is in a folder below'):
        merge_index(tmp_path / 'data' / 'part-00000')
    (tmp_path / 'data/part-00000/index.json').write_text('{"version": 2, "shards": [')
    with pytest.raises(FormatError, match=r'part-00000/index\.json'):
        merge_index(tmp_path / 'data')


@pytest.mark.parametrize(
    ('args', 'kwargs'),
    [((), {}), (([],), {}), (('a', True, 60, 'more'), {}), (('a',), {'unknown': 1}), (('a',), {'out': 'b'})],
)
def test_wrong_arguments(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match='Invalid arguments to merge_index'):
        merge_index(*args, **kwargs)


@pytest.mark.parametrize('args', [([], 'out'), ('',), (('a', ''),), (7,)])
def test_wrong_values(args: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError, match='merge_index'):
        merge_index(*args)


def test_keep_local_needs_a_url(tmp_path: Path) -> None:
    make_parts(tmp_path / 'data', count=1)
    with pytest.raises(ConfigError, match='keep_local'):
        merge_index(tmp_path / 'data', keep_local=False)
    assert (tmp_path / 'data' / 'part-00000' / 'shard.00000.mds.zstd').exists()


@pytest.mark.parametrize('keep_local', [True, False])
def test_a_folder_and_a_url(tmp_path: Path, keep_local: bool, own_stores: None) -> None:
    """Indexes of the folder are taken before the URL's, which only has the others."""
    remote, local = tmp_path / 'remote', tmp_path / 'local'
    read: list[str] = []

    class CountingStore(LocalStore):
        def get(self, key, out, **options):
            read.append(key)
            return super().get(key, out, **options)

    register_store('counted', lambda url, options: CountingStore(url.removeprefix('counted://')))
    make_parts(remote)
    shutil.copytree(remote / 'part-00001', local / 'part-00001')
    merge_index((str(local), f'counted://{remote}'), keep_local=keep_local)

    assert sorted(key for key in read if '/' in key) == ['part-00000/index.json', 'part-00002/index.json']
    assert (local / 'index.json').exists() == keep_local
    assert ids_of(remote, tmp_path) == list(range(120))


@pytest.mark.s3
def test_s3_with_a_hundred_parts(tmp_path: Path, s3_server: S3Server) -> None:
    make_parts(tmp_path / 'data', count=1)
    bucket = s3_server.new_bucket()
    client = s3_server.client()
    index = (tmp_path / 'data' / 'part-00000' / 'index.json').read_bytes()
    for part in range(100):
        client.put_object(Bucket=bucket, Key=f'data/part-{part:05}/index.json', Body=index)
    merge_index(f's3://{bucket}/data', store_options=StoreOptions())
    by_root = client.get_object(Bucket=bucket, Key='data/index.json')['Body'].read()
    merge_index([f's3://{bucket}/data/part-{part:05}/index.json' for part in range(100)], f's3://{bucket}/data')

    assert client.get_object(Bucket=bucket, Key='data/index.json')['Body'].read() == by_root
    assert len({shard['zip_data']['basename'] for shard in json.loads(by_root)['shards']}) >= 100


@pytest.mark.s3
def test_the_root_of_a_bucket_is_a_part(tmp_path: Path, s3_server: S3Server) -> None:
    bucket = s3_server.new_bucket()
    url = f's3://{bucket}/data'
    for part, ids in (('', range(30)), ('/day2', range(30, 40))):
        with MDSWriter(out=url + part, columns={'id': 'int'}) as writer:
            for i in ids:
                writer.write({'id': i})
    merge_index((str(tmp_path / 'folder'), url))
    assert ids_of(url, tmp_path) == list(range(40))
    assert [kept.samples for kept in kept_indexes(url)] == [30]
    assert index_of(tmp_path / 'folder')['shards'][0]['samples'] == 30


def test_a_folder_and_a_url_with_different_shards(tmp_path: Path) -> None:
    write_part(tmp_path / 'a', range(5))
    write_part(tmp_path / 'b', range(7))
    write_part(tmp_path / 'b' / 'day2', range(5))
    with pytest.raises(ConfigError, match='differ in shards that no part lists'):
        merge_index((str(tmp_path / 'a'), f'file://{tmp_path}/b'))


def test_a_list_of_folder_and_url(tmp_path: Path) -> None:
    for root in (tmp_path / 'a', tmp_path / 'b'):
        make_parts(root, count=2)
    merge_index(out=[str(tmp_path / 'a'), f'file://{tmp_path}/b'])
    assert ids_of(tmp_path / 'a', tmp_path) == list(range(80))
    assert index_of(tmp_path / 'b') == index_of(tmp_path / 'a')


def test_a_killed_merge_leaves_nothing_behind_the_next_one(tmp_path: Path) -> None:
    for part in range(2):
        with MDSWriter(out=str(tmp_path / f'part{part}'), columns={'id': 'int'}) as writer:
            writer.write({'id': part})
    _, steps = in_a_child(lambda: merge_index(tmp_path), 0, str(tmp_path))
    (tmp_path / 'index.json').unlink()
    for step in range(1, steps + 1):
        in_a_child(lambda: merge_index(tmp_path), step, str(tmp_path))
        merge_index(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ['index.json', 'part0', 'part1']
        (tmp_path / 'index.json').unlink()
