"""Secrets that tests plant, and where they look for them."""

from __future__ import annotations

import base64
import traceback
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from headrace.storage import StoreOptions, register_store, resolve
from headrace.storage.stores.local import LocalStore

PASSWORD = 'pl4nted/p@ss'
"""As it is after unquoting; AWS's keys have slashes, too."""
SIGNATURE = 'pl4ntedS1gnature%2Fx%3D'
TOKEN = 'pl4nted-t0ken-of-an-option'
VARIABLE = 'pl4nted-variable'
SECRETS = (PASSWORD, SIGNATURE, TOKEN, VARIABLE)

USER = f'reader:{quote(PASSWORD, safe="")}'
"""The userinfo of a URL."""


def found_in(text: str) -> list[str]:
    """The secrets that a text holds, in any form."""
    plain = [form for secret in SECRETS for form in (secret, quote(secret, safe=''), unquote(secret))]
    encoded = [base64.b64encode(f'reader:{PASSWORD}'.encode()).decode()]
    return [form for form in (*plain, *encoded) if form in text]


def found_in_error(error: BaseException) -> list[str]:
    """The secrets in all that can be seen of an error: message, repr, traceback, and the errors that led to it."""
    texts = [''.join(traceback.format_exception(error))]
    todo, seen = [error], set()
    while todo:
        each = todo.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            texts += [str(each), repr(each), repr(each.args)]
            todo += [each.__cause__, each.__context__]
    return [secret for text in texts for secret in found_in(text)]


def found_in_files(folder: Path) -> list[tuple[str, str]]:
    """The secrets in the files of a folder, hidden ones included."""
    files = [path for path in folder.rglob('*') if path.is_file()]
    assert files, f'{folder} holds no files to look at'
    return [(path.name, secret) for path in files for secret in found_in(path.read_bytes().decode('latin-1'))]


class PlantedStore(LocalStore):
    """A folder behind a URL with a password, which it tells in every error."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        super().__init__('/' + url.partition('://')[2].partition('@')[2].partition('/')[2])
        self._told = url, options

    @property
    def url(self) -> str:
        """As it was given."""
        return self._told[0]


def register_planted_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``planted://user:password@host/folder`` name a folder, for one test."""
    monkeypatch.setattr(resolve, '_factories', dict(resolve._factories))
    register_store('planted', PlantedStore)


def planted_url(folder: Path) -> str:
    """The URL of a folder, with a password."""
    return f'planted://{USER}@host{folder}'
