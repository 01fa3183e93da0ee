"""The description of a known dataset: its splits, its options, and the module that lists its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headrace.convert import ConversionReport
    from headrace.storage import StoreOptions

__all__ = ['Option', 'Original', 'flag']


def flag(text: str) -> bool:
    """The value of an option that is 0 or 1.

    Raises:
        ValueError: it is neither.
    """
    if text not in ('0', '1'):
        raise ValueError(text)
    return text == '1'


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of one dataset, besides those of all conversions."""

    name: str
    """Its keyword. On the command line: ``--min-size`` and ``--min_size`` for 'min_size'."""
    parse: Callable[[str], Any]
    """Makes of a text of the command line the value, which is JSON. It raises ValueError."""
    default: Any
    help: str


@dataclass(frozen=True, slots=True)
class Original:
    """A known dataset in the layout of its owners' distribution."""

    name: str
    """As in ``headrace convert NAME``."""
    title: str
    """For the command's help: the full name, and what IN holds."""
    module: str
    """Name of the module whose function `records` lists the records. It takes the folder or file IN, the split (`None`
    for a dataset without splits), and the options by name. It raises `ObjectNotFoundError` if IN has no such split."""
    splits: tuple[str, ...] = ()
    """Splits of the distribution, in the order of conversion. Each becomes a folder of OUT. Empty: there are none."""
    options: tuple[Option, ...] = ()
    size_limit: int = 1 << 26
    """Bytes of a shard, by default."""
    reader: str = 'StreamingDataset'
    """Name of the class that reads the new dataset, for the report."""
    example: str = ''
    """Arguments that the command needs beside IN and OUT, for the examples of its help."""

    def convert(
        self,
        source: str | Path,
        out: str | Path,
        *,
        splits: Sequence[str] | None = None,
        workers: int = 1,
        on_error: Literal['stop', 'collect'] = 'collect',
        compression: str | None = None,
        hashes: Sequence[str] | None = ('sha1', 'xxh64'),
        size_limit: int | str | None = None,
        limit: int | None = None,
        exist_ok: bool = False,
        progress_bar: bool = True,
        start_method: str | None = None,
        out_options: StoreOptions | None = None,
        **options: Any,
    ) -> dict[str, ConversionReport]:
        """Write the dataset as MDS shards: each split in the folder of its name under `out`.

        The shards are the same for any number of workers. After a crash, the same call does what is left to do.

        Args:
            source: folder (or file) of the distribution on this machine.
            out: folder or URL of the new dataset.
            splits: splits to convert; None: all that `source` holds.
            workers: number of processes. 1: this process.
            on_error: for a broken member: 'stop'; or 'collect', which leaves it out, and lists it in the report and in
                ``errors.jsonl`` beside the index.
            compression: 'zstd', 'br', 'bz2', 'gz' or 'snappy', with a level as in 'zstd:7'.
            hashes: names of hashes to store in the index.
            size_limit: bytes of a shard before compression, as a number or text ('64mb'); None: the dataset's default.
            limit: number of records of each split to convert, from the first.
            exist_ok: whether to replace what the folders of the splits hold, finished conversions included.
            progress_bar: whether to show one.
            start_method: of processes: 'fork', 'spawn' or 'forkserver'. None: Python's default.
            out_options: how to reach the store of `out`.
            options: those of the dataset, by name.

        Returns:
            The report of each split; of a dataset without splits under the key ''.

        Raises:
            ConfigError: an argument breaks a rule.
            ObjectNotFoundError: `source` does not hold the dataset, or one of `splits`.
            FileExistsError: a folder of `out` holds something else, and `exist_ok` is not set.
            ConversionError: a worker process died; or a member is broken, with `on_error='stop'`.
            StorageError: a store failed.
        """
        from headrace.originals.splits import convert_splits  # loads numpy, which no help needs

        known = {option.name: option.default for option in self.options}
        unknown = [name for name in options if name not in known]
        if unknown:
            own = f'those of {self.name} are {", ".join(known)}' if known else f'{self.name} has none of its own'
            raise ArgumentError(f'The option `{unknown[0]}` is not known; {own}. Correct its name.')
        return convert_splits(
            self,
            str(source),
            str(out),
            splits=splits,
            limit=limit,
            options={**known, **options},
            workers=workers,
            on_error=on_error,
            compression=compression,
            hashes=sorted(hashes or ()),
            size_limit=self.size_limit if size_limit is None else size_limit,
            exist_ok=exist_ok,
            progress_bar=progress_bar,
            start_method=start_method,
            out_options=out_options,
        )

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """The program of its module, with the names of MosaicML Streaming's arguments.

        Args:
            arguments: of the command line; None: those of the process.

        Returns:
            The exit status.
        """
        from headrace.originals.command import run_module  # which imports this module's package

        return run_module(self, arguments)
