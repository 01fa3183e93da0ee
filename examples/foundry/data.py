"""Real text for the example: the topics of Python's help and files of its standard library, and a tokenizer of them.

    python data.py FOLDER

The folder gets `topics/*.txt` and `library.jsonl` for training, and `help.jsonl` for evaluation. The files
`explain/train.jsonl` and `document/train.jsonl` hold prompts and responses. `AutoTokenizer` reads `tokenizer`.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import tokenizers
from transformers import PreTrainedTokenizerFast

MODULES = (
    *('ast', 'bdb', 'calendar', 'cmd', 'configparser', 'contextlib', 'copy', 'csv', 'fractions', 'functools', 'heapq'),
    *('inspect', 'ipaddress', 'queue', 'shelve', 'shutil', 'statistics', 'string', 'textwrap', 'threading', 'zipfile'),
)
END = '<|endoftext|>'


def write_jsonl(path: Path, rows: Iterator[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))


def documented(sources: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The functions of modules: their first line, and their documentation."""
    for source in sources.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield f'def {node.name}({ast.unparse(node.args)}):', text


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """1,024 byte pairs."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer: Any = tokenizers.trainers.BpeTrainer(
        vocab_size=1024, special_tokens=[END], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def write(folder: Path) -> None:
    """Write everything."""
    sources = {name: Path(os.__file__).with_name(f'{name}.py').read_text() for name in MODULES}
    names = sorted(topics)
    training, held_back = names[: len(names) * 3 // 4], names[len(names) * 3 // 4 :]
    (folder / 'topics').mkdir(parents=True)
    for name in training:
        (folder / 'topics' / f'{name}.txt').write_text(topics[name])
    write_jsonl(folder / 'library.jsonl', ({'text': source} for source in sources.values()))
    write_jsonl(folder / 'help.jsonl', ({'text': topics[name]} for name in held_back))
    pairs = ((f'What is {name}?', topics[name].strip().split('\n\n')[2:3]) for name in names)
    write_jsonl(
        folder / 'explain' / 'train.jsonl', ({'prompt': name, 'response': text[0]} for name, text in pairs if text)
    )
    write_jsonl(
        folder / 'document' / 'train.jsonl', ({'prompt': line, 'response': text} for line, text in documented(sources))
    )
    train_tokenizer([*sources.values(), *topics.values()]).save_pretrained(str(folder / 'tokenizer'))


if __name__ == '__main__':
    write(Path(sys.argv[1]))
