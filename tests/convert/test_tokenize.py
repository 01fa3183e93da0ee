"""`tokenize`: the tokens of a plain loop, in shards that a second call brings up to date, after any kill."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from headrace import MDSWriter, StreamingDataLoader
from headrace.convert import convert, tokenize
from headrace.convert.inputs.converted import RECORDS
from headrace.convert.inputs.records import RecordInputs
from headrace.convert.tasks import cut_by_content
from headrace.errors import ConfigError, ConversionError
from headrace.inspect.verify import verify
from headrace.packing import PackedDataset, Packing
from headrace.storage import open_store
from tests.support.programs.killed_children import in_a_child
from tests.support.sources.sources_to_convert import digests, rows_of
from tests.support.sources.tokenized import TEXTS, byte_tokenizer, write_texts

SIZE_LIMIT = 3000


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp('with a space') / 'tokenizer.json'
    byte_tokenizer().save(str(path))
    return path


@pytest.fixture
def run(tokenizer: Path) -> partial[Any]:
    return partial(tokenize, tokenizer=tokenizer, size_limit=SIZE_LIMIT, progress_bar=False)


def loop(texts: list[str]) -> list[list[int]]:
    """The tokens of each text that has some; the name of a special token in it is text."""
    made = byte_tokenizer()
    made.encode_special_tokens = True
    return [ids for text in texts if (ids := made.encode(text, add_special_tokens=False).ids)]


def tokens_in(out: Path | str) -> list[list[int]]:
    rows = rows_of(out)
    assert all(row['tokens'].dtype == np.uint16 and len(row['tokens']) == row['length'] for row in rows)
    return [row['tokens'].tolist() for row in rows]


def as_parquet(folder: Path, texts: list[str]) -> Path:
    folder.mkdir()
    for number, begin in enumerate(range(0, len(texts), 40)):
        some = texts[begin : begin + 40]
        table = pa.table({'id': list(range(len(some))), 'text': some})
        parquet.write_table(table, folder / f'{number:03}.parquet', row_group_size=15)
    return folder


def as_shards(folder: Path, texts: list[str]) -> Path:
    with MDSWriter(out=str(folder), columns={'id': 'int', 'text': 'str'}, size_limit=900, compression='zstd') as writer:
        for number, text in enumerate(texts):
            writer.write({'id': number, 'text': text})
    return folder


def as_hugging_face(folder: Path, texts: list[str]) -> Any:
    datasets = pytest.importorskip('datasets')

    del folder
    return datasets.Dataset.from_dict({'text': texts})


def as_lines(folder: Path, texts: list[str]) -> Path:
    write_texts(folder, texts)
    return folder


@pytest.mark.parametrize(
    'make',
    [
        as_lines,
        as_parquet,
        as_shards,
        as_hugging_face,
        lambda _, texts: [{'text': text} for text in texts],
        lambda _, texts: ({'text': text} for text in texts),
    ],
    ids=['jsonl', 'parquet', 'mds', 'hugging face', 'list', 'iterable'],
)
@pytest.mark.parametrize('workers', [1, 2])
def test_has_the_tokens_of_a_plain_loop(tmp_path: Path, run: partial[Any], make: Any, workers: int) -> None:
    out = tmp_path / 'out'
    report = run(make(tmp_path / 'in', TEXTS), out, workers=workers)
    assert tokens_in(out) == loop(TEXTS)
    assert report.columns == {'tokens': 'ndarray:uint16', 'length': 'int32'}
    assert report.tokens == sum(map(len, loop(TEXTS)))
    assert report.without_tokens == TEXTS.count('') > 0
    assert verify(str(out), jobs=1).is_good


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=30))
def test_has_the_tokens_of_any_texts(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    out = tmp_path_factory.mktemp('any') / 'out'
    rows = [{'text': text} for text in texts]
    tokenize(rows, out, tokenizer=byte_tokenizer(), progress_bar=False)
    if expected := loop(texts):
        assert tokens_in(out) == expected


def test_is_the_same_for_any_number_of_workers(tmp_path: Path, run: partial[Any]) -> None:
    write_texts(tmp_path / 'in', TEXTS)
    for workers in (1, 2, 3):
        run(tmp_path / 'in', tmp_path / f'out-{workers}', workers=workers)
    assert digests(tmp_path / 'out-1') == digests(tmp_path / 'out-2') == digests(tmp_path / 'out-3')


def test_reads_a_limited_number_of_rows_and_one_split(tmp_path: Path, run: partial[Any]) -> None:
    as_shards(tmp_path / 'in' / 'train', TEXTS)
    run(tmp_path / 'in', tmp_path / 'out', split='train', limit=37)
    assert tokens_in(tmp_path / 'out') == loop(TEXTS[:37])
    with pytest.raises(ConfigError, match=r"`column` asks for 'body', but .* has the columns id, text"):
        run(tmp_path / 'in', tmp_path / 'other', split='train', column='body')


def test_stores_large_tokens_as_int32(tmp_path: Path) -> None:
    vocabulary = {str(number): number for number in range(70_000)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token='0'))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenize([{'text': '3 69999'}], tmp_path / 'out', tokenizer=made, progress_bar=False)
    (row,) = rows_of(tmp_path / 'out')
    assert (row['tokens'].dtype, row['tokens'].tolist()) == (np.int32, [3, 69_999])


# -- what a second call does


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    write_texts(tmp_path / 'in', TEXTS)
    return tmp_path / 'in'


def texts_in(folder: Path) -> list[str]:
    files = sorted(folder.glob('*.jsonl'))
    return [json.loads(line)['text'] for path in files for line in path.read_text().splitlines()]


def test_does_nothing_for_the_same_source(lines: Path, tmp_path: Path, run: partial[Any]) -> None:
    out = tmp_path / 'out'
    first = run(lines, out)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    again = run(lines, out)
    assert again.tasks_done_before == again.tasks == first.tasks > 3
    assert (again.rows, again.tokens, again.without_tokens) == (first.rows, first.tokens, first.without_tokens)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def change(folder: Path) -> None:
    path = folder / '003.jsonl'
    path.write_text(path.read_text() + json.dumps({'text': 'one more'}) + '\n')


def add_in_the_middle(folder: Path) -> None:
    (folder / '004b.jsonl').write_text(''.join(json.dumps({'text': f'new {n}'}) + '\n' for n in range(30)))


def add_at_the_end(folder: Path) -> None:
    (folder / '999.jsonl').write_text(json.dumps({'text': 'the last'}) + '\n')


def remove(folder: Path) -> None:
    (folder / '005.jsonl').unlink()


@pytest.mark.parametrize('alter', [change, add_in_the_middle, add_at_the_end, remove])
def test_does_only_what_has_changed(alter: Any, lines: Path, tmp_path: Path, run: partial[Any]) -> None:
    out = tmp_path / 'out'
    tasks = run(lines, out).tasks
    old = digests(out)
    alter(lines)
    report = run(lines, out, workers=2)
    assert tasks - 4 <= report.tasks_done_before < max(report.tasks, tasks)
    assert tokens_in(out) == loop(texts_in(lines))
    kept = {name: digest for name, digest in digests(out).items() if name in old and name.endswith('.mds')}
    assert kept.items() <= old.items()
    listed = {entry['raw_data']['basename'] for entry in json.loads((out / 'index.json').read_text())['shards']}
    assert {path.name for path in out.iterdir()} == listed | {'index.json', RECORDS}
    again = run(lines, out)
    assert again.tasks_done_before == again.tasks


def test_does_the_changed_shards_of_a_dataset(tmp_path: Path, run: partial[Any]) -> None:
    out = tmp_path / 'out'
    as_shards(tmp_path / 'in', TEXTS)
    run(tmp_path / 'in', out)
    with MDSWriter(
        out=str(tmp_path / 'in'),
        columns={'id': 'int', 'text': 'str'},
        size_limit=900,
        compression='zstd',
        append=True,
    ) as writer:
        writer.write({'id': 0, 'text': 'appended'})
    report = run(tmp_path / 'in', out)
    assert report.tasks - 2 <= report.tasks_done_before < report.tasks
    assert tokens_in(out) == loop([*TEXTS, 'appended'])


def test_repeats_all_rows_of_a_program(tmp_path: Path, run: partial[Any]) -> None:
    for texts in (TEXTS, TEXTS[5:]):
        report = run([{'text': text} for text in texts], tmp_path / 'out')
        assert report.tasks_done_before == 0
        assert tokens_in(tmp_path / 'out') == loop(texts)


def test_refuses_another_tokenizer_or_column(lines: Path, tmp_path: Path, run: partial[Any]) -> None:
    out = tmp_path / 'out'
    run(lines, out)
    before = digests(out)
    other = byte_tokenizer(merges=5)
    for settings_ in ({'tokenizer': other}, {'column': 'id'}, {'compression': 'zstd'}):
        with pytest.raises(ConfigError, match='same source, tokenizer and settings') as caught:
            run(lines, out, **{'on_error': 'skip', **settings_})
        assert next(iter(settings_)) in str(caught.value)
        assert digests(out) == before
    with pytest.raises(ConfigError, match='same source'):
        run(as_lines(tmp_path / 'elsewhere', TEXTS), out)
    run(lines, out, tokenizer=other, exist_ok=True)
    assert len(tokens_in(out)) == len(loop(TEXTS))
    assert sum(map(len, tokens_in(out))) > sum(map(len, loop(TEXTS)))


def test_refuses_what_it_did_not_write(lines: Path, tmp_path: Path, run: partial[Any]) -> None:
    out = tmp_path / 'out'
    convert(lines, out, progress_bar=False)
    with pytest.raises(FileExistsError, match='exist_ok=True'):
        run(lines, out)
    run(lines, out, exist_ok=True)
    index = json.loads((out / 'index.json').read_text())
    (out / 'index.json').write_text(json.dumps({**index, 'shards': index['shards'][1:]}))
    with pytest.raises(ConfigError, match=r'lists other shards .* such as shard\.00000'):
        run(lines, out)
    (out / RECORDS).write_text('{"records": 3}')
    with pytest.raises(ConfigError, match='is damaged'):
        run(lines, out)
    run(lines, out, exist_ok=True)
    assert tokens_in(out) == loop(TEXTS)


def test_refuses_tokenizers_with_labels(lines: Path, tmp_path: Path, run: partial[Any]) -> None:
    def with_labels(texts: list[str]) -> list[dict[str, list[int]]]:
        return [{'input_ids': [1], 'labels': [1]} for _ in texts]

    with pytest.raises(ConversionError, match=r'no labels.*Use it in `packing`'):
        run(lines, tmp_path / 'out', tokenizer=with_labels)
    with pytest.raises(ConfigError, match='knows a tokenizer by its name'):
        run(lines, tmp_path / 'other', tokenizer=lambda texts: texts)
    with pytest.raises(ConfigError, match='without labels, but is None'):
        run(lines, tmp_path / 'other', tokenizer=None)
    with pytest.raises(ConfigError, match='cannot be loaded'):
        run(lines, tmp_path / 'other', tokenizer='missing.json')


def test_names_bad_documents_and_leaves_them_out(tmp_path: Path, run: partial[Any]) -> None:
    rows = [{'text': 'good'}, {'text': 3}, {'text': 'also good'}, {'text': '\ud800'}]
    table = pa.table({'text': pa.array(['good', None, 'also good'])})
    (tmp_path / 'in').mkdir()
    parquet.write_table(table, tmp_path / 'in' / 'a.parquet')
    with pytest.raises(ConversionError, match=r'row 1 cannot be converted: DocumentError: .*must be text'):
        run(rows, tmp_path / 'rows')
    with pytest.raises(ConversionError, match=r"in the column 'body', but there are text"):
        run(rows, tmp_path / 'other', column='body')
    report = run(rows, tmp_path / 'rows', on_error='skip')
    assert report.num_errors == 2
    assert tokens_in(tmp_path / 'rows') == loop(['good', 'also good'])
    with pytest.raises(ConversionError, match=r'a\.parquet.*row 1.*must be text for its tokenizer, but it is None'):
        run(tmp_path / 'in', tmp_path / 'out')
    report = run(tmp_path / 'in', tmp_path / 'out', on_error='collect')
    assert [error.input.rpartition(', ')[2] for error in report.errors] == ['row 1']
    assert (tmp_path / 'out' / 'errors.jsonl').exists()
    assert run(tmp_path / 'in', tmp_path / 'out', on_error='skip').num_errors == 1
    assert not (tmp_path / 'out' / 'errors.jsonl').exists()  # it would list errors of an earlier call
    with pytest.raises(ConversionError, match='row 1'):
        run(tmp_path / 'in', tmp_path / 'out')
    assert tokens_in(tmp_path / 'out') == loop(['good', 'also good'])


# -- kills


def test_continues_after_a_kill_at_any_step(lines: Path, tmp_path: Path, run: partial[Any]) -> None:
    numbers = itertools.count()

    def new_out() -> Path:
        return tmp_path / 'outs' / str(next(numbers))

    whole = new_out()
    _, steps = in_a_child(lambda: run(lines, whole), 0, str(tmp_path / 'outs'))
    expected = digests(whole)
    kept: list[int] = []
    for last in range(2, steps, steps // 6):
        out = new_out()
        status, _ = in_a_child(lambda out=out: run(lines, out), last, str(tmp_path / 'outs'))
        assert os.WIFSIGNALED(status), last
        kept.append(run(lines, out, workers=1 + last % 2).tasks_done_before)
        assert digests(out) == expected
    assert max(kept) > min(kept)


@pytest.mark.parametrize('share', [5, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    'changes_again',
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=['the same source', 'a source that changes again'],
)
def test_a_killed_second_call_leaves_a_dataset(
    changes_again: bool, share: int, lines: Path, tmp_path: Path, run: partial[Any]
) -> None:
    finished, sources = tmp_path / 'finished', tmp_path / 'sources'
    run(lines, finished)
    before = tokens_in(finished)
    shutil.copytree(lines, sources)
    for alter in (change, add_in_the_middle, remove):
        alter(lines)
    after = loop(texts_in(lines))

    def begun(name: str) -> Path:
        shutil.copytree(finished, tmp_path / 'outs' / name)
        return tmp_path / 'outs' / name

    whole = begun('whole')
    _, steps = in_a_child(lambda: run(lines, whole), 0, str(tmp_path / 'outs'))
    assert tokens_in(whole) == after
    shutil.copytree(lines, sources, dirs_exist_ok=True)
    for last in sorted({*range(2, steps, max(1, steps // share)), *range(steps - 4, steps)}):
        out = begun(str(last))
        status, _ = in_a_child(lambda out=out: run(lines, out), last, str(tmp_path / 'outs'))
        assert os.WIFSIGNALED(status), last
        assert tokens_in(out) in (before, after)
        if changes_again:
            (lines / '000.jsonl').write_text(json.dumps({'text': f'changed before step {last}'}) + '\n')
        run(lines, out, workers=1 + last % 2)
        assert tokens_in(out) == loop(texts_in(lines))
        assert verify(str(out), jobs=1).is_good
        assert changes_again or digests(out) == digests(whole)
        assert not {path.name for path in out.iterdir()} & {'.headrace-convert', '.headrace-convert-done'}
        if changes_again:
            shutil.copytree(sources, lines, dirs_exist_ok=True)
            remove(lines)


@pytest.mark.s3
def test_a_store_of_objects(lines: Path, tmp_path: Path, run: partial[Any], s3_server: Any) -> None:
    url = f's3://{s3_server.new_bucket()}'
    for path in lines.iterdir():
        with open(path, 'rb') as file:
            open_store(f'{url}/in').put(path.name, file, size=path.stat().st_size)
    report = run(f'{url}/in', f'{url}/out', workers=2)
    change(lines)
    with open(lines / '003.jsonl', 'rb') as file:
        open_store(f'{url}/in').put('003.jsonl', file, size=(lines / '003.jsonl').stat().st_size)
    again = run(f'{url}/in', f'{url}/out')
    assert report.tasks - 2 <= again.tasks_done_before < again.tasks
    dataset = PackedDataset(remote=f'{url}/out', local=str(tmp_path / 'cache'), packing=Packing(sequence_length=64))
    assert [dataset[number]['tokens'].tolist() for number in range(dataset.num_samples)] == loop(texts_in(lines))


# -- tasks


def _inputs(sizes: list[tuple[int, int]]) -> RecordInputs[tuple[int, int]]:
    return RecordInputs(
        lambda record: {'text': str(record)},
        sizes,
        kind='test',
        columns={'text': 'str'},
        identity={},
        label=str,
        sizes=[size for _, size in sizes],
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=200),
    st.integers(0, 200),
    st.lists(st.integers(1, 400), max_size=5),
)
def test_other_inputs_leave_tasks_as_they_are(sizes: list[int], place: int, new: list[int]) -> None:
    before = list(enumerate(sizes))
    after = before[:place] + [(-1 - number, size) for number, size in enumerate(new)] + before[place:]
    cuts = [list(cut_by_content(_inputs(records), 1000)) for records in (before, after)]
    for records, tasks in zip((before, after), cuts, strict=True):
        assert [task.begin for task in tasks] == [0, *(task.end for task in tasks)][:-1]
        assert tasks[-1].end == len(records)
        assert all(sum(size for _, size in records[task.begin : task.end - 1]) < 1000 for task in tasks)
    ends = [len(sizes), place]
    first = {task.digest for task in cuts[0] if task.end < min(ends)}
    assert first <= {task.digest for task in cuts[1]}


def test_tasks_behind_a_new_input_stay() -> None:
    before = [(number, 100) for number in range(1000)]
    after = [*before[:300], (-1, 100), *before[300:]]
    one, other = ({task.digest for task in cut_by_content(_inputs(records), 1000)} for records in (before, after))
    assert len(one - other) <= 2
    assert len(one) > 100


# -- packing


def batches(dataset: PackedDataset, count: int) -> Iterator[dict[str, Any]]:
    loader = StreamingDataLoader(dataset, batch_size=4)
    for batch in itertools.islice(loader, count):
        yield {name: value.tolist() for name, value in batch.items()}


@pytest.mark.parametrize('method', ['best_fit', 'concatenate'])
@pytest.mark.parametrize('special', [{}, {'eos_token_id': 1}, {'bos_token_id': 2, 'eos_token_id': 1}])
def test_packs_tokens_as_it_packs_texts(
    tmp_path: Path, run: partial[Any], method: Any, special: dict[str, int]
) -> None:
    texts = [text for text in TEXTS if text]
    as_shards(tmp_path / 'in', texts)
    run(tmp_path / 'in', tmp_path / 'out')
    options: dict[str, Any] = {'sequence_length': 50, 'method': method, 'window': 3, **special}
    of_texts = Packing(tokenizer=byte_tokenizer(), **options)
    both = [
        # The order of samples depends on shards.
        batches(PackedDataset(local=str(tmp_path / name), shuffle=False, packing=packing), 30)
        for name, packing in (('in', of_texts), ('out', Packing(**options)))
    ]
    for number, (one, other) in enumerate(zip(*both, strict=True)):
        assert one == other, number
