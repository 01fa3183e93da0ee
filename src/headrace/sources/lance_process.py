"""The program that runs Lance for `headrace.sources.lance_client`: its threads must not be in a process that forks.

For each line of JSON it writes a stream of Arrow IPC, whose metadata may be an error. It sees local files only: one
manifest, deletion files and, to read rows, the pages that the rows need at their places. It ends with its parent, or
after some seconds without a request.
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Iterable
from typing import Any

if __name__ == '__main__' and not getattr(sys.flags, 'safe_path', False):
    # The folder of this file, whose modules have the names of others. PYTHONSAFEPATH, since Python 3.11, leaves it out.
    del sys.path[0]

import lance
import pyarrow as pa

_IDLE = 10.0  # seconds


def describe(dataset: Any) -> Iterable[pa.RecordBatch]:
    """A row for each fragment, as JSON, with the numbers of its deleted rows. The schema is in the metadata."""
    schema = dataset.scanner().projected_schema
    fields = {field.name(): _ids(field) for field in dataset.lance_schema.fields()}
    head = {b'schema': schema.serialize().to_pybytes(), b'fields': json.dumps(fields).encode()}
    out = pa.schema([('fragment', pa.string()), ('deleted', pa.list_(pa.uint32()))], metadata=head)
    for fragment in dataset.get_fragments():
        deleted: list[int] = []
        if fragment.num_deletions:
            rows = fragment.scanner(columns=[], with_row_address=True).to_table()['_rowaddr'].to_numpy()
            kept = {int(row) & 0xFFFFFFFF for row in rows}
            deleted = [row for row in range(fragment.physical_rows) if row not in kept]
        text = json.dumps({**fragment.metadata.to_json(), 'deletions': fragment.deletion_file()})
        yield pa.record_batch([[text], [deleted]], schema=out)
    yield pa.record_batch([[], []], schema=out)


def _ids(field: Any) -> list[int]:
    return [field.id(), *(number for child in field.children() for number in _ids(child))]


def answer(line: str, out: Any) -> None:
    """Write what a request asks for. An error after the first batch is raised: the stream has no end then."""
    writer: Any = None
    try:
        request = json.loads(line)
        dataset: Any = lance.dataset(request['path'])
        batches = iter(describe(dataset))
        if request['fragment'] is not None:
            options = {name: request[name] for name in ('columns', 'offset', 'limit', 'batch_size')}
            batches = iter(dataset.get_fragment(request['fragment']).scanner(**options).to_reader())
        for batch in batches:
            writer = writer or pa.ipc.new_stream(out, batch.schema)
            writer.write_batch(batch)
    except BaseException as error:  # a panic of Rust is not an Exception
        if writer is not None:
            raise
        writer = pa.ipc.new_stream(out, pa.schema([], metadata={b'error': str(error).encode()}))
    writer.close()


def main() -> None:
    with pa.PythonFile(sys.stdout.buffer, 'w') as out:
        while select.select([sys.stdin], [], [], _IDLE)[0] and (line := sys.stdin.readline()):
            answer(line, out)
            sys.stdout.flush()  # `out` writes into it, and does not flush it


if __name__ == '__main__':
    main()
