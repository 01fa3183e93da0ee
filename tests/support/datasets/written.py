"""A dataset that is written and read."""

from __future__ import annotations

from headrace import MDSWriter, StreamingDataset

COLUMNS = {'id': 'int'}


def write(out, n=50, **options):
    with MDSWriter(out=out, columns=COLUMNS, size_limit=400, **options) as writer:
        for i in range(n):
            writer.write({'id': i})


def read(folder):
    return [sample['id'] for sample in StreamingDataset(local=str(folder))[:]]
