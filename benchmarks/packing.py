"""Packing real text: what is padded, cut or lost, and how many tokens come in a second, beside the usual ways.

The text is the source code of the standard library by functions and classes, and its reference by paragraphs; the
tokenizer, a byte-level BPE of 8,000 tokens, is trained on a part of it. The first table needs lengths alone. LLM
Foundry's way is worked out from its description: each device batch packs `packing_ratio` times its size, cut to the
sequence length, first fit from the longest; what does not fit is dropped, and "auto" is the highest ratio that drops
nothing in a trial. In the second table each measurement is a fresh process, from the begin of tokenising to the last of
the batches; contenders are interleaved, and medians compared. The third table has the time to tokenise all texts once,
with what it writes, and of packing what comes of it.

usage: python benchmarks/packing.py [ROUNDS] [PAGE]
       python benchmarks/packing.py --once [ROUNDS]     # the third table alone
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np

BATCH = 8
LENGTH = 2048
VOCABULARY = 8000
CONTENDERS = (
    'headrace, tiktoken, 2 workers',
    'headrace, tiktoken, no workers',
    'headrace, tokenizers, 2 workers',
    'headrace, tokenizers, no workers',
    'transformers + map, 2 processes',
    'transformers + map, 1 process',
    'transformers, one by one',
)
ONCE = (
    'headrace tokenize -j 2',
    'headrace tokenize -j 2, again',
    'map of datasets, 2 processes',
    'a loop over encode_batch',
    'packing texts, no workers',
    'packing texts, 2 workers',
    'packing tokens, no workers',
    'packing tokens, 2 workers',
)
"""Of the third table: tokenising once, and packing what that made. All use the same tokenizer."""


# -- the text ----------------------------------------------------------------------------------------------------------


def documents() -> Iterator[str]:
    """Functions, classes and paragraphs, of some words at least."""
    for path in sorted(Path(sysconfig.get_path('stdlib')).rglob('*.py')):
        if {'site-packages', 'lib2to3'} & set(path.parts):
            continue
        try:
            text = path.read_text(encoding='utf-8')
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        lines = text.splitlines(keepends=True)
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield ''.join(lines[node.lineno - 1 : node.end_lineno])
    for text in topics.topics.values():
        yield from (paragraph for paragraph in text.split('\n\n') if len(paragraph) > 20)


def make_tokenizer(texts: list[str], path: Path) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False, special_tokens=['<eos>']
    )
    tokenizer.train_from_iterator(texts[::4], trainer)
    tokenizer.save(str(path))


def as_tiktoken(path: Path) -> Any:
    """The same merges for tiktoken."""
    import tiktoken

    # GPT-2's printable stand-ins for bytes, which byte-level vocabularies are written in.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    of = {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}
    merges = json.loads(path.read_text())['model']['merges']
    ranks = {bytes([byte]): byte for byte in range(256)}
    for merge in merges:
        left, right = merge if isinstance(merge, list) else merge.split(' ')
        ranks.setdefault(bytes(of[char] for char in left + right), 256 + len(ranks) - 256)
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return tiktoken.Encoding('benchmark', pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


# -- what is padded, cut, lost -----------------------------------------------------------------------------------------


def first_fit_by_batches(lengths: list[int], size: int, ratio: float) -> tuple[int, int]:
    """Sequences, and tokens that are dropped, where each device batch packs what it has."""
    rows = lost = 0
    count = int(BATCH * ratio)
    for begin in range(0, len(lengths), count):
        bins: list[int] = []
        for length in sorted((min(found, size) for found in lengths[begin : begin + count]), reverse=True):
            place = next((place for place, used in enumerate(bins) if used + length <= size), None)
            if place is None:
                bins.append(length)
            else:
                bins[place] += length
        bins.sort(reverse=True)
        lost += sum(bins[BATCH:])
        rows += BATCH
    return rows, lost


def auto_ratio(lengths: list[int], size: int) -> float:
    """The highest of 20 ratios that drops nothing in 500 batches' worth of documents."""
    longest = size / max(min(lengths), 1)
    trial = lengths[: 500 * BATCH]
    found = 1.0
    for ratio in np.linspace(1, min(longest, 4 * size * len(trial) / sum(trial)), 20):
        if first_fit_by_batches(trial, size, float(ratio))[1] == 0:
            found = float(ratio)
    return found


