"""The interruption and the errors of a conversion, in the words of the command line."""

from __future__ import annotations

import sys
from collections.abc import Generator

from headrace.error_mapping import mapping_errors
from headrace.errors import ConversionError

__all__ = ['command_errors']


@mapping_errors
def command_errors() -> Generator[None]:
    """Say after an interruption how to continue; name the command's option in the error of an existing folder.

    Raises:
        ConversionError: the output folder holds something.
    """
    try:
        yield
    except KeyboardInterrupt:
        print('headrace: Stopped. The same command continues where this one stopped.', file=sys.stderr)
        raise
    except FileExistsError as error:
        text = str(error).replace('pass `exist_ok=True`', 'pass --exist-ok').replace('`append=True`', '--append')
        raise ConversionError(text) from error
