"""Texts, and a tokenizer of bytes with some merges."""

from __future__ import annotations

import json
import random
from pathlib import Path

import tokenizers

__all__ = ['TEXTS', 'byte_tokenizer', 'write_texts']

_MERGES = [('t', 'h'), ('th', 'e'), ('a', 'n'), ('an', 'd'), ('Ġ', 'the'), ('Ġ', 'and'), ('i', 'n'), ('e', 'r')]
_FILE = 20
"""Texts of a file."""


def byte_tokenizer(merges: int = len(_MERGES)) -> tokenizers.Tokenizer:
    """One that adds a special token at the end unless it is told not to."""
    names = ['<pad>', '<eos>', '<bos>', *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    pairs = _MERGES[:merges]
    vocabulary = {name: number for number, name in enumerate([*names, *map(''.join, pairs)])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(['<pad>', '<eos>', '<bos>'])
    return made


def _texts() -> list[str]:
    draw = random.Random(5)
    words = ['the', 'and', 'in', 'winter', '<eos>', 'Straße', '日本', '🙂', '\n', 'x']
    return [' '.join(draw.choices(words, k=draw.choice([0, 1, 3, 8, 20, 60]))) for _ in range(200)]


TEXTS = _texts()
"""Some are empty, and some hold the names of special tokens."""


def write_texts(folder: Path, texts: list[str]) -> None:
    """Files of JSON lines."""
    folder.mkdir(parents=True)
    for number, begin in enumerate(range(0, len(texts), _FILE)):
        rows = [json.dumps({'id': n, 'text': text}) + '\n' for n, text in enumerate(texts[begin : begin + _FILE])]
        (folder / f'{number:03}.jsonl').write_text(''.join(rows))