def packed(folder: str, size: int, **options: Any) -> tuple[float, float]:
    """Shares of padding and of documents that are cut, of our loader, over a pass' worth of sequences."""
    from headrace import StreamingDataLoader
    from headrace.packing import PackedDataset, Packing

    packing = Packing(sequence_length=size, token_dtype='int32', **options)
    loader = StreamingDataLoader(PackedDataset(local=folder, shuffle=True, packing=packing), batch_size=BATCH)
    total = int(np.load(f'{folder}.lengths.npy').sum())
    tokens = places = 0
    for batch in loader:
        tokens += int(batch['num_tokens'].sum())
        places += batch['input_ids'].numel()
        if tokens >= total:
            return 1 - tokens / places, 0
    raise AssertionError('the loader has no end')


def efficiency(folder: Path, lengths: list[int]) -> str:
    total, fitting = sum(lengths), [length for length in lengths if length <= LENGTH]
    rows: dict[str, tuple[float, float, float]] = {}
    for name, options in {
        '**headrace, `best_fit`**': {},
        'the same, `window: 8`': {'window': 8},
        'the same, `window: 128`': {'window': 128},
        '**headrace, `concatenate`**': {'method': 'concatenate'},
    }.items():
        padding, _ = packed(str(folder / 'tokens'), LENGTH, **options)
        cut = sum(fitting) / len(fitting) / LENGTH if 'concatenate' in name else 0.0
        rows[name] = padding, cut, 0.0
    ratio = auto_ratio(lengths, LENGTH)
    made, dropped = first_fit_by_batches(lengths, LENGTH, ratio)
    lost = dropped + sum(max(length - LENGTH, 0) for length in lengths)
    rows[f"Foundry's, `auto` ({ratio:.1f})"] = 1 - (total - lost) / (made * LENGTH), 0.0, lost / total
    pieces = sum(-(-length // LENGTH) for length in lengths)
    rows['a document, or a part, in each sequence'] = 1 - total / (pieces * LENGTH), 0.0, 0.0
    lines = ['| way | padded | documents cut that would fit | tokens lost |', '|---|---|---|---|']
    for name, shares in rows.items():
        lines.append(f'| {name} | ' + ' | '.join(f'{share:.1%}' for share in shares) + ' |')
    return '\n'.join(lines) + '\n'


# -- tokens in a second ------------------------------------------------------------------------------------------------


def run_headrace(folder: Path, library: str, workers: int) -> int:
    from headrace import StreamingDataLoader
    from headrace.packing import PackedDataset, Packing, load_tokenizer

    path, data = folder / 'tokenizer.json', 'text' if library else 'stored'
    tokenizer = as_tiktoken(path) if library == 'tiktoken' else load_tokenizer(library, str(path)) if library else None
    packing = Packing(sequence_length=LENGTH, tokenizer=tokenizer, eos_token_id=0)
    dataset = PackedDataset(local=str(folder / data), shuffle=True, packing=packing)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers)
    total = int(np.load(folder / 'tokens.lengths.npy').sum())
    tokens = 0
    for batch in loader:
        tokens += int(batch['num_tokens'].sum())
        if tokens >= total:
            break
    return tokens


def run_once(name: str, folder: Path) -> int:
    """Tokenise all texts and store the tokens."""
    path = folder / 'tokenizer.json'
    if name.startswith('headrace'):
        from headrace.convert import tokenize

        out = folder / ('stored' if 'again' in name else tempfile.mkdtemp(dir=folder))
        # Tasks are small enough for two processes, as they are of data that take longer.
        options = {'workers': 2, 'size_limit': '4mb', 'progress_bar': False}
        return tokenize(folder / 'text', out, tokenizer=path, **options).tokens
    if 'map' in name:
        import datasets
        import transformers

        datasets.disable_progress_bars()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), model_max_length=10**9)
        data = datasets.Dataset.from_json(str(folder / 'text.jsonl'), cache_dir=tempfile.mkdtemp(dir=folder))

        def encode(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
            return {'input_ids': tokenizer(rows['text'])['input_ids']}

        data = data.map(encode, remove_columns=['text'], batched=True, num_proc=2).with_format('arrow')
        return sum(len(chunk.values) for chunk in data.data.column('input_ids').chunks)
    import tokenizers

    from headrace import MDSWriter

    tokenizer, tokens = tokenizers.Tokenizer.from_file(str(path)), 0
    with (
        (folder / 'text.jsonl').open() as lines,
        MDSWriter(out=tempfile.mkdtemp(dir=folder), columns={'tokens': 'ndarray:uint16'}) as writer,
    ):
        while some := list(itertools.islice(lines, 1000)):
            for found in tokenizer.encode_batch([json.loads(line)['text'] for line in some]):
                writer.write({'tokens': np.array(found.ids, np.uint16)})
                tokens += len(found.ids)
    return tokens


def run_map(folder: Path, processes: int) -> int:
    """As the examples of transformers do: tokenise, then group, by two maps; then a DataLoader."""
    import datasets
    import torch
    import transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / 'tokenizer.json'), model_max_length=10**9
    )
    data = datasets.Dataset.from_json(str(folder / 'text.jsonl'), cache_dir=tempfile.mkdtemp())

    def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: list(itertools.chain(*values)) for name, values in examples.items()}
        whole = len(joined['input_ids']) // LENGTH * LENGTH
        found = {name: [values[at : at + LENGTH] for at in range(0, whole, LENGTH)] for name, values in joined.items()}
        found['labels'] = [list(row) for row in found['input_ids']]
        return found

    options = {'batched': True, 'num_proc': processes if processes > 1 else None}
    data = data.map(lambda rows: tokenizer(rows['text']), remove_columns=['text'], **options)
    data = data.map(group, **options).with_format('torch')
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
    return sum(batch['input_ids'].numel() for batch in loader)


