"""Texts to tokens, by any supported library, in parallel where it releases the interpreter lock.

A `ChatTokenizer` makes tokens of conversations by a chat template, with labels for some roles only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import ConfigError, DocumentError
from headrace.errors.mapping import panics_as
from headrace.packing.lane import Document
from headrace.packing.rows import IGNORED
from headrace.packing.settings import Packing

Encoder: TypeAlias = Callable[[Any], 'list[Document]']
LIBRARIES = ('tokenizers', 'transformers', 'tiktoken')


def load_tokenizer(library: str, name: str) -> Any:
    """A tokenizer by name, as a configuration gives it.

    Args:
        library: `tokenizers`, `transformers` or `tiktoken`.
        name: of `tokenizers`, the path of a ``tokenizer.json``; of `transformers`, an argument of
            ``AutoTokenizer.from_pretrained``; of `tiktoken`, the name of an encoding.

    Raises:
        ConfigError: the library or file does not exist.
        MissingDependencyError: the library is not installed.
    """
    from headrace.errors import MissingDependencyError

    try:
        with panics_as(ConfigError):
            if library == 'tokenizers':
                import tokenizers

                return tokenizers.Tokenizer.from_file(name)
            if library == 'transformers':
                import transformers

                return transformers.AutoTokenizer.from_pretrained(name)
            if library == 'tiktoken':
                import tiktoken

                return tiktoken.get_encoding(name)
    except ImportError as error:
        raise MissingDependencyError(
            f'A tokenizer of {library} needs it to be installed: pip install {library}.'
        ) from error
    except Exception as error:  # libraries raise many kinds for a wrong file or name
        raise ConfigError(f'The tokenizer {name!r} of {library} cannot be loaded: {error}.') from error
    raise ConfigError(f'`library` of a tokenizer must be one of {list(LIBRARIES)}, but is {library!r}.')


def encoder_of(packing: Packing) -> Encoder:
    """From values of the document's column to documents with begin and end tokens; DocumentError: a value is none."""
    takes_text = is_of_library(packing.tokenizer)
    encode = _stored(packing.token_dtype) if packing.tokenizer is None else _encode(packing.tokenizer)
    before = [] if packing.bos_token_id is None else [packing.bos_token_id]
    after = [] if packing.eos_token_id is None else [packing.eos_token_id]

    def documents(values: Any) -> list[Document]:
        with panics_as(DocumentError):
            made = encode([checked_text(value) for value in values] if takes_text else values)
        if len(made) != len(values):
            raise ConfigError(
                f'`tokenizer` must give a document for each of its {len(values)} values, but gave {len(made)}. A '
                f'function returns a list of token arrays, or of dicts with `input_ids`.'
            )
        return _documents_of_arrays(made, before, after) or [_document(encoding, before, after) for encoding in made]

    return documents


def no_document(value: object, rule: str) -> DocumentError:
    return DocumentError(f'{rule}, but it is {repr(value)[:80]}.')


def checked_text(value: object) -> str:
    """A text; DocumentError: it is none, or has a part of a character alone, which no file of valid text has."""
    if not isinstance(value, str):
        raise no_document(value, 'A document must be text for its tokenizer')
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            at = error.start
            rule = f'A document must be valid Unicode, without the lone surrogate {value[at]!r} at character {at}'
            raise no_document(value, rule) from None
    return value


def fingerprint(tokenizer: Any) -> str:
    """A text that identifies a tokenizer on any machine: its `fingerprint`, a hash of its content, or else its name."""
    if tokenizer is None:
        return 'none'
    if isinstance(given := getattr(tokenizer, 'fingerprint', None), str):
        return given
    library = _library(tokenizer)
    if library == 'transformers':
        tokenizer = getattr(tokenizer, 'backend_tokenizer', None) or tokenizer
        library = _library(tokenizer)
    if library == 'tokenizers':
        return f'tokenizers {_hash(_plain(tokenizer).to_str())}'
    if library == 'transformers':
        return f'transformers {_hash(json.dumps(tokenizer.get_vocab(), sort_keys=True))}'
    if library == 'tiktoken':
        ranks = sorted((rank, token.hex()) for token, rank in tokenizer._mergeable_ranks.items())
        return f'tiktoken {tokenizer.name} {_hash(repr((ranks, tokenizer._pat_str)))}'
    name = getattr(tokenizer, '__qualname__', type(tokenizer).__qualname__)
    return f'{getattr(tokenizer, "__module__", type(tokenizer).__module__)}.{name}'


