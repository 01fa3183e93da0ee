"""Conversations to tokens by a chat template, with labels for some roles only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace.errors import ConfigError
from headrace.packing.rows import IGNORED
from headrace.packing.tokenizers import checked_text, fingerprint, no_document

__all__ = ['ChatTokenizer']


class ChatTokenizer:
    """A `tokenizer` for `Packing` that turns conversations into tokens, for instruction tuning.

    A conversation is a list of messages, or its JSON text: ``[{"role": "user", "content": "Hi"}, ...]``. The template
    renders it as a whole. Only tokens of messages of the roles `train_on` have labels, with the end of the message that
    the template writes. The header before an answer, such as ``<|im_start|>assistant``, has none.

    Args:
        tokenizer: a fast tokenizer of `transformers`. A special token in a message's text is that token, as in
            `apply_chat_template`.
        train_on: the roles whose messages are trained.
        chat_template: a Jinja template; None: the tokenizer's own.
        variables: further variables of the template, as JSON has them: ``{'date_string': '26 Jul 2024'}``.

    Raises:
        ConfigError: the tokenizer is not a fast one, or has no template; there is no role; or a variable is
            no JSON.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        train_on: Sequence[str] = ('assistant',),
        chat_template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        if not getattr(tokenizer, 'is_fast', False):
            raise ConfigError(
                f'ChatTokenizer needs a fast tokenizer of transformers, which knows the place of each token in the '
                f'text, but got a {type(tokenizer).__name__}. Load it by AutoTokenizer.from_pretrained.'
            )
        template = chat_template or tokenizer.chat_template
        if not isinstance(template, str):
            raise ConfigError(
                f'ChatTokenizer needs one chat template, but the tokenizer has {type(template).__name__}. Give '
                f'`chat_template`.'
            )
        if isinstance(train_on, str) or not train_on:
            raise ConfigError(f"`train_on` must be a list of roles, such as ['assistant'], but is {train_on!r}.")
        self._tokenizer, self._template, self._train_on = tokenizer, template, tuple(train_on)
        self._variables = dict(variables or {})
        try:
            json.dumps(self._variables)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f'`variables` must be values of JSON by name, since a checkpoint knows them, but {error}.'
            ) from error

    @property
    def fingerprint(self) -> str:
        """A text that identifies the tokenizer, template, variables and roles on any machine."""
        parts = fingerprint(self._tokenizer), self._template, self._variables, *self._train_on
        return f'chat {hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]}'

    def __call__(self, values: Sequence[Any]) -> list[dict[str, list[int]]]:
        """Tokens and labels of conversations.

        Returns:
            For each, `input_ids` and `labels` of one length; a token that is not trained has the label -100.

        Raises:
            DocumentError: a value is no conversation.
            ConfigError: the template changes earlier messages, or asks for the date.
        """
        return [self._encode(_messages(value)) for value in values]

    def _encode(self, messages: list[Mapping[str, Any]]) -> dict[str, list[int]]:
        text, spans = self._rendered(messages)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids: list[int] = encoded['input_ids']
        labels = [
            token if begin < end and any(first <= begin < last for first, last in spans) else IGNORED
            for token, (begin, end) in zip(ids, encoded['offset_mapping'], strict=True)
        ]
        return {'input_ids': ids, 'labels': labels}

    def _rendered(self, messages: list[Mapping[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation, and the places of its trained messages."""
        text = checked_text(self._render(messages))
        spans: list[tuple[int, int]] = []
        for number, message in enumerate(messages):
            if message['role'] not in self._train_on:
                continue
            is_answer = message['role'] == 'assistant'
            before = self._render(messages[:number], header=is_answer) if number else ''
            until = self._render(messages[: number + 1])
            if not (until.startswith(before) and text.startswith(until)):
                raise ConfigError(
                    f'A chat template must render each message behind the earlier ones, and leave these as they are, '
                    f'but message {number} changes them: {before[-40:]!r} became {until[: len(before)][-40:]!r}. Give '
                    f'another `chat_template`, or a function as `tokenizer`.'
                )
            spans.append((len(before), len(until)))
        return text, spans

    def _render(self, messages: list[Mapping[str, Any]], *, header: bool = False) -> str:
        return self._tokenizer.apply_chat_template(
            messages,
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=header,
            **{'strftime_now': _refuse_date, **self._variables},
        )


def _refuse_date(_: str) -> str:
    """Stand in for the template's function of this name: a run resumed tomorrow must have the same tokens."""
    raise ConfigError(
        'A conversation must have the same tokens on any day, but the chat template writes the date of today. Fix it, '
        "as by variables={'date_string': '26 Jul 2024'} for templates of Llama, or give another `chat_template`."
    )


def _messages(value: Any) -> list[Mapping[str, Any]]:
    """The messages of a conversation.

    Raises:
        DocumentError: it is none.
    """
    found: Any = value
    if isinstance(value, (str, bytes)):
        try:
            found = json.loads(value)
        except ValueError:
            found = None
    messages = cast('list[Any]', found) if isinstance(found, list) else []
    if not messages or not all(map(_is_message, messages)):
        raise no_document(
            value, 'A conversation must be a list of messages with `role` and `content`, or its JSON text'
        )
    return messages


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    message = cast('Mapping[str, Any]', value)
    has_content = isinstance(message.get('content'), (str, list))  # some templates take a list of parts
    if message.get('content') is None:  # a template would write None, but for another key, such as `tool_calls`
        has_content = any(message[key] for key in message.keys() - {'role', 'content'})
    return has_content and isinstance(message.get('role'), str)
