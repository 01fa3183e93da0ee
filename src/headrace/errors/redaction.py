"""Redacts secrets in messages, warnings, logs, reprs and hyperparameters.

`HeadraceError` redacts its message itself; `warn` and `logger_of` are the only ways to warn and to log. A text is
searched when it is made, so nothing is done while all goes well. Four things count as a secret:

1. a value that was kept by `keep_secret`, or that stands in an environment variable with a secret's name;
2. the password of a URL;
3. a value beside a secret's name, as in ``?sig=...`` or ``'api_key': '...'``;
4. a text with the shape of a token or of a private key.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, unquote

T = TypeVar('T')

HIDDEN: Final = '***'  # replaces a secret
LONGEST: Final = 1 << 20  # characters of a text; a longer one loses its middle
SHORTEST: Final = 6  # characters of a value that is looked for by itself: shorter ones occur in words

# A name's part that makes its value a secret; bounded, so that every search below is linear in the text.
_STEM: Final = (
    r'(?:pass(?:word|wd|phrase)|secret|signature|credential|authorization|cookie|connection[_-]?string'
    r'|token(?![\w-])|(?:access|account|api|encryption|private|shared|signing|storage)[_-]?key(?![_-]?id)'
    r'|(?<![a-z])(?:sig|sas|pwd)(?![a-z]))'
)
_SECRET_NAME: Final = re.compile(_STEM, re.IGNORECASE)
_HARMLESS_NAME: Final = re.compile(
    r'(?:bos|cls|end|eos|mask|next|pad|sep|special|start|stop|unk)[_-]?token|[_-](?:dir|file|id|name|path|type|url)$',
    re.IGNORECASE,
)
_TOKEN_NAME: Final = re.compile(r'token\Z', re.IGNORECASE)
# The type of a column in a message, and the number or the count of a token of text.
_ENCODING: Final = re.compile(
    r'bytes|float(?:16|32|64)?|u?int(?:8|16|32|64)?|list\[(?:jpeg|pil|png)\]?|jpeg(?:_?array)?|json|pil|pkl|png'
    r'|ndarray(?::\w+(?::[\d,]+)?)?|str(?:_(?:decimal|float|int))?'
)
_NUMBER: Final = re.compile(r'[+-]?\d+(?:\.\d*)?')
# Words of sentences, too: a colon after them says nothing.
_PLAIN_WORDS: Final = frozenset({'cookie', 'credential', 'credentials', 'secret', 'sig', 'signature', 'sas', 'token'})
_NAMED: Final = re.compile(
    rf'(?<![\w-])(?P<name>[\w-]{{0,64}}{_STEM}[\w-]{{0,32}})(?P<sign>["\']?\s{{0,2}}[:=]\s{{0,2}})'
    r'(?P<scheme>(?:aws4-hmac-sha256|basic|bearer|digest|negotiate|sharedkey|token)\s{1,4})?'
    # "password: got 5" and "password: unknown key" are how a configuration is refused.
    r'(?P<value>"[^"]+"|\'[^\']+\'|(?!(?:got|is|must|unknown|not)\s)[^\s&"\'<>,;)\]}]+)',
    re.IGNORECASE,
)
# By the rules of URLs a password cannot have a slash, but keys of S3 have slashes.
_PASSWORD: Final = re.compile(
    r'(?P<user>://[^\s/@:\[]{0,256}):(?!\d{1,5}(?:[/?#\s"\']|$))(?P<password>[^\s/]{1,1024}|[^\s@]{1,1024})@'
)
_USER: Final = re.compile(r'(?:(?<=http:)|(?<=https:))//[^\s/@:?#"\'<>\[]{1,1024}@', re.IGNORECASE)
_SHAPE: Final = re.compile(
    r'(?<![\w-])(?:hf_[A-Za-z0-9]{20,}|dapi[0-9a-f]{32,}|gh[opsu]_[A-Za-z0-9]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*)?)'
    r'|(?<=bearer )(?=[\w.~+/-]{0,64}\d)[\w.~+/-]{8,}=*'
    r'|(?<=PRIVATE KEY-----)[^-]{16,}',
    re.IGNORECASE,
)

_CONTROL_OR_LINE: Final = {
    code: ascii(chr(code))[1:-1]
    for codes in (range(0x20), range(0x7F, 0xA0), range(0x2028, 0x202F), range(0x2066, 0x206A))
    for code in codes
}
"""Escapes of control characters, those of the direction of text included."""
_CONTROL: Final = {code: text for code, text in _CONTROL_OR_LINE.items() if chr(code) not in '\t\n'}

_kept: set[str] = set()


@functools.lru_cache(1024)
def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is a secret: ``password``, ``sig``, ``AccountKey``, ``HF_TOKEN``."""
    return _SECRET_NAME.search(name) is not None and _HARMLESS_NAME.search(name) is None