def run_one_by_one(folder: Path) -> int:
    """A dataset whose samples are tokenised where they are read, and packed end to end."""
    import torch
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / 'tokenizer.json'), model_max_length=10**9
    )
    tokens, rows, count = [], [], 0
    for line in (folder / 'text.jsonl').open():
        tokens += tokenizer(json.loads(line)['text'])['input_ids']
        while len(tokens) >= LENGTH:
            rows.append(torch.tensor(tokens[:LENGTH]))
            del tokens[:LENGTH]
            if len(rows) == BATCH:
                count += torch.stack(rows).numel()
                rows = []
    return count


def run(contender: str, folder: Path) -> None:
    """In a process of its own: prints tokens and seconds."""
    import torch

    if contender.startswith(('headrace', 'packing')):
        import tiktoken  # noqa: F401 - imports are not what is measured
        import tokenizers  # noqa: F401

        import headrace.packing.reader  # noqa: F401
    else:
        import datasets  # noqa: F401
        import transformers  # noqa: F401
    torch.set_num_threads(2)
    start, before = time.perf_counter(), time.process_time()
    if contender.startswith('packing'):
        library = 'tokenizers' if 'texts' in contender else ''
        count = run_headrace(folder, library, 2 if contender.endswith('2 workers') else 0)
    elif contender in ONCE:
        count = run_once(contender, folder)
    elif contender.startswith('headrace'):
        _, library, workers = contender.split(', ')
        count = run_headrace(folder, library, 2 if workers == '2 workers' else 0)
    elif 'map' in contender:
        count = run_map(folder, 2 if '2' in contender else 1)
    else:
        count = run_one_by_one(folder)
    seconds, used = time.perf_counter() - start, [resource.getrusage(who) for who in (0, resource.RUSAGE_CHILDREN)]
    print(json.dumps([count, seconds, sum(one.ru_utime + one.ru_stime for one in used) - before]))


