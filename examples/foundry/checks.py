"""Digests of what LLM Foundry's datasets and collators give, without a training, as JSON on standard output.

headrace run checks.py INPUT MDS CACHE        reads with headrace
python checks.py INPUT MDS CACHE              reads with MosaicML Streaming
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from llmfoundry.data import ConcatTokensDataset, StreamingTextDataset, build_dataloader
from llmfoundry.data.finetuning.collator import Seq2SeqFinetuningCollator
from llmfoundry.data.finetuning.tasks import StreamingFinetuningDataset
from llmfoundry.utils.builders import build_tokenizer
from record_batches import digest, documents, reader
from streaming import Stream
from streaming.base.stream import streams_registry

from convert import SEQUENCE
from data import END

BATCHES = 12
SKIPPED = range(3, 5)
PACKED_LENGTH = 256


class HalfStream(Stream):
    """A class of streams for `stream_name`: half of the rows in each epoch."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, repeat=0.5)


streams_registry.register('half', func=HalfStream)


class Checks:
    """The datasets of one folder, read with one library."""

    def __init__(self, source: Path, data: Path, cache: Path) -> None:
        self._source, self._data, self._cache = source, data, cache
        self._tokenizer = build_tokenizer(str(source / 'tokenizer'), {'model_max_length': PACKED_LENGTH})

    def results(self) -> dict[str, Any]:
        """Digests by check; `ids`: what has a digest; `reader`: the class that reads."""
        finetuning = dict(
            streams={name: self._place(name, 'pairs') for name in ('explain', 'document')},
            decoder_only_format=True,
            max_seq_len=PACKED_LENGTH,
            shuffle=True,
        )
        text = dict(max_seq_len=SEQUENCE, shuffle=True)
        streams = {name: self._place(name, 'text') for name in ('topics', 'library')}
        tokens = [digest(row['tokens'].tolist()) for row in self._concatenated()]
        return {
            'reader': reader(self._text('topics')),
            'ids': self._ids(),
            'ConcatTokensDataset, written and read': tokens,
            'StreamingTextDataset, tokens': self._batches('text', **text, streams=streams, eos_token_id=0),
            'StreamingTextDataset, text': self._batches('text', **text, **self._place('raw', 'text')),
            'StreamingTextDataset, stream_name': self._batches(
                'text', **text, **self._place('topics', 'half'), stream_name='half'
            ),
            'StreamingFinetuningDataset': self._batches('finetuning', **finetuning),
            'BinPackCollator': self._batches('finetuning', **finetuning, packing_ratio=2.5),
            'BinPackCollator, two batches left out': self._with_skip(
                **finetuning, packing_ratio=2.5, max_leftover_bins_to_keep=0
            ),
            'BinPackCollator, the ratio found': self._batches('finetuning', **finetuning, packing_ratio='auto'),
        }

    def _with_skip(self, **dataset: Any) -> list[Any]:
        """Batches without some: left out by headrace's `skip`, or here if MosaicML Streaming reads."""
        if reader(self._text('topics')).startswith('headrace.'):
            skip = [[f'{SKIPPED.start}ba', f'{SKIPPED.stop}ba']]
            return self._batches('finetuning', **dataset, skip=skip)[: BATCHES - len(SKIPPED)]
        return [batch for at, batch in enumerate(self._batches('finetuning', **dataset)) if at not in SKIPPED]

    def _place(self, name: str, use: str) -> dict[str, str]:
        return {'remote': str(self._data / name), 'local': str(self._cache / use / name), 'split': 'train'}

    def _batches(self, kind: str, **dataset: Any) -> list[Any]:
        """The documents of the first batches of Foundry's loader."""
        loader = dict(dataset=dataset, drop_last=False, num_workers=1, persistent_workers=False)
        spec = build_dataloader({'name': kind, **loader}, self._tokenizer, 4)
        packed = 'packing_ratio' in dataset
        return [documents(batch, packed) for batch in islice(spec.dataloader, BATCHES)]

    def _concatenated(self) -> list[dict[str, Any]]:
        """The rows of `ConcatTokensDataset`, after a check that the written dataset has the same."""
        rows = [json.loads(line) for line in (self._source / 'library.jsonl').read_text().splitlines()]
        made = list(
            ConcatTokensDataset(rows, self._tokenizer, SEQUENCE, '', END, no_wrap=False)  # pyright: ignore[reportArgumentType]
        )
        dataset = self._text('library')
        read = [dataset[i].tolist() for i in range(dataset.num_samples)]
        if read != [row['tokens'].tolist() for row in made]:
            raise SystemExit('FAILED: what was written of ConcatTokensDataset is not what was read')
        return made

    def _text(self, name: str) -> StreamingTextDataset:
        return StreamingTextDataset(self._tokenizer, SEQUENCE, batch_size=1, **self._place(name, 'ids'))

    def _ids(self) -> dict[str, str]:
        """Stream and row of every digest, the first one that has it."""
        ids: dict[str, str] = {}
        for name in ('topics', 'library'):
            dataset = self._text(name)
            for i in range(dataset.num_samples):
                ids.setdefault(digest(dataset[i].tolist()), f'{name}:{i}')
        collate = Seq2SeqFinetuningCollator(
            self._tokenizer, PACKED_LENGTH, True, target_responses='last', target_prompts='none'
        )
        for name in ('explain', 'document'):
            dataset = StreamingFinetuningDataset(self._tokenizer, batch_size=1, **self._place(name, 'ids'))
            for i in range(dataset.num_samples):
                ids.setdefault(documents(collate([dataset[i]]))[0][0], f'{name}:{i}')
        return ids


if __name__ == '__main__':
    print(json.dumps(Checks(*map(Path, sys.argv[1:])).results()))
