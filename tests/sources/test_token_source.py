"""Streams of tokens, read as users read them: plain, packed, mixed with other formats, resumed and converted."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.config.load import load_config
from headrace.errors import FormatError
from headrace.mixing import build_loader
from headrace.packing import PackedDataset, Packing
from headrace.sources.token_source import load_tokens
from headrace.testing.oracle import World, check_resume
from tests.support.sources import token_files
from tests.support.sources.converted import convert
from tests.support.sources.sources_to_convert import rows_of

WIDTH = 4


def arrays(first: int, count: int = 60) -> list[list[int]]:
    """Samples of one length, with different first tokens."""
    return [[first + number, 1, 2, 3] for number in range(count)]


def documents(first: int, count: int = 40) -> list[list[int]]:
    """Documents whose tokens tell which one they are of."""
    return [[first + number] * (1 + 7 * number % 19) for number in range(count)]


def put(folder: Path, objects: dict[str, bytes]) -> str:
    folder.mkdir()
    for name, data in objects.items():
        (folder / name).write_bytes(data)
    return str(folder)


def megatron(folder: Path, found: list[list[int]], dtype: str = 'uint16') -> str:
    data, idx = token_files.megatron([[document] for document in found], dtype)
    return put(folder, {'corpus_text_document.bin': data, 'corpus_text_document.idx': idx})


def npy(folder: Path, found: list[list[int]], dtype: str) -> str:
    out = io.BytesIO()
    np.save(out, np.array(found, dtype))
    return put(folder, {'a.npy': out.getvalue()})


def jsonl(folder: Path, found: list[list[int]]) -> str:
    return put(folder, {'a.jsonl': ''.join(f'{{"tokens": {tokens}}}\n' for tokens in found).encode()})


def mds(folder: Path, found: list[list[int]]) -> str:
    with MDSWriter(out=str(folder), columns={'tokens': f'ndarray:int32:{WIDTH}'}) as writer:
        for tokens in found:
            writer.write({'tokens': np.array(tokens, np.int32)})
    return str(folder)


def test_documents_through_s3(tmp_path: Path, s3_server: Any) -> None:
    bucket, client, found = s3_server.new_bucket(), s3_server.client(), documents(1000)
    folder = Path(megatron(tmp_path / 'data', found))
    for path in folder.iterdir():
        client.upload_file(str(path), bucket, f'corpus/{path.name}')
    for _ in range(2):  # the second time from the cache
        dataset = StreamingDataset(remote=f's3://{bucket}/corpus', local=str(tmp_path / 'cache'), batch_size=1)
        assert [dataset[number]['tokens'].tolist() for number in range(len(dataset))] == found
        assert dataset[0]['tokens'].dtype == np.uint16


class WithIds(StreamingDataset):
    """The first token of a sample is its id."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        sample = super().get_item(sample_id, retry)
        return {**sample, 'id': int(sample['tokens'][0])}