def keep_secret(value: object) -> None:
    """Have a value hidden from now on, wherever it stands in a text; too short a one is passed over."""
    text = value if isinstance(value, str) else ''
    _kept.update(form for form in (text, quote(text, safe=''), unquote(text)) if len(form) >= SHORTEST)


def keep_secrets_of_url(url: str | None) -> None:
    """Have the password of a URL hidden, also where it stands by itself."""
    if match := _PASSWORD.search(url or ''):
        keep_secret(match['password'])


def redact(text: str) -> str:
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f'{text[:half]} ... ({len(text) - LONGEST} characters left out) ... {text[-half:]}'
    for value in sorted({*_kept, *_of_environment()}, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _SHAPE.sub(HIDDEN, _NAMED.sub(_hide_value, _redact_url(text)))


def visible(text: str, *, one_line: bool = False) -> str:
    """A text that may be another machine's, with control characters as escapes, which a terminal or a log would obey.

    Newlines and tabs stay, except with `one_line`.
    """
    return text.translate(_CONTROL_OR_LINE if one_line else _CONTROL)


def redact_value(value: Any, name: str = '') -> Any:
    """Plain values without their secrets: texts, and what lists and mappings hold, are copied."""
    if isinstance(value, Mapping):
        items = cast('Mapping[Any, Any]', value).items()
        return {key: redact_value(item, str(key)) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [redact_value(item, name) for item in cast('list[Any]', value)]
    if value is None or isinstance(value, bool) or not is_secret_name(name) or _is_of_text(name, str(value)):
        return redact(value) if isinstance(value, str) else value
    return HIDDEN


def without_credentials(url: str) -> str:
    """A URL without password and signature, and the same for all of them: it names a place in files."""
    address, mark, query = _PASSWORD.sub(r'\g<user>@', url).partition('?')
    is_signed = any(is_secret_name(item.partition('=')[0]) for item in query.split('&') if '=' in item)
    # Beside a signature stand its dates and rights, which change with it.
    return address if is_signed else address + mark + query


def redacted_repr(cls: type[T]) -> type[T]:
    """Decorates a class: its repr is without secrets."""
    plain = cls.__repr__

    @functools.wraps(plain)
    def shown(self: T) -> str:
        return redact(plain(self))

    cls.__repr__ = shown  # pyright: ignore[reportAttributeAccessIssue]
    return cls


def warn(message: str, category: type[Warning] = UserWarning, *, stacklevel: int = 1) -> None:
    """As `warnings.warn`, without secrets and control characters."""
    warnings.warn(visible(redact(message)), category, stacklevel=stacklevel + 1)  # noqa: TID251 - this is the way


def logger_of(name: str) -> logging.Logger:
    """The logger of a module, whose records are without secrets and control characters."""
    logger = logging.getLogger(name)  # noqa: TID251 - this is the way
    if not any(isinstance(other, _Redaction) for other in logger.filters):
        logger.addFilter(_Redaction())
    return logger


class _Redaction(logging.Filter):
    """Redacts a record where it is made, so that every handler gets it without secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = visible(redact(record.getMessage())), None
        if record.exc_info and not record.exc_text:
            record.exc_text = visible(redact(logging.Formatter().formatException(record.exc_info)))
        return True


def _of_environment() -> Iterator[str]:
    """Values of variables that hold a secret by their name; paths and kinds of credentials are none."""
    for name in list(os.environ):
        value = os.environ.get(name, '')  # another thread may have removed it
        is_secret = is_secret_name(name) and not name.endswith('CREDENTIALS')
        if is_secret and len(value) >= SHORTEST and value[0] not in '/~.' and not value.isdecimal():
            yield value


def _is_of_text(name: str, value: str) -> bool:
    """Whether a token is a part of a text: what a name stands for is a column's encoding, a number or a count."""
    is_plain = _ENCODING.fullmatch(value) or _NUMBER.fullmatch(value)
    return is_plain is not None and _TOKEN_NAME.search(name) is not None


def _redact_url(text: str) -> str:
    if '@' not in text:
        return text
    return _USER.sub(f'//{HIDDEN}@', _PASSWORD.sub(rf'\g<user>:{HIDDEN}@', text))


def _hide_value(match: re.Match[str]) -> str:
    name, sign, value = match['name'], match['sign'], match['value']
    says_nothing = ':' in sign and sign[0] not in '"\'' and name.lower() in _PLAIN_WORDS
    if says_nothing or not is_secret_name(name):
        return match[0]
    mark = value[0] if value[0] in '"\'' else ''
    if _is_of_text(name, value.strip(mark)):
        return match[0]
    return f'{name}{sign}{match["scheme"] or ""}{mark}{HIDDEN}{mark}'
