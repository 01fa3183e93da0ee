"""The example of instruction tuning trains the answers, each conversation by itself, with both kernels."""

from __future__ import annotations

import itertools
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.errors import ConfigError
from headrace.packing import ChatTokenizer
from tests.support.originals.chats import conversations, make_chats, make_tokenizer

pytestmark = pytest.mark.once
EXAMPLE = Path(__file__).parents[2] / 'examples' / 'chat_finetune.py'


@pytest.fixture(scope='module')
def tokenizer() -> Any:
    pytest.importorskip('transformers')
    return make_tokenizer()


@pytest.fixture(scope='module')
def example() -> dict[str, Any]:
    pytest.importorskip('transformers')
    return runpy.run_path(str(EXAMPLE))


def test_the_labels_are_the_answers(tokenizer):
    encoded = ChatTokenizer(tokenizer)(conversations())
    for messages, one in zip(conversations(), encoded, strict=True):
        whole = tokenizer.apply_chat_template(messages)
        assert one['input_ids'] == whole
        answers = [m['content'] + '<|im_end|>\n' for m in messages if m['role'] == 'assistant']
        trained = [token for token in one['labels'] if token != -100]
        assert tokenizer.decode(trained) == ''.join(answers)
        assert all(label in (-100, token) for token, label in zip(whole, one['labels'], strict=True))
    both = ChatTokenizer(tokenizer, train_on=['user', 'assistant'])(conversations()[:1])[0]
    assert tokenizer.decode([token for token in both['labels'] if token != -100]).startswith('<|im_start|>user')


def test_the_example_trains_and_continues(example, tmp_path):
    make_chats(tmp_path)
    whole = example['make_loader'](tmp_path)
    batches = list(itertools.islice(whole, 5))
    losses = example['main'](tmp_path, 3)
    assert len(losses) == 3
    assert all(torch.isfinite(torch.tensor(losses)))
    (tmp_path / 'position.json').rename(tmp_path / 'kept.json')
    assert example['main'](tmp_path, 3, 'flex') == pytest.approx(losses, rel=1e-4)
    later = example['make_loader'](tmp_path)
    later.load_state_dict(json.loads((tmp_path / 'kept.json').read_text()))
    for batch, wanted in zip(itertools.islice(later, 2), batches[3:], strict=True):
        assert torch.equal(batch['input_ids'], wanted['input_ids'])


def test_a_packed_conversation_sees_no_other(example, tmp_path):
    make_chats(tmp_path)
    batch = next(iter(example['make_loader'](tmp_path)))
    torch.manual_seed(1)
    model = example['Model'](300).eval()
    ids, places, bounds = batch['input_ids'], batch['position_ids'], batch['cu_seqlens']
    length = ids.shape[1]
    with torch.no_grad():
        for mask in (example['sdpa_mask'](batch), example['flex_mask'](batch)):
            logits = model(ids, places, mask)
            for row, cuts in enumerate(bounds.tolist()):
                for begin, end in itertools.pairwise(cuts):
                    if begin == end:
                        continue
                    alone = torch.zeros(1, length, dtype=torch.int64)
                    alone[0, : end - begin] = ids[row, begin:end]
                    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
                    found = model(alone, torch.arange(length)[None], causal)[0, : end - begin]
                    torch.testing.assert_close(logits[row, begin:end], found, rtol=1e-4, atol=1e-4)


def test_other_tokenizers_get_other_fingerprints(tokenizer):
    changed = tokenizer.chat_template.replace('im_end|>', 'im_end|> ')
    made = [
        ChatTokenizer(tokenizer),
        ChatTokenizer(tokenizer, train_on=['user']),
        ChatTokenizer(tokenizer, chat_template=changed),
    ]
    made.append(ChatTokenizer(tokenizer, variables={'date_string': '26 Jul 2024'}))
    assert len({one.fingerprint for one in made}) == 4
    assert ChatTokenizer(tokenizer).fingerprint == made[0].fingerprint
    cutting = make_tokenizer()
    cutting.backend_tokenizer.enable_truncation(5)  # as a stored tokenizer may have it; a call turns it off
    for _ in range(2):
        assert ChatTokenizer(cutting).fingerprint == made[0].fingerprint
        assert ChatTokenizer(cutting)(conversations()[:1]) == ChatTokenizer(tokenizer)(conversations()[:1])


@pytest.mark.parametrize('value', ['no JSON', '[]', '{"role": "user"}', [{'content': 'x'}], 5, [['user', 'x']]])
def test_other_values_are_refused(tokenizer, value):
    with pytest.raises(ConfigError, match='must be a list of messages'):
        ChatTokenizer(tokenizer)([value])


def test_a_template_that_writes_the_date_needs_a_fixed_one(tokenizer):
    today = '{% if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}'
    dated = today + 'Today is {{ date_string }}.\n' + tokenizer.chat_template
    with pytest.raises(ConfigError, match=r"date of today\. Fix it, as by variables=\{'date_string'"):
        ChatTokenizer(tokenizer, chat_template=dated)(conversations()[:1])
    fixed = ChatTokenizer(tokenizer, chat_template=dated, variables={'date_string': '26 Jul 2024'})
    (encoded,) = fixed(conversations()[:1])
    assert tokenizer.decode(encoded['input_ids']).startswith('Today is 26 Jul 2024.')
    assert encoded['labels'][0] == -100


def test_templates_that_change_earlier_messages_are_refused(tokenizer):
    last_only = '{% for m in messages %}{% if loop.last %}{{ m.content }}{% else %}-{% endif %}{% endfor %}'
    with pytest.raises(ConfigError, match='leave these as they are, but message 1 changes them'):
        ChatTokenizer(tokenizer, chat_template=last_only)([conversations()[1]])
    with pytest.raises(ConfigError, match='needs one chat template'):
        ChatTokenizer(type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer))
    with pytest.raises(ConfigError, match='needs a fast tokenizer of transformers'):
        ChatTokenizer(tokenizer.backend_tokenizer)
    with pytest.raises(ConfigError, match='must be a list of roles'):
        ChatTokenizer(tokenizer, train_on='assistant')
    with pytest.raises(ConfigError, match='`variables` must be values of JSON'):
        ChatTokenizer(tokenizer, variables={'tools': [print]})
