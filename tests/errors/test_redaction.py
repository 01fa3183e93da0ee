"""What counts as a secret, in messages, mappings and variables."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping

import pytest

from headrace.errors import ConfigError, HeadraceError, TransferError
from headrace.errors.redaction import logger_of, redact, redact_value, visible, warn
from tests.support.suite.planted import (
    USER,
    VARIABLE,
)

PLAIN = [
    "{'token': 'int', 'label': 'int'}",
    'columns are token: ndarray:int32:8, label: int',
    'token_count: 512 of 4096',
    "{'num_token': '5'}",
    'num_token=5',
    'api_key: Unknown key',
    'password: is not a known key',
    'train.store_options.secret_key: must be text, got 5',
]


def test_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        warn(f'at http://{USER}@host')
    assert [str(each.message) for each in caught] == ['at http://reader:***@host']
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('Authorization: Bearer abc.def', 'Authorization: Bearer ***'),
        ("{'Authorization': 'Basic dTpw', 'Host': 'h'}", "{'Authorization': '***', 'Host': 'h'}"),
        ('AccountName=a;AccountKey=k+y==;BlobEndpoint=b', 'AccountName=a;AccountKey=***;BlobEndpoint=b'),
        (
            '?X-Goog-Credential=c&X-Goog-Signature=s&X-Goog-Date=d',
            '?X-Goog-Credential=***&X-Goog-Signature=***&X-Goog-Date=d',
        ),
        ("got {'api_key': 'a b', 'profile': 'c'}", "got {'api_key': '***', 'profile': 'c'}"),
        ('https://t0ken@host/x', 'https://***@host/x'),
        ('s3://AK:a/b@c/d', 's3://AK:***@c/d'),
        ('hf_' + 'a1' * 17, '***'),
        # None of these is a secret.
        ('unexpected token: x', 'unexpected token: x'),
        ("pad_token='<pad>', tokens=5, tokenizer=gpt2", "pad_token='<pad>', tokens=5, tokenizer=gpt2"),
        ('sftp://user@host:22/x', 'sftp://user@host:22/x'),
        ('http://127.0.0.1:9000/a@b', 'http://127.0.0.1:9000/a@b'),
        ('http://[::1]:9000/a@b', 'http://[::1]:9000/a@b'),
        ('train.password: got 5; unknown key', 'train.password: got 5; unknown key'),
        *((text, text) for text in PLAIN),
    ],
)
def test_what_counts_as_a_secret(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


def test_variables_that_are_no_secrets_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {'TEXT_KEY': 'content', 'S3_KEY': 'datasets/train', 'TOKEN_COLUMN': 'tokens', 'MAX_TOKEN_MODE': 'truncate'}
    secret = ['AWS_SECRET_ACCESS_KEY', 'WANDB_API_KEY', 'AZURE_STORAGE_KEY', 'HF_TOKEN', 'GATEWAY_PASSWORD']
    for name, value in plain.items():
        monkeypatch.setenv(name, value)
    text = f'no file s3://b/datasets/train/index.json; {"; ".join(plain.values())}'
    assert redact(text) == text
    for number, name in enumerate(secret):
        monkeypatch.setenv(name, f'{VARIABLE}-{number}')
        assert redact(f'it was {VARIABLE}-{number}') == 'it was ***'


class Vanishing(Mapping[str, str]):
    """An environment from which another thread removes a variable while it is read."""

    def __iter__(self) -> Iterator[str]:
        return iter(['GONE_TOKEN', 'HF_TOKEN'])

    def __len__(self) -> int:
        return 2

    def __getitem__(self, name: str) -> str:
        return {'HF_TOKEN': VARIABLE}[name]


def test_a_variable_that_another_thread_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr('os.environ', Vanishing())
        text = str(ConfigError(f'it was {VARIABLE}'))
    assert text == 'it was ***'


def test_mappings_are_searched_by_their_names() -> None:
    given = {'a': {'secret_key': 5, 'x': [f'http://{USER}@h', 2]}, 'batch_size': 4, 'pad_token': '<pad>'}
    assert redact_value(given) == {
        'a': {'secret_key': '***', 'x': ['http://reader:***@h', 2]},
        'batch_size': 4,
        'pad_token': '<pad>',
    }


@pytest.mark.parametrize(
    'piece', ['a', '://a:', 'eyJ-', 'token="', '_', 'sig=', 'a b ', 'bearer ', 'http://a:1a', 'x-']
)
def test_huge_messages_take_time_by_their_length(piece: str) -> None:
    """Eight times the text takes about eight times the time: far from the 64 of a square."""

    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        best = float('inf')
        for _ in range(2):
            begin = time.process_time()
            redact(text)
            best = min(best, time.process_time() - begin)
        return best

    assert seconds(40_000) < 40 * max(seconds(5_000), 1e-4)
    assert len(str(TransferError(piece * (3_000_000 // len(piece))))) < 1 << 21


def test_control_characters_of_others_are_escapes(caplog):
    text = 'a\x1b[2J\r\x9b\u202eb\n\tc'
    shown = 'a\\x1b[2J\\r\\x9b\\u202eb\n\tc'
    logger_of('headrace.test').warning('%s', text)
    assert caplog.messages == [shown]
    assert str(HeadraceError(text)) == shown
    with pytest.warns(UserWarning, match='2J') as warned:
        warn(text)
    assert str(warned[0].message) == shown
    assert visible(text, one_line=True) == shown.replace('\n', '\\n').replace('\t', '\\t')
