"""Datasets of Hugging Face's library: an input is a block of rows, read as Arrow columns without decoding images."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from headrace.convert.inputs.programs import measure
from headrace.convert.inputs.samples import classes_file
from headrace.convert.protocol import Sizes
from headrace.sources.arrow_types import arrow_columns, class_names, import_pyarrow, to_columns
from headrace.sources.ledger import Ledger

__all__ = ['HuggingFaceInputs', 'is_hugging_face', 'is_transformed']

_BLOCK: Final = 4 << 20
"""Bytes of a block, about."""
_MAX_ROWS: Final = 4096


def is_hugging_face(source: object) -> bool:
    """Whether it is a `datasets.Dataset`, without an import of that library."""
    return any(
        kind.__module__ == 'datasets.arrow_dataset' and kind.__name__ == 'Dataset' for kind in type(source).__mro__
    )


def is_transformed(dataset: Any) -> bool:
    """Whether its rows are what a function of `set_transform` or `with_transform` makes of the stored ones."""
    return dataset.format['type'] == 'custom'


class HuggingFaceInputs:
    """The rows of a `datasets.Dataset` as inputs; see `Inputs`.

    Columns are those of its features, as `headrace.sources.arrow_types` reads Arrow data. Bytes of images are kept.

    Args:
        dataset: the rows; also a selection of others, or in another order.
        columns: names of those to convert; None: all.
        limit: number of rows to convert, from the first; None: all.
    """

    kind = 'huggingface'
    gives_batches = True
    reads_ahead = 1

    def __init__(self, dataset: Any, *, columns: Collection[str] | None, limit: int | None) -> None:
        import_pyarrow('Datasets of Hugging Face')
        self._data = dataset.with_format('arrow')
        self.rows = min(len(dataset), limit or len(dataset))
        schema = dataset.features.arrow_schema
        nulls = [name for name in schema.names if _has_nulls(dataset.data.column(name))]
        self._with_nulls = nulls
        self._has_files = any(_has_files(feature) for feature in dataset.features.values())
        self._schema = schema
        found = arrow_columns(schema, columns=columns, with_nulls=nulls, source='the dataset')
        self.columns = {name: column.encoding for name, column in found.items()}
        self.ledger = Ledger(dropped=tuple(name for name in schema.names if name not in found))
        names = class_names(schema)
        self.files: Mapping[str, bytes] = classes_file({name: names[name] for name in self.columns if name in names})
        mean = measure(self.rows, lambda row: self._columns(row, row + 1), self.columns, is_batch=True)
        self._mean = 64.0 if mean is None else mean
        self._step = min(max(int(_BLOCK / self._mean), 1), _MAX_ROWS)

    @property
    def identity(self) -> Mapping[str, object]:
        """Rows and features."""
        return {'rows': self.rows, 'columns': str(self._schema.remove_metadata())}

    def places(self) -> Iterator[str]:
        """The Arrow files, and files that columns of images or audio name."""
        yield from (file['filename'] for file in self._data.cache_files)
        for name, feature in self._data.features.items():
            if hasattr(feature, 'embed_storage'):
                for chunk in self._data.data.column(name).chunks:
                    yield from filter(None, chunk.field('path').to_pylist())

    def digest(self, begin: int, end: int) -> str | None:
        """None: nobody can tell whether rows are the same again."""
        del begin, end

    @property
    def sizes(self) -> Sizes:
        """The mean of a few rows."""
        return Sizes(mean=self._mean * self._step)

    def __len__(self) -> int:
        return (self.rows + self._step - 1) // self._step

    def name(self, number: int) -> str:
        """The rows."""
        return f'rows {number * self._step} to {min((number + 1) * self._step, self.rows) - 1} of the dataset'

    def read(self, number: int) -> Iterator[Mapping[str, Any]]:
        """The batches of a block."""
        return self._columns(number * self._step, min((number + 1) * self._step, self.rows))

    def _columns(self, begin: int, end: int) -> Iterator[Mapping[str, Any]]:
        table = self._data[begin:end]
        if self._has_files:
            # Files that the dataset only names are read now.
            from datasets.table import embed_table_storage

            table = embed_table_storage(table.cast(self._schema))
        columns = arrow_columns(
            self._schema, columns=list(self.columns), with_nulls=self._with_nulls, source='the dataset'
        )
        for batch in table.combine_chunks().to_batches():
            yield to_columns(batch, columns, source='the dataset', first_row=begin)
            begin += batch.num_rows


def _has_nulls(column: Any) -> bool:
    """Whether an Arrow column has nulls or empty lists, which arrays of MDS cannot be."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        return True
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    return (
        is_list
        and len(column) > 0
        and pc.call_function('min', [pc.call_function('list_value_length', [column])]).as_py() == 0
    )


def _has_files(feature: Any) -> bool:
    """Whether a feature holds files by name or content: images, audio, video, or lists of them."""
    inner = getattr(feature, 'feature', feature[0] if isinstance(feature, list) and feature else None)
    return hasattr(feature, 'embed_storage') or (inner is not None and _has_files(inner))