def throughput(folder: Path, rounds: int, contenders: tuple[str, ...], basis: str) -> str:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    by_cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name in random.Random(turn).sample(contenders, len(contenders)):
            environ = {**os.environ, 'HF_HOME': str(folder / 'hf'), 'TOKENIZERS_PARALLELISM': 'true'}
            command = [sys.executable, __file__, '--run', name, str(folder)]
            done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
            count, seconds, cpu = json.loads(done.stdout.splitlines()[-1])
            rates[name].append(count / seconds)
            by_cpu[name].append(count / cpu)
            print(f'{name:<40} {count / seconds:12,.0f} tokens/s, {count / cpu:12,.0f} a CPU second', flush=True)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    best = medians[basis]
    lines = [f'| contender | tokens/s | a CPU second | against {basis.partition(",")[0]} |', '|---|---|---|---|']
    for name, rate in sorted(medians.items(), key=lambda item: -item[1]):
        lines.append(f'| {name} | {rate:,.0f} | {statistics.median(by_cpu[name]):,.0f} | {rate / best:.2f} x |')
    return '\n'.join(lines) + '\n'


def prepare(folder: Path) -> list[int]:
    """Shards of texts and of tokens, and the tokenizer; returns the documents' lengths in tokens."""
    import tokenizers

    from headrace import MDSWriter

    texts = list(documents())
    random.Random(0).shuffle(texts)
    make_tokenizer(texts, folder / 'tokenizer.json')
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
    found = [np.array([*encoding.ids, 0], np.int32) for encoding in tokenizer.encode_batch(texts)]
    with MDSWriter(out=str(folder / 'text'), columns={'text': 'str'}, size_limit=1 << 22) as writer:
        for text in texts:
            writer.write({'text': text})
    with MDSWriter(out=str(folder / 'tokens'), columns={'tokens': 'bytes'}, size_limit=1 << 22) as writer:
        for tokens in found:
            writer.write({'tokens': tokens.tobytes()})
    with (folder / 'text.jsonl').open('w') as file:
        file.writelines(json.dumps({'text': text}) + '\n' for text in texts)
    run_once('headrace tokenize -j 2, again', folder)
    lengths = [len(tokens) for tokens in found]
    np.save(folder / 'tokens.lengths.npy', np.array(lengths))
    print(f'{len(texts):,} documents, {sum(map(len, texts)):,} characters, {sum(lengths):,} tokens')
    return lengths


def main() -> None:
    if sys.argv[1:2] == ['--run']:
        run(sys.argv[2], Path(sys.argv[3]))
        return
    only_once = sys.argv[1:2] == ['--once']
    sys.argv[1:2] = [] if only_once else sys.argv[1:2]
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lengths = prepare(folder)
        if only_once:
            print(throughput(folder, rounds, ONCE, 'map of datasets, 2 processes'))
            return
        table = efficiency(folder, lengths)
        print(table)
        if len(sys.argv) > 2:
            page = Path(sys.argv[2])
            before, _, rest = page.read_text().partition('<!-- table: efficiency -->\n')
            page.write_text(
                f'{before}<!-- table: efficiency -->\n{table}<!-- end -->{rest.partition("<!-- end -->")[2]}'
            )
        if rounds:
            print(throughput(folder, rounds, CONTENDERS, 'transformers + map, 1 process'))
            print(throughput(folder, rounds, ONCE, 'map of datasets, 2 processes'))


if __name__ == '__main__':
    main()
