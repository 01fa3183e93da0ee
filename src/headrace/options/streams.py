"""The options of a stream, most of which a dataset has too, as defaults for its streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from headrace.errors.redaction import redacted_repr
from headrace.format import get_hashes
from headrace.options.constraints import AtLeast, Count, MoreThan, OneOf, Parsed
from headrace.selection import Conditions, Fraction, Predicate, Subset
from headrace.sources.formats import known_formats
from headrace.tensors.decoding import Decode, DecodeLike

OnChangedData: TypeAlias = Literal['refresh', 'refuse']


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """Transfer of shards from the store to the cache; of one stream, or a default for all streams of a loader."""

    download_retry: Annotated[int | None, AtLeast(0)] = None
    """Further attempts after a failed download; 0: none. A store that is busy or out of reach is asked for at least
    half a minute. Default: 2."""

    download_timeout: Annotated[float | None, MoreThan(0)] = None
    """Seconds without a byte before an attempt fails. Default: 60."""

    validate_hash: Annotated[str | None, OneOf(tuple(sorted(get_hashes())))] = None
    """Hash of the index by which shards are verified, after their download or when a process first opens them: see
    `docs/mds.md`. Default: sizes only."""

    keep_zip: bool | None = None
    """Keep the compressed file beside the unpacked one. Default: false."""

    endpoint_url: str | None = None
    """Address of the store's server. Default: the cloud's own."""

    region: str | None = None
    """Region of the bucket. Default: from the cloud's configuration."""

    anonymous: bool | None = None
    """Send no credentials, for public buckets. Default: false."""

    requester_pays: bool | None = None
    """Pay for the requests, if a bucket's owner demands it. Default: false."""

    store_options: Mapping[str, Any] | None = None
    """Options of this kind of store: see `docs/stores.md`. All stores take `connect_timeout`, the seconds for a
    connection (10 by default), and `request_timeout`, the seconds for a request (300 by default) plus 1 s for each KiB
    of its answer."""

    on_changed_data: OnChangedData | None = None
    """Fetch remote data that changed since they were cached, and remove cached shards that may differ; or raise.
    Default: `refresh`."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig(TransferConfig):
    """Selection of stored samples and columns; of one stream, or a default for all streams of a loader."""

    subset: Annotated[Subset | Sequence[Sequence[int | str | None]] | None, Parsed(Subset.read, 'a list of ranges')] = (
        None
    )
    """Ranges of stored samples, the stop exclusive: `[[0, 1m], [5m, null]]`. Only these are offered. Default: all."""

    fraction: Annotated[Fraction | Sequence[float | str] | None, Parsed(Fraction.read, 'two numbers from 0 to 1')] = (
        None
    )
    """Random part of each shard: `[0, 0.95]` to train, `[0.95, 1]` to validate. Parts that only touch share no sample.
    Default: all."""

    fraction_seed: Annotated[int | None, AtLeast(0)] = None
    """Seed of the random parts; parts of one split share it. Default: 0."""

    where: Annotated[
        Conditions | Predicate | Mapping[str, Any] | None, Parsed(Conditions.read, 'a mapping from columns to tests')
    ] = None
    """Tests that a sample must pass, `{lang: [de, fr], tokens: {at_least: 512}}`, or a `Where` in Python. They read all
    samples of `subset`, once per machine."""

    columns: Sequence[str] | None = None
    """Columns to read, such as `[text, id]`; no other is decoded. Default: all."""

    cost: str | None = None
    """Column whose length or number is a sample's cost, for `bucket`, `batch_cost` and `balance`. It holds whole
    numbers, also as text, or else texts, bytes or arrays of one axis, whose lengths count. It is read once per
    machine."""

    decode: Annotated[DecodeLike | None, Parsed(Decode.read, '`tensor`, or a mapping')] = None
    """Images and sound to read as tensors, such as `{image: {size: 224}}`: see `docs/images.md`. Default: images of
    Pillow, and bytes."""

    format: Annotated[str | None, OneOf(known_formats)] = None
    """Format of the data: see `docs/formats.md`. Default: found by looking."""

    format_options: Mapping[str, Any] | None = None
    """Options of the format, such as `{delimiter: ;}` of `csv`: see `docs/formats.md`."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(SelectionConfig):
    """The options of one stream. At most one of `proportion`, `repeat` and `choose` is its weight."""

    name: str | None = None
    """Name of the stream in errors, metrics and checkpoints: its key in a mapping. The order of samples depends on
    it."""

    remote: str | None = None
    """URL or folder of the shards, without the split. Default: the shards are in `local`."""

    local: str | None = None
    """Cache folder. Default: a folder of the system's temporary one, named after `remote`."""

    split: str | None = None
    """Folder of this split, under `remote` and `local`, such as `train`."""

    proportion: Annotated[float | None, AtLeast(0)] = None
    """Share of the epoch, relative to the sum over all streams."""

    repeat: Annotated[float | None, AtLeast(0)] = None
    """Times that an epoch takes the stream, such as 0.5 or 2."""

    choose: Annotated[int | None, Count(least=0)] = None
    """Samples that an epoch takes, such as `100k`."""

    packing: Any = None
    """A `headrace.packing.StreamPacking` in Python: column, tokenizer and so on of this stream's documents, where they
    are not those of the loader's `packing`."""