def test_a_mixture_with_other_formats_resumes_exactly(tmp_path: Path) -> None:
    remotes = {
        'megatron': megatron(tmp_path / 'a', arrays(1000), 'int32'),
        'tokens': npy(tmp_path / 'b', arrays(2000), 'int32'),
        'mds': mds(tmp_path / 'c', arrays(3000)),
        'parquet': parquet(tmp_path / 'd', arrays(4000)),
    }

    def make(topology: Topology, workers: int, kind: type[StreamingDataset] = WithIds) -> StreamingDataLoader:
        streams = [
            Stream(remote=remote, local=str(tmp_path / f'cache-{name}'), name=name, proportion=1)
            for name, remote in remotes.items()
        ]
        dataset = kind(streams=streams, batch_size=24 // topology.replicas, shuffle=True, num_canonical_nodes=2)
        return StreamingDataLoader(dataset, num_workers=workers, topology=topology)

    batches = [batch['tokens'] for batch in make(Topology(), 0, StreamingDataset)]
    expected = {tokens[0] for first in (1000, 2000, 3000, 4000) for tokens in arrays(first)}
    assert {first for batch in batches for first in batch[:, 0].tolist()} == expected
    assert all(batch.shape == (24, WIDTH) and batch[:, 1:].eq(batch.new_tensor([1, 2, 3])).all() for batch in batches)
    worlds = [World(), World(ranks=2), World(ranks=4, nodes=2)]
    assert check_resume(make, worlds, epochs=2, every=6) == 4


def parquet(folder: Path, found: list[list[int]]) -> str:
    pa, pq = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
    folder.mkdir()
    pq.write_table(pa.table({'tokens': pa.array(found, pa.list_(pa.int32(), WIDTH))}), folder / 'a.parquet')
    return str(folder)


def test_documents_of_several_formats_are_packed_without_a_tokenizer(tmp_path: Path) -> None:
    found = {name: documents(first) for name, first in (('a', 1000), ('b', 2000), ('c', 3000))}
    remotes = {
        'a': megatron(tmp_path / 'a', found['a']),
        'b': put(tmp_path / 'b', token_files.datatrove('x.ds', found['b'], 'uint32')),
        'c': jsonl(tmp_path / 'c', found['c']),
    }

    def loaders(ranks: int) -> list[StreamingDataLoader]:
        return [
            StreamingDataLoader(
                PackedDataset(
                    streams=[
                        Stream(remote=remote, local=str(tmp_path / f'cache-{name}'), name=name)
                        for name, remote in remotes.items()
                    ],
                    shuffle=True,
                    predownload=8,
                    packing=Packing(sequence_length=24, lanes=4, window=2),
                    topology=Topology(rank=rank, world_size=ranks),
                ),
                batch_size=8 // ranks,
            )
            for rank in range(ranks)
        ]

    def batches(ranks: int, state: dict[str, Any] | None, count: int) -> tuple[list[list[list[int]]], dict[str, Any]]:
        made = loaders(ranks)
        if state is not None:
            for loader in made:
                loader.load_state_dict(state)
        runs = [itertools.islice(loader, count) for loader in made]
        rows = [sum((batch['input_ids'].tolist() for batch in run), []) for run in zip(*runs, strict=True)]
        return rows, made[0].state_dict()

    whole, _ = batches(1, None, 12)
    tokens = [token for batch in whole for row in batch for token in row if token]
    for documents_of in found.values():
        for document in documents_of:
            assert tokens.count(document[0]) >= len(document)
    for ranks in (4,):
        begin, state = batches(1, None, 5)
        rest, _ = batches(ranks, state, 7)
        assert begin == whole[:5]
        assert [sorted(batch) for batch in rest] == [sorted(batch) for batch in whole[5:]]


@pytest.mark.parametrize('kind', ['megatron', 'tokens'])
def test_a_conversion_has_the_same_documents(tmp_path: Path, kind: str) -> None:
    found = documents(1000)
    if kind == 'megatron':
        remote, options = megatron(tmp_path / 'data', [*found, []]), None
    else:
        flat = [token for document in found for token in [*document, 7]]
        remote, options = (
            put(tmp_path / 'data', {'train.bin': token_files.raw(flat)}),
            {
                'token_dtype': 'uint16',
                'end_of_document': 7,
            },
        )
        found = [[*document, 7] for document in found]
    report = convert(remote, tmp_path / 'out', format=kind, format_options=options)
    assert [row['tokens'].tolist() for row in rows_of(tmp_path / 'out')] == found
    assert report.rows == len(found)
    assert ('Left out 1 document without tokens.' in report.ledger.notes) == (kind == 'megatron')


def test_options_and_lengths_of_a_yaml(tmp_path: Path) -> None:
    put(tmp_path / 'data', {'train.bin': token_files.raw([*range(1, 30), 0, *range(1, 5), 0, 9]), 'val.bin': b'x'})
    (tmp_path / 'run.yaml').write_text(f"""
global_batch_size: 1
train:
  remote: {tmp_path / 'data'}
  local: {tmp_path / 'cache'}
  split: train
  format: tokens
  format_options: {{token_dtype: uint16, end_of_document: 0}}
  where: {{tokens: {{length: {{below: 10}}}}}}
""")
    config = load_config(str(tmp_path / 'run.yaml')).train
    assert config is not None
    loader = build_loader(config)
    assert sorted(batch['tokens'].tolist() for batch in loader) == [[[1, 2, 3, 4, 0]], [[9]]]


def test_an_index_of_another_version_is_refused() -> None:
    from headrace.sources.source_bytes import pack_source

    with pytest.raises(FormatError, match="another version of headrace: 'format'"):
        load_tokens(pack_source({}, {}))
