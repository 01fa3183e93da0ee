"""The schema of streams: their data, its transfer, the selection of samples, and their weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from headrace.config.constraints import AtLeast, Count, MoreThan, OneOf, Parsed
from headrace.config.packing import StreamPackingConfig
from headrace.format import get_hashes
from headrace.images import Decode
from headrace.order.mixture.rules import point_errors, stream_errors
from headrace.order.mixture.schedule import Change
from headrace.redaction import redacted_repr
from headrace.rules import BrokenRule, path_errors
from headrace.selection import Conditions, Fraction, Subset
from headrace.sources.formats import FORMATS

__all__ = ['SOURCE_NAMES', 'SchedulePointConfig', 'SelectionConfig', 'StreamConfig', 'TransferConfig']

SOURCE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(('path', 'data', 'source', 'root'), ('remote', 'local')),
    **dict.fromkeys(('url', 'uri', 'bucket'), ('remote',)),
    **dict.fromkeys(('folder', 'dir', 'directory', 'cache', 'cache_dir', 'data_dir', 'data_path'), ('local',)),
}
"""Names of `remote` and `local` in other programs."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """Transfer of shards from the store to the cache; of one stream, or a default for all streams of a loader."""

    download_retry: Annotated[int, AtLeast(0)] | None = None
    """Further attempts after a failed download, or more, for half a minute; 0: none. Default: 2."""

    download_timeout: Annotated[float, MoreThan(0)] | None = None
    """Seconds without a byte after which an attempt has failed. Default: 60."""

    validate_hash: Annotated[str, OneOf(tuple(sorted(get_hashes())))] | None = None
    """Hash to verify shards with; it must be one that the shards were written with. Default: sizes only."""

    keep_zip: bool | None = None
    """Keep the compressed file beside the unpacked one. Default: false."""

    endpoint_url: str | None = None
    """Address of the store's server, such as `http://localhost:9000`. Default: the cloud's own."""

    region: str | None = None
    """Region of the bucket. Default: from the cloud's own configuration."""

    anonymous: bool | None = None
    """Send requests without credentials, for public buckets. Default: false."""

    requester_pays: bool | None = None
    """Agree to pay for the requests, if a bucket's owner demands it. Default: false."""

    store_options: Mapping[str, object] | None = None
    """Options of this kind of store, and general time-outs: `docs/stores.md` lists them. Default: none."""

    on_changed_data: Literal['refresh', 'refuse'] | None = None
    """If the remote data changed since they were cached: fetch the new ones, or raise. Default: `refresh`."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig(TransferConfig):
    """Selection of stored samples and columns; of one stream, or a default for all streams of a loader."""

    subset: Annotated[Subset, Parsed(Subset.read, 'a list of ranges')] | None = None
    """Ranges of the stored samples: `[[0, 1m], [5m, null]]`, the stop exclusive, null the end. Default: all."""

    fraction: Annotated[Fraction, Parsed(Fraction.read, 'two numbers from 0 to 1')] | None = None
    """Random part of each shard: `[0, 0.95]` to train with, `[0.95, 1]` to validate. Default: all."""

    fraction_seed: Annotated[int, AtLeast(0)] | None = None
    """Which random parts; parts of one split have the same. Default: 0."""

    where: Annotated[Conditions, Parsed(Conditions.read, 'a mapping from columns to tests')] | None = None
    """Tests that a sample must pass: `{lang: [de, fr], tokens: {at_least: 512}}`. Default: none."""

    columns: tuple[str, ...] | None = None
    """Columns to read, such as `[text, id]`; no other is decoded. Default: all."""

    decode: Annotated[Decode, Parsed(Decode.read, '`tensor`, or a mapping')] | None = None
    """Columns of images to read as tensors, such as `{image: {size: 224, crop: random}}`; see `docs/images.md`."""

    format: Annotated[str, OneOf(FORMATS)] | None = None
    """Format of the data: `mds` for shards, else `docs/formats.md` says how it is read. Default: found by looking."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig(SelectionConfig):
    """One stream: the place of its shards, and its weight.

    A weight is one of `proportion`, `repeat`, `choose`; a stream without one is taken once.
    """

    name: str = ''
    """Name of the stream: its key in the mapping, or this key in a list. The order of samples depends on it."""

    remote: str | None = None
    """URL or folder of the shards, without the split: `s3://bucket/code`. Default: the shards are in `local`."""

    local: str | None = None
    """Cache folder, relative to the working directory. Default: a folder of the system's temporary one."""

    split: str | None = None
    """Folder under `remote` and `local` that holds this split. Default: none."""

    proportion: Annotated[float, AtLeast(0)] | None = None
    """Share of the epoch, relative to the sum over all streams; all streams of a loader have one, or none has."""

    repeat: Annotated[float, AtLeast(0)] | None = None
    """Times that the stream is taken per epoch: 0.5 is half of it, 2 is all of it twice."""

    choose: Annotated[int, Count(least=0)] | None = None
    """Samples taken per epoch, such as `100k`."""

    packing: StreamPackingConfig | None = None
    """Its documents, with `packing` of the loader: another column or tokenizer. Default: as `packing` there says."""

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, ...]]:
        """Names of these keys in other programs."""
        of_packing = dict.fromkeys(('column', 'tokenizer', 'token_dtype', 'eos_token_id', 'bos_token_id'), ('packing',))
        return {
            **SOURCE_NAMES,
            **of_packing,
            'weight': ('proportion', 'repeat'),
            'ratio': ('proportion',),
            'share': ('proportion',),
        }

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The rules between this stream's keys that do not hold."""
        if self.remote is None and self.local is None:
            yield BrokenRule(('remote', 'local'), 'a stream needs `remote`, `local`, or both')
        yield from stream_errors(self)
        yield from path_errors(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePointConfig:
    """Proportions from one point of the run on."""

    at: Annotated[int, Count(least=0)] = 0
    """Samples of all ranks since the beginning of the run, over all epochs, such as `10m`; the first is 0."""

    proportions: Mapping[str, Annotated[float, AtLeast(0)]] = field(default_factory=dict[str, float])
    """Shares of the streams by name, relative to their sum; a stream that is not named has none."""

    change: Change = 'step'
    """How these proportions are reached: at once, or along a line from those of the point before."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The rules between this point's keys that do not hold."""
        yield from point_errors(self)
