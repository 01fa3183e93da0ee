"""A tokenizer in a folder, as `save_pretrained` writes it, without the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.originals.text_originals import WORDS

__all__ = ['make_tokenizer']


def make_tokenizer(folder: Path, **special: Any) -> str:
    import tokenizers
    import transformers

    names = ['<unk>', '<eos>', *WORDS, *map(str, range(10)), '-']
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token='<unk>')
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = special or {'eos_token': '<eos>'}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token='<unk>', **special).save_pretrained(folder)
    return str(folder)