def is_of_library(tokenizer: Any) -> bool:
    """Whether a tokenizer is of a supported library, and no function."""
    return bool(_library(tokenizer))


def vocabulary_size(tokenizer: Any) -> int | None:
    """One more than the largest token; None for a function, which does not say."""
    library = _library(tokenizer)
    if library == 'tiktoken':
        return tokenizer.n_vocab
    return 1 + max(tokenizer.get_vocab().values()) if library else None


_MADE_BY = re.compile(r'tokens(?: below (\d+))? of (.+)')


def meaning_of_tokens(tokenizer: Any) -> str:
    """The meaning of a column of a tokenizer's tokens, for `Schema.meanings`."""
    size = vocabulary_size(tokenizer)
    return f'tokens{"" if size is None else f" below {size}"} of {fingerprint(tokenizer)}'


def origin_of_tokens(meaning: str) -> tuple[int | None, str] | None:
    """The `vocabulary_size` and `fingerprint` of the tokenizer of a column with a meaning; None if it does not say."""
    match = _MADE_BY.fullmatch(meaning)
    return None if match is None else (None if match[1] is None else int(match[1]), match[2])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _library(tokenizer: Any) -> str:
    modules = {kind.__module__.split('.')[0] for kind in type(tokenizer).__mro__}
    return next((library for library in LIBRARIES if library in modules), '')


def _stored(dtype: str | None) -> Callable[[Sequence[Any]], Any]:
    def tokens(value: Any) -> Any:
        if not isinstance(value, bytes):
            return value
        if dtype is None or len(value) % np.dtype(dtype).itemsize:
            raise DocumentError(
                f'A document that is stored as bytes needs a `token_dtype` that divides them, but {len(value)} bytes '
                f'have {dtype!r}. Set it to what the tokens were written as.'
            )
        return np.frombuffer(value, dtype)

    return lambda values: [tokens(value) for value in values]


def _encode(tokenizer: Any) -> Callable[[Sequence[Any]], Any]:
    library = _library(tokenizer)
    if library == 'transformers' and getattr(tokenizer, 'backend_tokenizer', None) is not None:
        # The wrapped tokenizer makes the same tokens without masks, types, offsets and dicts.
        tokenizer, library = tokenizer.backend_tokenizer, 'tokenizers'
    if library == 'tokenizers':
        tokenizer = _plain(tokenizer)
        encode_batch = getattr(tokenizer, 'encode_batch_fast', tokenizer.encode_batch)  # the one without offsets
        return lambda texts: [encoding.ids for encoding in encode_batch(list(texts), add_special_tokens=False)]
    if library == 'transformers':
        return lambda texts: tokenizer(list(texts), add_special_tokens=False, verbose=False)['input_ids']
    if library == 'tiktoken':
        return _in_threads(tokenizer.encode_ordinary)
    if callable(tokenizer):
        return tokenizer
    raise ConfigError(
        f'`tokenizer` must be one of tokenizers, transformers or tiktoken, or a function from a list of texts to a '
        f'list of token arrays, but is a {type(tokenizer).__name__}.'
    )


