"""A dataset class in the manner of LLM Foundry's: a subclass that passes every argument by name, and tokenizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

pytestmark = pytest.mark.usefixtures('alias')


class Tokenizer:
    """A token for each character."""

    pad_token = '_'

    def __call__(self, text: str, max_length: int) -> dict[str, list[int]]:
        ids = [ord(letter) for letter in text[:max_length].ljust(max_length, self.pad_token)]
        return {'input_ids': ids, 'attention_mask': [int(i < len(text)) for i in range(max_length)]}


def text_dataset_class() -> type:
    from streaming import Stream, StreamingDataset

    class StreamingTextDataset(StreamingDataset):
        def __init__(
            self,
            tokenizer: Callable[..., Any],
            max_seq_len: int,
            streams: Sequence[Stream] | None = None,
            remote: str | None = None,
            local: str | None = None,
            split: str | None = None,
            download_retry: int = 2,
            download_timeout: float = 60,
            validate_hash: str | None = None,
            keep_zip: bool = False,
            epoch_size: int | str | None = None,
            predownload: int | None = None,
            cache_limit: int | str | None = None,
            partition_algo: str = 'relaxed',
            num_canonical_nodes: int | None = None,
            batch_size: int | None = None,
            shuffle: bool = False,
            shuffle_algo: str = 'py1e',
            shuffle_seed: int = 9176,
            shuffle_block_size: int | None = None,
            sampling_method: str = 'balanced',
            sampling_granularity: int = 1,
            batching_method: str = 'random',
            allow_unsafe_types: bool = False,
            replication: int | None = None,
            stream_name: str = 'stream',
            stream_config: dict[str, Any] | None = None,
            **unknown: Any,
        ) -> None:
            if unknown:
                raise ValueError(f'unknown: {unknown}')
            if local is not None and (remote is None or local == remote) and not Path(local).is_dir():
                raise ValueError(f'no folder {local}')
            super().__init__(
                streams=streams,
                remote=remote,
                local=local,
                split=split,
                download_retry=download_retry,
                download_timeout=download_timeout,
                validate_hash=validate_hash,
                keep_zip=keep_zip,
                epoch_size=epoch_size,
                predownload=predownload,
                cache_limit=cache_limit,
                partition_algo=partition_algo,
                num_canonical_nodes=num_canonical_nodes,
                batch_size=batch_size,
                shuffle=shuffle,
                shuffle_algo=shuffle_algo,
                shuffle_seed=shuffle_seed,
                shuffle_block_size=shuffle_block_size,
                sampling_method=sampling_method,
                sampling_granularity=sampling_granularity,
                batching_method=batching_method,
                allow_unsafe_types=allow_unsafe_types,
                replication=replication,
                stream_name=stream_name,
                stream_config=stream_config,
            )
            self.tokenizer, self.max_seq_len = tokenizer, max_seq_len

        def __getitem__(self, idx: int) -> dict[str, torch.Tensor]:
            sample = super().__getitem__(idx)
            tokens = self.tokenizer(sample['text'], max_length=self.max_seq_len)
            return {name: torch.tensor(values) for name, values in tokens.items()}

    return StreamingTextDataset


@pytest.fixture
def remote(tmp_path: Path) -> str:
    from streaming import MDSWriter
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    for split in ('train', 'val'):
        with MDSWriter(out=str(tmp_path / 'data' / split), columns={'text': 'str'}, size_limit=300) as out:
            for i in range(60):
                out.write({'text': f'{split} {i}'})
    return str(tmp_path / 'data')


@pytest.mark.parametrize('batching', ['random', 'stratified', 'per_stream', 'device_per_stream'])
def test_two_streams_with_all_arguments(remote: str, tmp_path: Path, batching: str) -> None:
    from streaming import Stream

    dataset = text_dataset_class()(
        tokenizer=Tokenizer(),
        max_seq_len=12,
        streams=[
            Stream(remote=remote, local=str(tmp_path / split), split=split, proportion=0.5)
            for split in ('train', 'val')
        ],
        epoch_size=40,
        predownload=16,
        cache_limit='10mb',
        partition_algo='relaxed',
        num_canonical_nodes=2,
        batch_size=4,
        shuffle=True,
        shuffle_algo='py1e',
        shuffle_block_size=100,
        batching_method=batching,
        download_timeout=30,
        keep_zip=True,
    )

    batches = list(DataLoader(dataset, batch_size=4))

    assert len(batches) == 10
    texts = [''.join(map(chr, row)).rstrip('_') for batch in batches for row in batch['input_ids'].tolist()]
    assert len(texts) == len(set(texts)) == 40
    assert sum(text.startswith('train') for text in texts) == 20
    assert all(int(mask.sum()) == len(text) for text, mask in zip(texts, _rows(batches), strict=True))


def _rows(batches: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    return torch.cat([batch['attention_mask'] for batch in batches])


def test_a_loader_resumes_what_the_class_made(remote: str) -> None:
    from streaming import StreamingDataLoader

    def loader() -> Any:
        dataset = text_dataset_class()(Tokenizer(), 12, local=remote, split='val', batch_size=5, shuffle=True)
        return StreamingDataLoader(dataset, batch_size=5, drop_last=True)

    whole, first = [batch['input_ids'] for batch in loader()], loader()
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)

    assert torch.equal(torch.stack([batch['input_ids'] for batch in second]), torch.stack(whole[1:]))


def test_no_streams_beside_the_url_of_one(remote: str, tmp_path: Path) -> None:
    """Foundry builds a list of streams from the YAML, which is empty where that has `remote` and `local` instead."""
    dataset = text_dataset_class()(Tokenizer(), 12, streams=[], remote=remote, local=str(tmp_path / 'c'), split='val')

    assert dataset.num_streams == 1
    assert dataset.num_samples == 60
