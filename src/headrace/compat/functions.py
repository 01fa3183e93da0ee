"""Functions of `streaming.base.util` that have no place elsewhere in headrace."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError

__all__ = [
    'clean_stale_shared_memory',
    'dataframe_to_mds',
    'get_import_exception_message',
    'get_index_basename',
    'get_list_arg',
    'retry',
    'wait_for_file_to_exist',
]

INDEX = 'index.json'


def clean_stale_shared_memory() -> None:
    """Return at once: headrace's processes leave nothing in shared memory, so there is nothing to clean."""


def dataframe_to_mds(*args: Any, **kwargs: Any) -> tuple[str, str]:
    """`headrace.convert.dataframe_to_mds` without its second result, the number of samples that were left out.

    Returns:
        The folder and the URL of the dataset, each '' if there is none.
    """
    from headrace.convert import dataframe_to_mds as convert

    place, _ = convert(*args, **kwargs)
    return place


def get_index_basename() -> str:
    """The name of the file that lists a dataset's shards, 'index.json'."""
    return INDEX


def get_list_arg(text: str) -> list[str]:
    """The parts of a command line's argument between commas; of an empty text none."""
    return text.split(',') if text else []


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """A message for a package that is missing, and headrace's extra that installs it."""
    return f"The package {package_name} is not installed. Install it with pip install 'headrace[{extra_deps}]'."


def wait_for_file_to_exist(filename: str, poll_interval: float, timeout: float, err_msg: str) -> None:
    """Wait for a file.

    Args:
        filename: its path.
        poll_interval: seconds between two looks.
        timeout: seconds after which it is given up.
        err_msg: beginning of the error's message.

    Raises:
        RuntimeError: there was no such file until then.
    """
    begin = time.monotonic()
    while not Path(filename).exists():
        waited = time.monotonic() - begin
        if waited > timeout:
            raise RuntimeError(f'{err_msg} {filename} did not appear in {waited:.3f} s; the limit is {timeout:.3f} s.')
        time.sleep(poll_interval)


def retry(
    exc_class: Any = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """Decorate a function: call it again after an exception. Use it as `@retry` or `@retry(...)`.

    Args:
        exc_class: the exception class, or several, after which it is called again.
        clean_up_fn: called after each failed call.
        num_attempts: calls in total.
        initial_backoff: seconds before the second call; doubled for each further one.
        max_jitter: random seconds that are added to each wait, at most.

    Raises:
        ConfigError: `num_attempts` is below 1.
    """
    if num_attempts < 1:
        raise ConfigError(f'num_attempts must be at least 1, but is {num_attempts}.')
    if not isinstance(exc_class, (type, Sequence)):  # `@retry` without arguments gets the function
        return retry()(exc_class)
    retried: Any = exc_class if isinstance(exc_class, type) else tuple(exc_class)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(num_attempts):
                try:
                    return function(*args, **kwargs)
                except retried:
                    if clean_up_fn is not None:
                        clean_up_fn()
                    if attempt == num_attempts - 1:
                        raise
                time.sleep(initial_backoff * 2**attempt + random.random() * max_jitter)
            return None

        return call

    return decorate
