"""`tokenize`: from texts to token shards, once, instead of in each epoch of each run.

It is a conversion with a tokenizer between reading and writing. A finished dataset keeps the records of its tasks, in
``.headrace-tokenized.json``. So another call does only the tasks whose inputs have changed:

- The digest of its last input decides the end of a task. So a file that is added, removed or changed changes the
  tasks around it, and no others.
- A record is found by the digest of its task's inputs. Changed tasks get shards with new numbers, and the old dataset
  stays readable until its index is replaced. Then shards that the new index does not list are removed.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.convert.apart import check_apart
from headrace.convert.conversion import Conversion, check_settings
from headrace.convert.inputs.choose import choose_inputs
from headrace.convert.inputs.files import ShardInputs
from headrace.convert.inputs.programs import IterableSamples
from headrace.convert.report import ConversionReport
from headrace.convert.stored_dataset import INDEX, open_stored
from headrace.convert.tasks import Encode, Job, OnError
from headrace.dataset.writing.place import StorePlace
from headrace.errors import ConfigError, DocumentError
from headrace.format import MDSEncoder
from headrace.sources.source_store import has_glob
from headrace.storage import Retry, StoreOptions, open_store
from headrace.storage.output import check_output


@dataclass(frozen=True)
class _Encoder:
    """Makes the function of a worker, which encodes as `packing` does: so both make the same tokens of a text."""

    tokenizer: Any
    column: str
    dtype: str

    def __call__(self) -> Encode:
        import torch

        from headrace.packing.settings import Packing
        from headrace.packing.tokenizers import encoder_of

        if multiprocessing.parent_process() is not None:  # workers share the cores
            os.environ['TOKENIZERS_PARALLELISM'] = 'false'
            torch.set_num_threads(1)
        encode = encoder_of(Packing(sequence_length=2, tokenizer=self.tokenizer))

        def columns(batch: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
            if self.column not in batch:
                raise DocumentError(f'A document is in the column {self.column!r}, but there are {", ".join(batch)}.')
            try:
                documents = encode(batch[self.column])
            except (DocumentError, MemoryError):
                raise
            except Exception as error:  # libraries raise many kinds
                raise DocumentError(f'The tokenizer failed: {type(error).__name__}: {error}') from error
            if any(document.labels is not None for document in documents):
                raise DocumentError(
                    'Token shards have no labels, but the tokenizer gives `labels`. Use it in `packing`.'
                )
            tokens = [document.tokens.astype(self.dtype) for document in documents if len(document.tokens)]
            return {'tokens': tokens, 'length': [len(found) for found in tokens]}

        return columns


def tokenize(
    source: Any,
    out: str | Path,
    *,
    tokenizer: Any,
    column: str = 'text',
    format: str | None = None,  # noqa: A002 - as in a stream
    format_options: Mapping[str, Any] | None = None,
    split: str | None = None,
    workers: int = 1,
    on_error: OnError = 'stop',
    compression: str | None = None,
    hashes: Sequence[str] | None = None,
    size_limit: int | str | None = 1 << 26,
    limit: int | None = None,
    exist_ok: bool = False,
    progress_bar: bool = True,
    start_method: str | None = None,
    allow_unsafe_types: bool = False,
    source_options: StoreOptions | None = None,
    out_options: StoreOptions | None = None,
    retry: int = 2,
) -> ConversionReport:
    """Write a dataset of tokens from texts, which `Packing` without a `tokenizer` reads.

    A document is a sample with the columns `tokens`, ``ndarray:uint16`` for tokens below 65,536 and else
    ``ndarray:int32``, and `length`, the number of its tokens, ``int32``. Special tokens are not among them: `Packing`
    adds them, as it does to texts. A text without tokens is left out.

    The same call on a finished `out` brings it up to date: it tokenises parts of the source that are new or have
    changed, and drops those that are gone. The dataset is the same for any number of workers.

    Args:
        source: as in `convert`, and a dataset of MDS shards. Only a source of files knows which of its parts changed.
        out: folder or URL of the new dataset.
        tokenizer: path of a ``tokenizer.json``; another text is an argument of ``AutoTokenizer.from_pretrained``, such
            as a folder; or a tokenizer, as `Packing.tokenizer`, but none that gives labels.
        column: the column of the texts.
        format: as in `convert`.
        format_options: as in `convert`.
        split: as in `convert`.
        workers: number of processes. 1: this process, with the threads of the tokenizer.
        on_error: as in `convert`, for a document that is not text.
        compression: as in `convert`.
        hashes: as in `convert`.
        size_limit: bytes of a shard before compression, as a number or text ('64mb'). A task ends after about a
            quarter as many bytes of the source.
        limit: as in `convert`.
        exist_ok: whether to empty an `out` that holds something else, or tokens with other settings.
        progress_bar: as in `convert`.
        start_method: as in `convert`.
        allow_unsafe_types: as in `convert`.
        source_options: as in `convert`.
        out_options: as in `convert`.
        retry: as in `convert`.

    Raises:
        ConfigError: an argument breaks a rule; or `out` holds tokens of another source, tokenizer or settings.
        FileExistsError: `out` holds something else, and `exist_ok` is not set.
        ConversionError: a document is bad, or a worker process died.
        StorageError: a store failed.
    """
    begin = time.monotonic()
    from headrace.packing.tokenizers import (  # other conversions start without torch
        ChatTokenizer,
        fingerprint,
        is_of_library,
        load_tokenizer,
        meaning_of_tokens,
        vocabulary_size,
    )

    check_settings(workers=workers, on_error=on_error, limit=limit, exist_ok=exist_ok)
    check_output(out)
    check_apart(source, out)
    if isinstance(tokenizer, str | os.PathLike):
        name = os.fspath(tokenizer)
        is_file = name.endswith('.json') or Path(name).is_file()
        tokenizer = load_tokenizer('tokenizers' if is_file else 'transformers', name)
    if tokenizer is None or isinstance(tokenizer, ChatTokenizer):
        raise ConfigError(
            f'`tokenizer` of tokenize is one that makes tokens without labels, but is {tokenizer!r:.80}. Give a '
            f'ChatTokenizer to `packing`.'
        )
    name = getattr(tokenizer, '__qualname__', '')
    is_named = isinstance(getattr(tokenizer, 'fingerprint', None), str) or is_of_library(tokenizer)
    if not is_named and (isinstance(tokenizer, functools.partial) or '<lambda>' in name):
        raise ConfigError(
            f'A second call of tokenize knows a tokenizer by its name, but {tokenizer!r:.80} has none. Write a '
            f'function at the top of a module, or give it an attribute `fingerprint`, a text.'
        )
    attempts, options = Retry(attempts=1 + retry), source_options or StoreOptions()
    chosen = _shards_at(source, column, format, split, options, limit, allow_unsafe_types, attempts) or choose_inputs(
        source,
        function=None,
        columns=[column],
        format=format,
        format_options=format_options,
        split=split,
        limit=limit,
        allow_unsafe_types=allow_unsafe_types,
        options=options,
        retry=attempts,
    )
    inputs = chosen.first if isinstance(chosen, IterableSamples) else chosen
    size = vocabulary_size(tokenizer)
    dtype = 'uint16' if size is not None and size <= 1 << 16 else 'int32'
    columns = {'tokens': f'ndarray:{dtype}', 'length': 'int32'}
    encoder = MDSEncoder(columns, compression=compression, hashes=hashes, size_limit=size_limit, cost='tokens')
    job = Job(
        inputs=inputs,
        columns=columns,
        meanings={'tokens': meaning_of_tokens(tokenizer)},
        encoder=_Encoder(tokenizer, column, dtype),
        settings={'tokenizer': fingerprint(tokenizer), 'column': column},
        source_columns={column: 'str'},
        keeps_records=True,
        out=str(out),
        options=out_options or StoreOptions(),
        compression=encoder.compression,
        hashes=encoder.hashes,
        size_limit=encoder.size_limit,
        cost='tokens',
        on_error=on_error,
        retry=attempts,
    )
    report = Conversion(job, StorePlace(open_store(job.out, job.options), attempts), chosen).do(
        exist_ok=exist_ok, append=False, workers=workers, start_method=start_method, progress_bar=progress_bar
    )
    return replace(report, seconds=time.monotonic() - begin)


def _shards_at(
    source: Any,
    column: str,
    format: str | None,  # noqa: A002
    split: str | None,
    options: StoreOptions,
    limit: int | None,
    allow_unsafe_types: bool,
    retry: Retry,
) -> ShardInputs | None:
    """The shards of a dataset with an index; None: there is none, or `source` is no place."""
    if not isinstance(source, str | os.PathLike) or format not in (None, 'mds'):
        return None
    url = os.fspath(source)
    if has_glob(url):
        return None
    url = f'{url.rstrip("/")}/{split}' if split else url
    if format is None and not StorePlace(open_store(url, options), retry).has(INDEX):
        return None
    dataset = open_stored(url, options, retry=retry)
    return ShardInputs(dataset, column, limit=limit, allow_unsafe_types=allow_unsafe_types, retry=retry)
