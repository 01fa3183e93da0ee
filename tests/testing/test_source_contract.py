"""The formats of headrace keep the contract of sources."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.testing.sources import SourceCase, SourceContract
from tests.support.sources import token_files
from tests.support.sources.line_files import jsonl, table
from tests.support.sources.litdata_folders import write as write_litdata

ROWS: list[dict[str, Any]] = [{'id': number, 'text': f'ä "{number}"'} for number in range(20)]
WITH_NULLS = [{**row, 'maybe': None if row['id'] % 3 else row['id']} for row in ROWS]


class TestJsonl(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        return SourceCase('jsonl', {'a.jsonl': jsonl(WITH_NULLS[:12]), 'b/c.jsonl': jsonl(WITH_NULLS[12:])}, WITH_NULLS)


class TestCsv(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        lines = [[str(value) for value in row.values()] for row in ROWS]
        head = ['id', 'text']
        return SourceCase('csv', {'a.csv': table(head, lines[:12]), 'b.csv': table(head, lines[12:])}, ROWS)


class TestCsvWithOptions(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        lines = [[str(value) for value in row.values()] for row in ROWS]
        files = [table(part[0], part[1:], delimiter=';', quotechar="'") for part in (lines[:12], lines[12:])]
        options = {'delimiter': ';', 'quoting': "'", 'header': ['id', 'text']}
        return SourceCase('csv', {'a.csv': files[0], 'b.csv.gz': gzip.compress(files[1])}, ROWS, options)


class TestTsv(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        lines = [[str(value) for value in row.values()] for row in ROWS]
        files = [table(['id', 'text'], part, delimiter='\t') for part in (lines[:12], lines[12:])]
        return SourceCase('tsv', {'a.tsv': files[0], 'b.tab': files[1]}, ROWS)


class TestArraysOfJson(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        files = [json.dumps(part, indent=1).encode() for part in (WITH_NULLS[:12], WITH_NULLS[12:])]
        return SourceCase('jsonl', {'a.json': files[0], 'b.json': files[1]}, WITH_NULLS)


class TestParquet(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        pa, pq = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')

        def file(rows: list[dict[str, Any]]) -> bytes:
            out = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=5)
            return out.getvalue()

        return SourceCase(
            'parquet', {'a.parquet': file(WITH_NULLS[:12]), 'b.parquet': file(WITH_NULLS[12:])}, WITH_NULLS
        )


class TestArrow(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        pa = pytest.importorskip('pyarrow')

        def file(rows: list[dict[str, Any]]) -> bytes:
            data, out = pa.Table.from_pylist(rows), io.BytesIO()
            with pa.ipc.new_stream(out, data.schema) as writer:
                writer.write_table(data, max_chunksize=5)
            return out.getvalue()

        return SourceCase('arrow', {'a.arrow': file(WITH_NULLS[:12]), 'b.arrow': file(WITH_NULLS[12:])}, WITH_NULLS)


class TestTar(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        def file(rows: list[dict[str, Any]]) -> bytes:
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode='w') as tar:
                for row in rows:
                    info = tarfile.TarInfo(f'{row["id"]}.txt')
                    data = row['text'].encode()
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
            return out.getvalue()

        rows = [{'__key__': str(row['id']), 'txt': row['text']} for row in ROWS]
        return SourceCase('webdataset', {'0.tar': file(ROWS[:12]), '1.tar': file(ROWS[12:])}, rows)


class TestLitdata(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        rows = [{'id': number, 'data': bytes([number]), 'array': np.arange(number + 1)} for number in range(20)]
        return SourceCase('litdata', write_litdata(tmp_path / 'written', rows), rows)


DOCUMENTS = [[number] * (1 + number % 4) for number in range(20)]


class TestMegatron(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        objects: dict[str, bytes] = {}
        for name, run in (('a', DOCUMENTS[:9]), ('b', DOCUMENTS[9:])):
            objects[f'{name}.bin'], objects[f'{name}.idx'] = token_files.megatron([[document] for document in run])
        return SourceCase('megatron', objects, [{'tokens': np.array(document, np.uint16)} for document in DOCUMENTS])


class TestTokens(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        objects = token_files.datatrove('a.ds', DOCUMENTS[:9]) | token_files.datatrove('b.ds', DOCUMENTS[9:])
        return SourceCase('tokens', objects, [{'tokens': np.array(document, np.uint16)} for document in DOCUMENTS])


class TestBlocksOfTokens(SourceContract):
    @pytest.fixture
    def case(self) -> SourceCase:
        objects = {f'{name}.bin': token_files.llm_c(range(first, first + 60)) for name, first in (('a', 0), ('b', 60))}
        rows = [{'tokens': np.arange(first, first + 6, dtype=np.uint16)} for first in range(0, 120, 6)]
        return SourceCase('tokens', objects, rows, {'block_size': 6})
