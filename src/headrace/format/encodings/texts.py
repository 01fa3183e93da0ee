"""Bytes, text, numbers written as text, JSON, and pickles."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import FormatError
from headrace.format.encodings.encoding import Buffer, Encoding, named, require_file, wrong_type

if TYPE_CHECKING:
    from decimal import Decimal


def decode_text(data: Buffer, what: str) -> str:
    """UTF-8 text; FormatError names ``what`` and the place of the first bad byte."""
    try:
        return str(data, 'utf-8')
    except UnicodeDecodeError as error:
        raise FormatError(f'{what} is not UTF-8 text: {error.reason} at byte {error.start} of {len(data)}.') from None


def encode_text(text: str) -> bytes:
    """Text in UTF-8; ValueError names the place of a lone surrogate."""
    try:
        return text.encode('utf-8')
    except UnicodeEncodeError as error:
        raise ValueError(
            f'A column of encoding `str` holds Unicode text, but got {text[:60]!a}, in which the character at '
            f'{error.start} is half a surrogate pair. Correct the text, or make the column `bytes` and store '
            f"text.encode('utf-8', 'surrogatepass')."
        ) from None


def parse_json(text: str, what: str) -> Any:
    """A JSON value; FormatError names ``what`` and the place of the mistake. Too deep nesting is one."""
    try:
        return json.loads(text)
    except RecursionError:
        raise FormatError(f'{what} is JSON that is nested too deeply to read.') from None
    except ValueError as error:  # JSONDecodeError, or an integer of more digits than Python reads
        raise FormatError(f'{what} is not JSON: {error}.') from None


@named('bytes')
class Bytes(Encoding):
    kind = 'bytes'

    def encode(self, obj: Any) -> bytes:
        """The bytes themselves; only ``bytes``, no other buffer."""
        if not isinstance(obj, bytes):
            raise wrong_type('bytes', '`bytes` objects', obj)
        return obj

    def decode(self, data: Buffer) -> bytes:
        return bytes(require_file(data))


@named('str')
class Str(Encoding):
    kind = 'str'
    checks_bytes = True

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, str):
            raise wrong_type('str', 'text', obj)
        return encode_text(obj)

    def decode(self, data: Buffer) -> str:
        return decode_text(data, 'A value of encoding `str`')


@named('str_int')
class StrInt(Encoding):
    """Python ints of any size, in decimal digits."""

    kind = 'int64'  # as `default_collate` makes of Python ints
    checks_bytes = True

    def encode(self, obj: Any) -> bytes:
        """The digits. A bool is refused: its text ``True`` could not be read back."""
        if not isinstance(obj, int) or isinstance(obj, bool):
            raise wrong_type('str_int', 'Python ints (no bools)', obj)
        try:
            return str(obj).encode('ascii')
        except ValueError as error:
            raise ValueError(
                f'A column of encoding `str_int` holds integers that Python writes as text. {error}. Store its bytes.'
            ) from None

    def decode(self, data: Buffer) -> int:
        text = decode_text(data, 'A value of encoding `str_int`')
        try:
            return int(text)
        except ValueError:
            raise FormatError(f'A value of encoding `str_int` is not an integer: got {text[:60]!r}.') from None


@named('str_float')
class StrFloat(Encoding):
    """Python floats, in the shortest text that gives the same float back."""

    kind = 'float64'
    checks_bytes = True

    def encode(self, obj: Any) -> bytes:
        """The text of the float; numpy's float64 is a Python float, float32 is not."""
        if not isinstance(obj, float):
            raise wrong_type('str_float', 'Python floats', obj)
        return repr(float(obj)).encode('ascii')

    def decode(self, data: Buffer) -> float:
        text = decode_text(data, 'A value of encoding `str_float`')
        try:
            return float(text)
        except ValueError:
            raise FormatError(f'A value of encoding `str_float` is not a number: got {text[:60]!r}.') from None


@named('str_decimal')
class StrDecimal(Encoding):
    kind = 'Decimal'
    checks_bytes = True

    def encode(self, obj: Any) -> bytes:
        from decimal import Decimal  # few columns are decimals, and its import is slow

        if not isinstance(obj, Decimal):
            raise wrong_type('str_decimal', '`decimal.Decimal` objects', obj)
        return str(obj).encode('ascii')

    def decode(self, data: Buffer) -> Decimal:
        from decimal import Decimal, InvalidOperation

        text = decode_text(data, 'A value of encoding `str_decimal`')
        try:
            return Decimal(text)
        except InvalidOperation:
            raise FormatError(f'A value of encoding `str_decimal` is not a decimal: got {text[:60]!r}.') from None


def _plain(obj: Any) -> Any:
    if isinstance(obj, np.ndarray):
        return obj.tolist()
    raise TypeError(
        f'A column of encoding `json` holds values that JSON can express and numpy arrays, but got a '
        f'{type(obj).__name__}. Convert it to numbers, text, lists and dicts.'
    )


@named('json')
class JSON(Encoding):
    """JSON text, keys in their own order; numpy arrays become nested lists."""

    kind = 'JSON value'
    checks_bytes = True

    def encode(self, obj: Any) -> bytes:
        """The JSON text in ASCII; a value that JSON cannot express is a TypeError, or a ValueError."""
        try:
            return json.dumps(obj, default=_plain).encode('ascii')
        except (ValueError, RecursionError) as error:  # a circle, too deep, or an integer of thousands of digits
            raise ValueError(
                f'A column of encoding `json` holds values that Python writes as JSON. {error}. Store it as bytes.'
            ) from None

    def decode(self, data: Buffer) -> Any:
        """The value; tuples come back as lists, keys as text."""
        what = 'A value of encoding `json`'
        return parse_json(decode_text(data, what), what)


@named('pkl')
class Pickle(Encoding):
    """Any object, as a pickle. Reading one runs the code that it names, so it needs ``allow_unsafe_types``."""

    kind = 'pickled object'
    trusted_name = False

    def encode(self, obj: Any) -> bytes:
        """The pickle, protocol 4, which every supported Python reads."""
        return pickle.dumps(obj, protocol=4)

    def decode(self, data: Buffer) -> Any:
        try:
            return pickle.loads(data)  # noqa: S301 - the user allowed it
        except Exception as error:
            raise FormatError(f'A value of encoding `pkl` cannot be unpickled: {error!r}.') from error
