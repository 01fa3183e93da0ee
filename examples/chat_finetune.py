"""Instruction tuning on packed conversations: a chat template, labels of the answers only, and attention by document.

Run: python examples/chat_finetune.py FOLDER STEPS [sdpa|flex]

FOLDER/chats holds shards with a column `messages`, the JSON of each conversation. FOLDER/tokenizer is a tokenizer of
transformers with a chat template. FOLDER/position.json is the position: a second call continues behind the first.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AutoTokenizer

from headrace import StreamingDataLoader
from headrace.packing import ChatTokenizer, PackedDataset, Packing, attention_mask, segment_ids

LENGTH, WIDTH, HEADS, BATCH = 128, 32, 4, 2


def make_loader(folder: Path) -> StreamingDataLoader:
    tokenizer = ChatTokenizer(AutoTokenizer.from_pretrained(folder / 'tokenizer'), train_on=['assistant'])
    packing = Packing(sequence_length=LENGTH, tokenizer=tokenizer, column='messages')
    dataset = PackedDataset(local=str(folder / 'chats'), shuffle=True, packing=packing)
    return StreamingDataLoader(dataset, batch_size=BATCH)


def sdpa_mask(batch: dict[str, Tensor]) -> Tensor:
    """bool[rows, 1, S, S] for `scaled_dot_product_attention`."""
    return attention_mask(batch['cu_seqlens'], LENGTH)


def flex_mask(batch: dict[str, Tensor]) -> BlockMask:
    """The same for FlexAttention, which computes no block without an allowed pair."""
    segments = segment_ids(batch['cu_seqlens'], LENGTH)

    def allows(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (segments[row, query] == segments[row, key]) & (query >= key)

    return create_block_mask(allows, len(segments), None, LENGTH, LENGTH, device=segments.device.type)


class Model(nn.Module):
    """One layer of attention, as small as possible."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, input_ids: Tensor, position_ids: Tensor, mask: Tensor | BlockMask) -> Tensor:
        x = self.tokens(input_ids) + self.places(position_ids)
        heads = self.project(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        if isinstance(mask, BlockMask):  # on a GPU: torch.compile(flex_attention)
            mixed = flex_attention(query, key, value, block_mask=mask)
        else:
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(x + mixed.transpose(1, 2).flatten(-2))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of the answers' tokens. -100, of prompts and padding, is ignored."""
    total = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction='sum')
    return total / (labels[:, 1:] != -100).sum().clamp(min=1)


def main(folder: Path, steps: int, kernel: str = 'sdpa') -> list[float]:
    """Train some steps; returns the losses."""
    torch.manual_seed(0)
    loader, position = make_loader(folder), folder / 'position.json'
    if position.exists():
        loader.load_state_dict(json.loads(position.read_text()))
    model = Model(len(AutoTokenizer.from_pretrained(folder / 'tokenizer')))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for batch in islice(loader, steps):
        mask = flex_mask(batch) if kernel == 'flex' else sdpa_mask(batch)
        loss = loss_of(model(batch['input_ids'], batch['position_ids'], mask), batch['labels'])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        trained = int((batch['labels'] != -100).sum())
        print(f'loss {loss.item():.4f}, {trained} of {int(batch["num_tokens"].sum())} tokens trained')
    position.write_text(json.dumps(loader.state_dict()))
    return losses


if __name__ == '__main__':
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
