"""Looking inside datasets: what one is (`describe`), and whether it is whole (`verify`)."""

from headrace.inspect.describe import ColumnDescription, Description, Spread, describe
from headrace.inspect.pictures import save_pictures, thumbnail
from headrace.inspect.shard_check import BadShard
from headrace.inspect.values import SampleValue, describe_decoded
from headrace.inspect.verify import VerifyReport, verify

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
