"""The JSON form of decoded values, as recorded datasets have it."""

from __future__ import annotations

import base64
import hashlib
from decimal import Decimal
from typing import Any

import numpy as np

__all__ = ['NoValueError', 'covers', 'neutral', 'value']


def neutral(v: Any) -> Any:
    """The JSON form of a decoded value."""

    def digest(b: bytes) -> str:
        return hashlib.sha256(b).hexdigest()

    if v is None:
        return {'t': 'none'}
    if isinstance(v, bool):
        return {'t': 'bool', 'v': v}
    if isinstance(v, np.ndarray):
        values = np.ascontiguousarray(v).tobytes()
        return {'t': 'ndarray', 'dtype': v.dtype.name, 'shape': list(v.shape), 'sha256': digest(values)}
    if isinstance(v, np.generic):
        return {'t': 'scalar', 'dtype': v.dtype.name, 'hex': v.tobytes().hex()}
    if isinstance(v, int):
        return {'t': 'int', 'v': str(v)}
    if isinstance(v, float):
        return {'t': 'float', 'v': repr(v), 'hex': v.hex()}
    if isinstance(v, str):
        return {'t': 'str', 'v': v}
    if isinstance(v, bytes | bytearray):
        return {'t': 'bytes', 'len': len(v), 'sha256': digest(bytes(v))}
    if isinstance(v, Decimal):
        return {'t': 'decimal', 'v': str(v)}
    if _is_image(v):
        return {'t': 'image', 'mode': v.mode, 'size': list(v.size), 'sha256': digest(v.tobytes())}
    for kind, name in ((list, 'list'), (tuple, 'tuple')):
        if isinstance(v, kind):
            return {'t': name, 'v': [neutral(x) for x in v]}
    if isinstance(v, set | frozenset):
        return {'t': 'set', 'v': [neutral(x) for x in sorted(v)]}
    if isinstance(v, dict):
        return {'t': 'dict', 'v': [[neutral(k), neutral(x)] for k, x in v.items()]}
    return {'t': 'complex' if isinstance(v, complex) else 'other', 'v': repr(v)[:200]}


def _is_image(v: Any) -> bool:
    return hasattr(v, 'tobytes') and hasattr(v, 'mode') and hasattr(v, 'getbands')


def covers(big: Any, small: Any) -> bool:
    """Whether ``big`` says at least what ``small`` says (expected values carry extra fields such as pixels)."""
    if isinstance(small, dict):
        return isinstance(big, dict) and all(k in big and covers(big[k], v) for k, v in small.items())
    if isinstance(small, list):
        return isinstance(big, list) and len(big) == len(small) and all(map(covers, big, small))
    return big == small


class NoValueError(Exception):
    """The JSON form does not say enough to make the value."""


def value(n: Any) -> Any:
    """The object that a JSON form stands for."""
    t = n['t']
    if t == 'none':
        return None
    if t in ('bool', 'str'):
        return n['v']
    if t == 'int':
        return int(n['v'])
    if t == 'float':
        return float(n['v'])
    if t == 'decimal':
        return Decimal(n['v'])
    if t == 'bytes' and 'b64' in n:
        return (bytearray if n.get('bytearray') else bytes)(base64.b64decode(n['b64']))
    plain = n.get('dtype', '').rstrip('0123456789') in ('int', 'uint', 'float', 'bool') and n['dtype'] != 'float128'
    if t == 'ndarray' and plain and ('data_hex' in n or 0 in n['shape']):
        a = np.frombuffer(bytes.fromhex(n.get('data_hex', '')), n['dtype']).reshape(n['shape'])
        return a.astype(a.dtype.newbyteorder('>')) if n.get('byteorder') == 'big' else a
    if t == 'scalar' and plain:
        return np.frombuffer(bytes.fromhex(n['hex']), n['dtype'])[0]
    if t == 'image' and 'source_file_b64' in n:
        return base64.b64decode(n['source_file_b64'])  # stored verbatim, as bytes are
    if t == 'image' and 'pixels_b64' in n and n['mode'] != 'P':
        from PIL import Image

        return Image.frombytes(n['mode'], tuple(n['size']), base64.b64decode(n['pixels_b64']))
    if t == 'list':
        return [value(x) for x in n['v']]
    if t == 'tuple':
        return tuple(value(x) for x in n['v'])
    if t == 'dict':
        return {value(k): value(x) for k, x in n['v']}
    if t == 'set':
        return {value(x) for x in n['v']}
    raise NoValueError(t)
