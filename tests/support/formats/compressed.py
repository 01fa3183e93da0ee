"""Data to compress."""

from __future__ import annotations

import random

DATA = random.Random(0).randbytes(3000) + b'headrace ' * 5000