def _plain(tokenizer: Any) -> Any:
    """A copy that neither truncates nor pads, and treats special tokens as plain text."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def _in_threads(encode: Callable[[str], list[int]]) -> Callable[[Sequence[Any]], Any]:
    """Encode texts one by one in threads; encoding releases the interpreter lock."""
    pool: list[ThreadPoolExecutor] = []

    def some(texts: Sequence[str]) -> list[list[int]]:
        return [encode(text) for text in texts]

    def all_of(texts: Sequence[str]) -> list[list[int]]:
        threads = _threads()
        if threads == 1 or len(texts) < 2 * threads:
            return some(texts)
        if not pool:  # tiktoken's own batches start new threads each time
            pool.append(ThreadPoolExecutor(threads, 'headrace-encode'))
        cuts = [len(texts) * part // threads for part in range(threads + 1)]
        parts = pool[0].map(some, [texts[begin:end] for begin, end in pairwise(cuts)])
        return [document for part in parts for document in part]

    return all_of


def _threads() -> int:
    """Threads of one call; workers share the cores."""
    return 1 if torch.utils.data.get_worker_info() is not None else max(torch.get_num_threads(), 1)


def _documents_of_arrays(encodings: Sequence[Any], before: list[int], after: list[int]) -> list[Document]:
    """Documents of arrays of integers with one axis and dtype, by one copy of their tokens; empty: they are others."""
    if not all(isinstance(array, np.ndarray) and array.ndim == 1 for array in encodings):
        return []
    dtypes = {array.dtype for array in encodings}
    if len(dtypes) != 1 or (dtype := dtypes.pop()).kind not in 'iu':
        return []
    tokens: npt.NDArray[Any] = np.concatenate(encodings)
    if not np.can_cast(dtype, np.int32) and tokens.size and not -(2**31) <= tokens.min() <= tokens.max() < 2**31:
        return []
    tokens = tokens.astype(np.int32, copy=False)
    bounds = pairwise(np.cumsum([0, *map(len, encodings)]).tolist())
    documents = [tokens[begin:end] for begin, end in bounds]
    if before or after:
        first, last = np.array(before, np.int32), np.array(after, np.int32)
        documents = [np.concatenate([first, document, last]) for document in documents]
    return [Document(document) for document in documents]


def _document(encoding: Any, before: list[int], after: list[int]) -> Document:
    labels = None
    if isinstance(encoding, Mapping):
        encoding, labels = encoding['input_ids'], encoding.get('labels')
    tokens = _int32(encoding, before, after)
    if labels is None:
        return Document(tokens)
    marked = _int32(labels, before, after)
    if len(marked) != len(tokens):
        raise ConfigError(
            f'`labels` of a document must be as many as its `input_ids`, but there are {len(marked)} and {len(tokens)}.'
        )
    return Document(tokens, marked)


def _int32(values: Any, before: list[int], after: list[int]) -> npt.NDArray[np.int32]:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        array = np.array(None)
    if not array.ndim or (array.size and array.dtype.kind not in 'iu'):
        raise no_document(values, 'A document must be an array of integers, or text with a `tokenizer`')
    if array.size and array.dtype != np.int32 and not -(2**31) <= int(array.min()) <= int(array.max()) < 2**31:
        raise DocumentError(f'Tokens must be numbers below 2147483648, but are from {array.min()} to {array.max()}.')
    array = array.reshape(-1).astype(np.int32)
    return np.concatenate([before, array, after]).astype(np.int32) if before or after else array


class ChatTokenizer:
    """A `tokenizer` for `Packing` that turns conversations into tokens, for instruction tuning.

    A conversation is a list of messages, or its JSON text: ``[{"role": "user", "content": "Hi"}, ...]``. The template
    renders it as a whole. Only tokens of messages of the roles `train_on` have labels, with the end of the message that
    the template writes. The header before an answer, such as ``<|im_start|>assistant``, has none.

    Args:
        tokenizer: a fast tokenizer of `transformers`. A special token in a message's text is that token, as in
            `apply_chat_template`.
        train_on: the roles whose messages are trained.
        chat_template: a Jinja template; by default the tokenizer's.
        variables: further variables of the template, as JSON has them: ``{'date_string': '26 Jul 2024'}``.

    Raises:
        ConfigError: the tokenizer is not a fast one, or has no template; or no role is given; or a variable is not
            JSON.
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
            DocumentError: a value is not a conversation.
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
    parsed: Any = value
    if isinstance(value, (str, bytes)):
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
    messages = cast('list[Any]', parsed) if isinstance(parsed, list) else []
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
    if message.get('content') is None:  # a template would write None, except with another key, such as `tool_calls`
        has_content = any(message[key] for key in message.keys() - {'role', 'content'})
    return has_content and isinstance(message.get('role'), str)
