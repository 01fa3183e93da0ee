"""Conversations, and a small tokenizer of transformers with a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace import MDSWriter

TEMPLATE = (
    '{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}'
    '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
)


def conversations() -> list[list[dict[str, str]]]:
    """Of two to five messages, of different lengths."""
    found: list[list[dict[str, str]]] = []
    for number in range(24):
        messages = [{'role': 'system', 'content': f'You add {number}.'}] if number % 3 == 0 else []
        for turn in range(1 + number % 2):
            messages.append({'role': 'user', 'content': f'What is {turn} plus {number}, {"please " * (number % 4)}?'})
            messages.append({'role': 'assistant', 'content': f'\nIt is {turn + number}.'})
        found.append(messages)
    return found


def make_tokenizer() -> Any:
    """Bytes, and the two tokens of the template."""
    import tokenizers
    import transformers

    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=['<|im_start|>', '<|im_end|>'],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator((message['content'] for found in conversations() for message in found), trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, chat_template=TEMPLATE)


def make_chats(folder: Path) -> None:
    """Shards and tokenizer as the example wants them."""
    with MDSWriter(out=str(folder / 'chats'), columns={'messages': 'str'}, size_limit=1 << 10) as writer:
        for messages in conversations():
            writer.write({'messages': json.dumps(messages)})
    make_tokenizer().save_pretrained(str(folder / 'tokenizer'))
