"""Looking inside datasets: what one is (`describe`), and whether it is whole (`verify`)."""

from headrace.inspect.describe import (
    ColumnDescription,
    Description,
    SampleValue,
    Spread,
    describe,
    describe_decoded,
    save_pictures,
    thumbnail,
)
from headrace.inspect.verify import BadShard, VerifyReport, verify

__all__ = [
    'BadShard',
    'ColumnDescription',
    'Description',
    'SampleValue',
    'Spread',
    'VerifyReport',
    'describe',
    'describe_decoded',
    'save_pictures',
    'thumbnail',
    'verify',
]
