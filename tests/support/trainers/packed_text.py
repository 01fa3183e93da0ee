"""Real texts to pack, the tokenizer for them, and the configuration of a run over them; for tests of both trainers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from pydoc_data import topics
from typing import Any

import yaml

from headrace import MDSWriter
from headrace.mixing import build_loader, load_config

BATCH, LENGTH = 4, 64


def texts() -> list[str]:
    """Paragraphs of Python's documentation."""
    paragraphs = itertools.chain.from_iterable(text.split('\n\n') for text in topics.topics.values())
    return [text for text in paragraphs if text.strip()][:400]


def make_text(folder: Path) -> str:
    """Shards of texts, a tokenizer trained on them, and the path of a configuration that packs them.

    Beside it, ``endless.yaml`` is the same without an end of the epoch, and ``spiked.yaml`` that without two batches.
    """
    import tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    with MDSWriter(out=str(folder / 'shards'), columns={'text': 'str'}, size_limit=1 << 14) as writer:
        for text in texts():
            writer.write({'text': text})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=['<eos>'], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.save(str(folder / 'tokenizer.json'))
    config = {
        'global_batch_size': BATCH,
        'train': {
            'local': str(folder / 'shards'),
            'shuffle': True,
            'packing': {
                'sequence_length': LENGTH,
                'tokenizer': {'path': str(folder / 'tokenizer.json')},
                'eos_token_id': 0,
                'window': 4,
                'sequences_per_epoch': 10 * BATCH,
            },
        },
    }
    (folder / 'packed.yaml').write_text(yaml.safe_dump(config))
    endless = {'defaults': ['packed.yaml'], 'train': {'packing': {'sequences_per_epoch': None}}}
    (folder / 'endless.yaml').write_text(yaml.safe_dump(endless))
    spiked = {'defaults': ['endless.yaml'], 'train': {'skip': [[BATCH, 3 * BATCH]]}}
    (folder / 'spiked.yaml').write_text(yaml.safe_dump(spiked))
    return str(folder / 'packed.yaml')


def sequences(config: str, batches: int) -> list[list[int]]:
    """The run's first sequences, as one rank without a trainer reads them."""
    loader = build_loader(load_config(config).train)
    found: list[list[int]] = []
    while len(found) < batches * BATCH:
        for batch in itertools.islice(loader, batches):
            found += rows_of(batch)
    return found[: batches * BATCH]


def write_batch(file: Path, batch: dict[str, Any]) -> None:
    with file.open('a') as out:
        out.write(json.dumps(rows_of(batch)) + '\n')


def rows_of(batch: dict[str, Any]) -> list[list[int]]:
    """The sequences of a batch, without padding."""
    return [row[:used] for row, used in zip(batch['input_ids'].tolist(), batch['num_tokens'].tolist(), strict=True)]


def written(folder: Path, name: str, ranks: int) -> list[list[int]]:
    """The sequences that the ranks wrote down, in the order of the run: row r of a batch is replica r modulo theirs."""
    each = [
        [json.loads(line) for line in (folder / f'{name}.rank{rank}').read_text().splitlines()] for rank in range(ranks)
    ]
    return [row for batches in zip(*each, strict=True) for turn in zip(*batches, strict=True) for row in turn]
