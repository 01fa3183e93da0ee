"""LLM Foundry's own converters, with the arguments of its command line: text to MDS.

headrace run convert.py INPUT OUT     writes with headrace
python convert.py INPUT OUT           writes with MosaicML Streaming
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llmfoundry.cli.cli import app
from llmfoundry.data import ConcatTokensDataset
from streaming import MDSWriter
from transformers import AutoTokenizer

from data import END

SEQUENCE = 64


def convert(source: Path, out: Path) -> None:
    """Write every dataset of the example."""
    tokenizer = str(source / 'tokenizer')
    tokens = ['--concat-tokens', str(SEQUENCE), '--tokenizer', tokenizer, '--eos-text', END]
    # Two processes write parts, which Foundry then merges.
    foundry('convert_text_to_mds', '--input-folder', source / 'topics', '--output-folder', out / 'topics' / 'train',
            '--processes', '2', '--compression', 'zstd', *tokens)  # fmt: skip
    foundry('convert_dataset_json', '--path', source / 'help.jsonl', '--out-root', out / 'help' / 'val', *tokens)
    for name in ('explain', 'document'):
        foundry('convert_finetuning_dataset', '--dataset', 'json', '--splits', 'train', '--skip-preprocessing',
                '--data-files', source / name / 'train.jsonl', '--out-root', out / name, '--num-workers', '1',
                *(['--tokenizer', tokenizer] if name == 'document' else []))  # fmt: skip
    concatenate(source / 'library.jsonl', out / 'library' / 'train', tokenizer)
    rows = [json.loads(line) for line in (source / 'help.jsonl').read_text().splitlines()]
    with MDSWriter(out=str(out / 'raw' / 'train'), columns={'text': 'str'}, size_limit=40_000) as writer:
        for row in rows:
            writer.write(row)


def foundry(command: str, *arguments: str | Path) -> None:
    """`llmfoundry data_prep COMMAND ...`."""
    app(['data_prep', command, *map(str, arguments)], standalone_mode=False)


def concatenate(source: Path, out: Path, tokenizer: str) -> None:
    """Write `ConcatTokensDataset` as Foundry's scripts do, in small shards."""
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    samples = ConcatTokensDataset(
        rows,  # pyright: ignore[reportArgumentType]  # an iterable of rows
        AutoTokenizer.from_pretrained(tokenizer, model_max_length=int(1e30)),
        max_length=SEQUENCE,
        bos_text='',
        eos_text=END,
        no_wrap=False,
    )
    with MDSWriter(
        out=str(out), columns={'tokens': 'ndarray:int32'}, compression='zstd', hashes=['sha1'], size_limit=20_000
    ) as writer:
        for sample in samples:
            writer.write(sample)


if __name__ == '__main__':
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
